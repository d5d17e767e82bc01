#pragma once
// Paths of the programs and files that tests use. Only paths.cpp is compiled with them, so that another
// checkout takes all other objects from ccache.

namespace isthmus {

extern const char* const build_folder;  ///< for example CHECKOUT/build/release
extern const char* const isthmus_program;
extern const char* const coordinator_program;
extern const char* const source_folder;
extern const char* const python_environment;  ///< the environment with torch
extern const char* const python_program;      ///< has only the standard library

}  // namespace isthmus
