# Builds the fuzzers with libFuzzer. clang compiles them and the code under test, independently of the build's compiler.
find_program(ISTHMUS_CLANG NAMES clang++ clang++-14)

set(fuzz_flags -std=c++20 -O1 -g1 -Wall -Wextra -ffp-contract=off -fno-omit-frame-pointer
  -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all)
if(ISTHMUS_CLANG)
  file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/probe.cpp
    "#include <cstddef>\nextern \"C\" int LLVMFuzzerTestOneInput(const unsigned char*, std::size_t) { return 0; }\n")
  execute_process(COMMAND ${ISTHMUS_CLANG} ${fuzz_flags} probe.cpp -o probe
    WORKING_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR} RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
endif()
if(NOT ISTHMUS_CLANG OR failed)
  message(FATAL_ERROR "found no clang++ with libFuzzer: install it (Debian: clang, libclang-rt-14-dev; "
    "`scripts/setup.sh --tests fuzz` does) and configure again")
endif()

set(libraries)
foreach(library hwy crypto isal pcre2-8 utf8proc zstd lz4 simdjson yaml-cpp)
  find_library(fuzz_${library} ${library} REQUIRED)
  list(APPEND libraries ${fuzz_${library}})
endforeach()
set(includes -DFMT_HEADER_ONLY)
foreach(folder base quant data outer_sync app)
  list(APPEND includes -I${CMAKE_SOURCE_DIR}/${folder})
endforeach()
foreach(folder base quant data outer_sync)
  list(APPEND includes -I${CMAKE_SOURCE_DIR}/${folder}/include)
endforeach()

# fuzz_object(SOURCE): builds an object file and sets `object` to its path.
function(fuzz_object source)
  file(RELATIVE_PATH name ${CMAKE_SOURCE_DIR} ${source})
  string(REPLACE "/" "_" name ${name})
  set(object ${CMAKE_CURRENT_BINARY_DIR}/${name}.o)
  add_custom_command(OUTPUT ${object}
    COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${ISTHMUS_CLANG} ${fuzz_flags} ${includes}
      -MD -MT ${object} -MF ${object}.d -c ${source} -o ${object}
    DEPENDS ${source} DEPFILE ${object}.d COMMENT "Building ${name}.o for the fuzzers" VERBATIM)
  set(object ${object} PARENT_SCOPE)
endfunction()

# One archive with all code that fuzzers use; each links what it needs. New sources in these folders are included.
file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/base/*.cpp ${CMAKE_SOURCE_DIR}/base/objects/s3_answers.cpp ${CMAKE_SOURCE_DIR}/quant/*.cpp ${CMAKE_SOURCE_DIR}/data/*/*.cpp
  ${CMAKE_SOURCE_DIR}/outer_sync/core/*.cpp
  ${CMAKE_SOURCE_DIR}/outer_sync/protocol/*.cpp ${CMAKE_SOURCE_DIR}/outer_sync/protocol/coordinator/*.cpp
  ${CMAKE_SOURCE_DIR}/outer_sync/protocol/coordinator/*/*.cpp
  ${CMAKE_SOURCE_DIR}/outer_sync/config/*.cpp
  ${CMAKE_SOURCE_DIR}/outer_sync/log/*.cpp ${CMAKE_SOURCE_DIR}/outer_sync/plan/*.cpp
  ${CMAKE_SOURCE_DIR}/outer_sync/net/wire/*.cpp ${CMAKE_SOURCE_DIR}/outer_sync/net/rate/*.cpp)
list(FILTER sources EXCLUDE REGEX "/device_cuda.cpp$")
list(APPEND sources ${CMAKE_SOURCE_DIR}/outer_sync/net/state_transfer/state_frames.cpp
  ${CMAKE_SOURCE_DIR}/app/coordinator/replan/replan_readings.cpp ${CMAKE_SOURCE_DIR}/app/coordinator/records/round_timeline.cpp)
set(objects)
foreach(source ${sources})
  fuzz_object(${source})
  list(APPEND objects ${object})
endforeach()
set(archive ${CMAKE_CURRENT_BINARY_DIR}/libfuzzed.a)
add_custom_command(OUTPUT ${archive} COMMAND ${CMAKE_COMMAND} -E rm -f ${archive} COMMAND ${CMAKE_AR} qcs ${archive} ${objects}
  DEPENDS ${objects} COMMENT "Archiving the code under test" VERBATIM)

# fuzz_program(NAME)
function(fuzz_program name)
  fuzz_object(${CMAKE_CURRENT_SOURCE_DIR}/${name}.cpp)
  set(program ${CMAKE_CURRENT_BINARY_DIR}/${name})
  set(flags ${fuzz_flags})
  if(name MATCHES write_)  # has its own main
    string(REPLACE "fuzzer," "fuzzer-no-link," flags "${flags}")
  endif()
  add_custom_command(OUTPUT ${program}
    COMMAND ${ISTHMUS_CLANG} ${flags} ${object} ${archive} -Wl,--as-needed ${libraries} -o ${program}
    DEPENDS ${object} ${archive} COMMENT "Linking ${name}" VERBATIM)
  add_custom_target(${name}_program ALL DEPENDS ${program})
endfunction()

# fuzz_test(NAME RUNS MAX_LENGTH MEGABYTES SEEDS ...): NAME has RUNS inputs, the same each time; NAME.long runs for a
# minute with other inputs each time. A single allocation of MEGABYTES fails the test (0: no limit). New inputs are kept
# in a folder that is emptied before each run, not in the sources.
function(fuzz_test name runs max_length megabytes)
  foreach(entry ${name} ${name}.long)
    set(inputs -runs=${runs} -seed=1)
    if(entry MATCHES long)
      set(inputs -max_total_time=60)
    endif()
    add_test(NAME ${entry} COMMAND sh -c "rm -rf '${entry}.found' && mkdir '${entry}.found' && exec './${name}' \"$@\"" sh
      ${inputs} -max_len=${max_length} -malloc_limit_mb=${megabytes} -rss_limit_mb=2048 -verbosity=0 -print_final_stats=1
      ${entry}.found ${ARGN})
    set_tests_properties(${entry} PROPERTIES TIMEOUT 600 PROCESSORS 2)
  endforeach()
endfunction()
