#include "paths.h"

namespace isthmus {

const char* const build_folder = ISTHMUS_BUILD_FOLDER;
const char* const isthmus_program = ISTHMUS_BUILD_FOLDER "/isthmus";
const char* const coordinator_program = ISTHMUS_BUILD_FOLDER "/isthmus-coordinator";
const char* const source_folder = ISTHMUS_SOURCE_FOLDER;
const char* const python_environment = ISTHMUS_PYTHON_ENV;
const char* const python_program = ISTHMUS_PYTHON_PROGRAM;

}  // namespace isthmus
