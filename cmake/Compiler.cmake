# The language, the warnings and the arithmetic rules of all targets.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
# -O3 for the codecs' loops. Asserts stay on in all builds: they are cheap here and guard agreed state.
set(CMAKE_CXX_FLAGS_RELEASE "-O3")
# CMake's default adds -DNDEBUG, but asserts matter most in sanitizer builds.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g")

# Paths below the checkout are hashed relative to it, so that another checkout of the same sources, with its own
# .venv, finds the results of this one. The sloppiness is what ccache needs for precompiled headers. (A unity unit
# includes its sources by absolute paths, which assertions would contain: hence -fmacro-prefix-map below.) If ccache
# cannot write its folder, as in a read-only home, it compiles nothing at all, so it is then not used.
find_program(CCACHE ccache)
if(CCACHE)
  execute_process(COMMAND ${CCACHE} --get-config cache_dir OUTPUT_VARIABLE _cache OUTPUT_STRIP_TRAILING_WHITESPACE)
  execute_process(COMMAND mkdir -p ${_cache}/tmp ERROR_QUIET)
  execute_process(COMMAND test -w ${_cache}/tmp RESULT_VARIABLE _unwritable)
endif()
if(CCACHE AND _unwritable)
  message(STATUS "ccache: not used, its folder ${_cache} is not writable (`ccache --set-config cache_dir=DIR` sets another)")
elseif(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1
    CCACHE_SLOPPINESS=pch_defines,time_macros,locale ${CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()

add_library(isthmus_options INTERFACE)
# Warnings are errors with the compilers that scripts/compilers.sh tests. New warnings of later compilers must not
# break a user's build. -Wrestrict has false positives ("x" + std::to_string(n), g++ bug 105651).
set(warnings_are_errors $<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,15>>:-Werror>)
target_compile_options(isthmus_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor>
  $<$<COMPILE_LANGUAGE:CXX>:-fmacro-prefix-map=${CMAKE_SOURCE_DIR}/=>
  ${warnings_are_errors}
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>
  # Agreed state is exact: one rounding per operation, so no fused multiply-add anywhere.
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
if(CMAKE_UNITY_BUILD)
  # g++ collects garbage less often: a tenth of the compile time of a unit for two fifths more memory.
  target_compile_options(isthmus_options INTERFACE
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-expand=200 --param=ggc-min-heapsize=800000>)
  # In a unity unit g++ treats all sources but the first as headers: it would report their anonymous namespaces, and
  # constants of one source that parameters in another shadow.
  target_compile_options(isthmus_options INTERFACE
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage -Wno-shadow -Wshadow=local>)
endif()
if(ISTHMUS_SANITIZE)
  # -Og with line numbers only saves a third of the compile time. Off are warnings of uninitialised variables, which
  # are false in library templates; of mismatched new and delete, since g++ 12 inlines Asio's allocation of coroutine
  # frames here and then does not see that Asio frees them in the matching way; and g++'s ThreadSanitizer warning about
  # Asio's fences, which are used together with mutexes.
  # AddressSanitizer finds null pointers and wrong vtables anyway; checking for them takes a fifth of the compile
  # time.
  target_compile_options(isthmus_options INTERFACE -fsanitize=${ISTHMUS_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize=null,vptr -fno-sanitize-recover=all -Og -g1 -Wno-maybe-uninitialized
    $<$<CXX_COMPILER_ID:GNU>:-Wno-tsan -Wno-mismatched-new-delete>)
  if(ISTHMUS_SANITIZE MATCHES undefined)
    # UBSan checks the libraries only: in test code it would take a quarter of the compile time.
    target_compile_options(isthmus_options INTERFACE $<$<BOOL:$<TARGET_PROPERTY:ISTHMUS_TEST_CODE>>:-fno-sanitize=undefined
      $<$<CXX_COMPILER_ID:GNU>:--param=asan-instrumentation-with-call-threshold=0>>)
  endif()
  target_link_options(isthmus_options INTERFACE -fsanitize=${ISTHMUS_SANITIZE})
endif()
find_package(Threads REQUIRED)
target_link_libraries(isthmus_options INTERFACE Threads::Threads)
