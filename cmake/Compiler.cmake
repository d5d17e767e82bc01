# One place for the language, the warnings and the arithmetic rules of every target.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
# -O3 for the codecs' loops; asserts stay in all builds: they are cheap here and guard agreed state.
set(CMAKE_CXX_FLAGS_RELEASE "-O3")
# CMake's own adds -DNDEBUG; sanitizer builds are where asserts matter most.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g")

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()

add_library(isthmus_options INTERFACE)
target_compile_options(isthmus_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Werror>
  # Agreed state is exact: one rounding per operation, so no fused multiply-add anywhere.
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
if(ISTHMUS_SANITIZE)
  target_compile_options(isthmus_options INTERFACE -fsanitize=${ISTHMUS_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  target_link_options(isthmus_options INTERFACE -fsanitize=${ISTHMUS_SANITIZE})
endif()
find_package(Threads REQUIRED)
target_link_libraries(isthmus_options INTERFACE Threads::Threads)
