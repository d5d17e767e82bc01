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

# Paths below the checkout are hashed relative to it, so that another checkout of the same sources, with its own .venv,
# finds the results of this one; the sloppiness is what ccache wants for precompiled headers. (A unity unit includes its
# sources by absolute paths, which assertions would have in them: hence -fmacro-prefix-map below.) Where its folder cannot be
# written, as in a read-only home, ccache compiles nothing at all, so it is left out.
find_program(CCACHE ccache)
if(CCACHE)
  execute_process(COMMAND ${CCACHE} --get-config cache_dir OUTPUT_VARIABLE _cache OUTPUT_STRIP_TRAILING_WHITESPACE)
  execute_process(COMMAND mkdir -p ${_cache}/tmp ERROR_QUIET)
  execute_process(COMMAND test -w ${_cache}/tmp RESULT_VARIABLE _unwritable)
endif()
if(CCACHE AND _unwritable)
  message(STATUS "ccache: left out, its folder ${_cache} cannot be written (`ccache --set-config cache_dir=DIR` names another)")
elseif(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1
    CCACHE_SLOPPINESS=pch_defines,time_macros,locale ${CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()

add_library(isthmus_options INTERFACE)
# Warnings are errors with the compilers that scripts/compilers.sh tries; those of later ones are news for us, not a broken
# build for a user. -Wrestrict sees faults where there are none ("x" + std::to_string(n), g++ bug 105651).
set(warnings_are_errors $<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,15>>:-Werror>)
target_compile_options(isthmus_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor>
  $<$<COMPILE_LANGUAGE:CXX>:-fmacro-prefix-map=${CMAKE_SOURCE_DIR}/=>
  ${warnings_are_errors}
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>
  # Agreed state is exact: one rounding per operation, so no fused multiply-add anywhere.
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
if(CMAKE_UNITY_BUILD)
  # In a unit of several sources g++ takes all but the first for headers, whose anonymous namespaces would be a fault,
  # and one source's constants for globals that another's parameters hide.
  target_compile_options(isthmus_options INTERFACE
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage -Wno-shadow -Wshadow=local>)
endif()
if(ISTHMUS_SANITIZE)
  # -Og and line numbers only: a third of the time to compile. Switched off are uninitialised variables in library templates,
  # where there are none, and what its ThreadSanitizer says of Asio's fences, which stand beside mutexes.
  # A null pointer is AddressSanitizer's to find, and a wrong vtable's too: a fifth of the time to compile.
  target_compile_options(isthmus_options INTERFACE -fsanitize=${ISTHMUS_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize=null,vptr -fno-sanitize-recover=all -Og -g1 -Wno-maybe-uninitialized
    $<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)
  if(ISTHMUS_SANITIZE MATCHES undefined)
    # UBSan checks the libraries only: in test code it would take a quarter of the time to compile.
    target_compile_options(isthmus_options INTERFACE $<$<BOOL:$<TARGET_PROPERTY:ISTHMUS_TEST_CODE>>:-fno-sanitize=undefined
      $<$<CXX_COMPILER_ID:GNU>:--param=asan-instrumentation-with-call-threshold=0>>)
  endif()
  target_link_options(isthmus_options INTERFACE -fsanitize=${ISTHMUS_SANITIZE})
endif()
find_package(Threads REQUIRED)
target_link_libraries(isthmus_options INTERFACE Threads::Threads)
