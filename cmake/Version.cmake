# The commit is read at build time, so that `isthmus --version` names the code that was built. The header is written
# only when it changes.
add_custom_target(isthmus_version_header
  COMMAND ${CMAKE_COMMAND} -DSOURCE=${CMAKE_SOURCE_DIR} -DOUT=${CMAKE_BINARY_DIR}/generated/isthmus_commit.h
          -P ${CMAKE_SOURCE_DIR}/cmake/WriteCommit.cmake
  BYPRODUCTS ${CMAKE_BINARY_DIR}/generated/isthmus_commit.h
  VERBATIM)
