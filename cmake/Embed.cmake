# isthmus_embed(OUT NAMESPACE FUNCTION FILE [FUNCTION FILE ...]) generates a C++ source with functions that return
# the bytes of files as std::string_view.
function(isthmus_embed out namespace)
  list(LENGTH ARGN length)
  math(EXPR last "${length} - 1")
  set(files)
  foreach(i RANGE 1 ${last} 2)
    list(GET ARGN ${i} file)
    list(APPEND files ${file})
  endforeach()
  # A CMake list would be split on the command line.
  string(REPLACE ";" "|" pairs "${ARGN}")
  add_custom_command(OUTPUT ${out}
    COMMAND ${CMAKE_COMMAND} -DOUT=${out} -DNAMESPACE=${namespace} "-DPAIRS=${pairs}"
            -P ${CMAKE_SOURCE_DIR}/cmake/WriteEmbedded.cmake
    DEPENDS ${files} ${CMAKE_SOURCE_DIR}/cmake/WriteEmbedded.cmake
    VERBATIM)
endfunction()
