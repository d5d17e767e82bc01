#pragma once
// Where the programs and files that tests use lie. Only paths.cpp is compiled with these paths, so that
// ccache gives another checkout every other object.

namespace isthmus {

extern const char* const build_folder;  ///< such as CHECKOUT/build/release
extern const char* const isthmus_program;
extern const char* const coordinator_program;
extern const char* const source_folder;
extern const char* const python_environment;  ///< the checkout's .venv

}  // namespace isthmus
