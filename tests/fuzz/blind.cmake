# Builds the fuzzers with blind.cpp instead of libFuzzer, with the compiler and the libraries of the normal build.

# The main function of the fuzzers.
add_library(isthmus_blind OBJECT blind.cpp)
target_link_libraries(isthmus_blind PRIVATE isthmus_options)

# fuzz_program(NAME)
function(fuzz_program name)
  add_executable(${name} ${name}.cpp)
  if(NOT name MATCHES write_)  # has its own main
    target_link_libraries(${name} PRIVATE isthmus_blind)
  endif()
  target_link_libraries(${name} PRIVATE isthmus_options isthmus_fuzzed)
endfunction()

# Code outside the layers that fuzzers use: two observers of the coordinator without libtorch and sockets.
add_library(isthmus_fuzzed STATIC ${CMAKE_SOURCE_DIR}/app/coordinator/replan/replan_readings.cpp
  ${CMAKE_SOURCE_DIR}/app/coordinator/records/round_timeline.cpp)
target_link_libraries(isthmus_fuzzed PUBLIC isthmus_outer_sync isthmus_data isthmus_quant isthmus_base isthmus_base_objects
  PRIVATE isthmus_options)
target_include_directories(isthmus_fuzzed PUBLIC ${CMAKE_SOURCE_DIR}/app ${CMAKE_SOURCE_DIR}/base
  ${CMAKE_SOURCE_DIR}/quant ${CMAKE_SOURCE_DIR}/data ${CMAKE_SOURCE_DIR}/outer_sync)

# fuzz_test(NAME RUNS MAX_LENGTH MEGABYTES SEEDS ...): RUNS inputs of at most MAX_LENGTH bytes, the same each time. A
# single allocation of MEGABYTES fails the test (0: no limit).
function(fuzz_test name runs max_length megabytes)
  add_test(NAME ${name} COMMAND ${name} ${runs} ${max_length} ${ARGN})
  set_tests_properties(${name} PROPERTIES TIMEOUT 300 PROCESSORS 2)
  if(megabytes GREATER 0)
    set_tests_properties(${name} PROPERTIES ENVIRONMENT "ASAN_OPTIONS=max_allocation_size_mb=${megabytes}")
  endif()
endfunction()
