# isthmus_layer(NAME SOURCES ... USES lower layers ... PUBLIC libraries ... PRIVATE libraries ... [WITHOUT_LOOPS])
# makes the library isthmus_NAME from one folder. Its headers are in NAME/include/isthmus/NAME and visible only to
# layers that list NAME in USES: an include that points up the stack does not compile. (outer_sync/ is a stack of
# such libraries with one include folder; there tests/layers checks each include.) WITHOUT_LOOPS: no loop of this
# layer limits the speed of a run, so it is compiled with -Og, which takes half the time.
function(isthmus_layer name)
  cmake_parse_arguments(L "WITHOUT_LOOPS" "" "SOURCES;USES;PUBLIC;PRIVATE" ${ARGN})
  add_library(isthmus_${name} STATIC ${L_SOURCES})
  target_include_directories(isthmus_${name}
    PUBLIC ${CMAKE_CURRENT_SOURCE_DIR}/include
    PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  if(L_WITHOUT_LOOPS)
    target_compile_options(isthmus_${name} PRIVATE $<$<CONFIG:Release>:-Og>)
  endif()
  list(TRANSFORM L_USES PREPEND isthmus_)
  target_link_libraries(isthmus_${name} PUBLIC ${L_USES} ${L_PUBLIC} PRIVATE isthmus_options ${L_PRIVATE})
endfunction()

# tests/runner/run_trees.py reads the tests' results from here, one case each.
set(ISTHMUS_RESULTS ${CMAKE_BINARY_DIR}/results)
file(MAKE_DIRECTORY ${ISTHMUS_RESULTS})

# isthmus_test(FOLDER USES layers ... SOURCES files ... [LIBRARIES ...] [TIMEOUT s] [SHARDS n] [COST n] [WITHOUT
# tests ...] [LONG] [COMPUTES]): one GoogleTest binary per folder, run as n processes, each of which takes every
# n-th test; entries with a higher COST start first. WITHOUT: tests to leave out, named as in --gtest_filter. LONG:
# the folder has suites called Long..., which take long or are variants of other tests, and run only with `tests/run.sh
# --long`. COMPUTES: the
# tests mostly compute instead of waiting, and so count as two of the tests that run at once; instrumented code
# always does.
function(isthmus_test folder)
  cmake_parse_arguments(T "LONG;COMPUTES" "TIMEOUT;SHARDS;COST" "SOURCES;USES;LIBRARIES;WITHOUT" ${ARGN})
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 900)
  endif()
  if(NOT T_COST)
    set(T_COST 0)
  endif()
  set(processors 1)
  if(T_COMPUTES OR ISTHMUS_SANITIZE)
    set(processors 2)
  endif()
  add_executable(test_${folder} ${T_SOURCES})
  list(TRANSFORM T_USES PREPEND isthmus_)
  target_include_directories(test_${folder} PRIVATE ${CMAKE_SOURCE_DIR}/tests/support)
  target_link_libraries(test_${folder} PRIVATE isthmus_options isthmus_test_paths ${T_USES} ${T_LIBRARIES}
    GTest::gmock GTest::gtest GTest::gtest_main)
  set_target_properties(test_${folder} PROPERTIES ISTHMUS_TEST_CODE ON)
  # Test code runs once: optimising it less saves compile time.
  target_compile_options(test_${folder} PRIVATE $<$<CONFIG:Release>:-Og>)
  list(JOIN T_WITHOUT ":" without)
  string(JOIN ":" short "-Long*" ${without})
  # The release build tests a property with the usual 100 cases. The sanitizers need fewer to exercise its code.
  set(environment)
  if(ISTHMUS_SANITIZE MATCHES thread)
    set(environment RC_PARAMS=max_success=10)
  elseif(ISTHMUS_SANITIZE)
    set(environment RC_PARAMS=max_success=30)
  endif()
  # Few ctest entries per binary, because starting a process costs more than most of these tests.
  if(T_SHARDS)
    foreach(shard RANGE 1 ${T_SHARDS})
      math(EXPR index "${shard} - 1")
      isthmus_gtest(${folder}.${shard} test_${folder} ${short})
      set_tests_properties(${folder}.${shard} PROPERTIES TIMEOUT ${T_TIMEOUT} COST ${T_COST} PROCESSORS ${processors}
        ENVIRONMENT "${environment};GTEST_TOTAL_SHARDS=${T_SHARDS};GTEST_SHARD_INDEX=${index}")
    endforeach()
  else()
    isthmus_gtest(${folder} test_${folder} ${short})
    set_tests_properties(${folder} PROPERTIES TIMEOUT ${T_TIMEOUT} COST ${T_COST} PROCESSORS ${processors}
      ENVIRONMENT "${environment}")
  endif()
  if(T_LONG)
    isthmus_gtest(${folder}.long test_${folder} Long*)
    set_tests_properties(${folder}.long PROPERTIES TIMEOUT ${T_TIMEOUT} PROCESSORS ${processors} LABELS long)
  endif()
endfunction()

# isthmus_gtest(NAME TARGET FILTER): one ctest entry.
function(isthmus_gtest name target filter)
  add_test(NAME ${name} COMMAND ${target} --gtest_filter=${filter} --gtest_output=xml:${ISTHMUS_RESULTS}/${name}.xml)
endfunction()
