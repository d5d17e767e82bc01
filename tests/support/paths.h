#pragma once
// Where the programs and files that tests use lie. Only paths.cpp is compiled with these paths, so that
// another checkout takes all other objects from ccache.

namespace isthmus {

extern const char* const build_folder;  ///< such as CHECKOUT/build/release
extern const char* const isthmus_program;
extern const char* const coordinator_program;
extern const char* const source_folder;
extern const char* const python_environment;  ///< the one that holds torch
extern const char* const python_program;      ///< with the standard library alone

}  // namespace isthmus
