# isthmus_layer(NAME SOURCES ... USES lower layers ... PUBLIC libraries ... PRIVATE libraries ...)
# makes the library isthmus_NAME from one folder. Headers live in NAME/include/isthmus/NAME and reach only those
# that name NAME in USES: an include that points up the stack does not compile.
function(isthmus_layer name)
  cmake_parse_arguments(L "" "" "SOURCES;USES;PUBLIC;PRIVATE" ${ARGN})
  add_library(isthmus_${name} STATIC ${L_SOURCES})
  target_include_directories(isthmus_${name}
    PUBLIC ${CMAKE_CURRENT_SOURCE_DIR}/include
    PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  list(TRANSFORM L_USES PREPEND isthmus_)
  target_link_libraries(isthmus_${name} PUBLIC ${L_USES} ${L_PUBLIC} PRIVATE isthmus_options ${L_PRIVATE})
endfunction()

# isthmus_test(FOLDER USES layers ... SOURCES files ... [LIBRARIES ...] [TIMEOUT s]): one GoogleTest binary per folder.
function(isthmus_test folder)
  cmake_parse_arguments(T "" "TIMEOUT" "SOURCES;USES;LIBRARIES" ${ARGN})
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 900)
  endif()
  add_executable(test_${folder} ${T_SOURCES})
  list(TRANSFORM T_USES PREPEND isthmus_)
  target_include_directories(test_${folder} PRIVATE ${CMAKE_SOURCE_DIR}/tests/support)
  target_link_libraries(test_${folder} PRIVATE isthmus_options ${T_USES} ${T_LIBRARIES}
    GTest::gmock GTest::gtest GTest::gtest_main)
  # Test code runs once: less to optimise is less to compile.
  target_compile_options(test_${folder} PRIVATE $<$<CONFIG:Release>:-O1>)
  # One ctest entry per binary: a process start costs more than most of these tests.
  add_test(NAME ${folder} COMMAND test_${folder} --gtest_brief=1)
  set_tests_properties(${folder} PROPERTIES TIMEOUT ${T_TIMEOUT})
endfunction()
