# `cmake --install DIR --prefix P` makes a relocatable tree. Its lib/ gets the Debian libraries that the programs need. The C
# and C++ run-time libraries are the system's; libtorch is found when a verb needs it.
install(TARGETS isthmus isthmus-coordinator RUNTIME DESTINATION bin COMPONENT programs)
if(SKBUILD) # pip install ./python: without a trainer, with the libraries of this machine
  install(TARGETS isthmus isthmus-coordinator RUNTIME DESTINATION isthmus/bin COMPONENT python)
endif()
install(FILES ${CMAKE_SOURCE_DIR}/docs/grafana/isthmus.json DESTINATION share/isthmus/grafana COMPONENT programs)
# The installed quickstart trains on the installed documentation.
file(READ ${CMAKE_SOURCE_DIR}/configs/quickstart.yaml _quickstart)
string(REGEX REPLACE "\n  path: [^\n]*" "\n  path: ../../doc/isthmus # any folder with text" _quickstart "${_quickstart}")
file(WRITE ${CMAKE_BINARY_DIR}/generated/quickstart.yaml "${_quickstart}")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/configs/quickstart.yaml)
install(FILES ${CMAKE_BINARY_DIR}/generated/quickstart.yaml DESTINATION share/isthmus/configs COMPONENT programs)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/docs/ DESTINATION share/doc/isthmus COMPONENT programs FILES_MATCHING PATTERN "*.md"
  PATTERN "*.svg")
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE ${CMAKE_SOURCE_DIR}/CHANGELOG.md DESTINATION share/doc/isthmus COMPONENT programs)
# Finds dependencies from the programs in the build tree, which load this machine's libraries. Installed programs would load
# the libraries of an earlier install.
install(CODE "
  set(isthmus_programs $<TARGET_FILE:isthmus> $<TARGET_FILE:isthmus-coordinator>)
  set(isthmus_trainer $<$<TARGET_EXISTS:isthmus_trainer_library>:$<TARGET_FILE:isthmus_trainer_library>>)
" COMPONENT programs)
install(CODE [[
  file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${isthmus_programs} MODULES ${isthmus_trainer}
    RESOLVED_DEPENDENCIES_VAR found UNRESOLVED_DEPENDENCIES_VAR missing
    PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|pthread|gcc_s|stdc\\+\\+|gomp)\\.so"
      "^libtorch" "^libc10" "^libcud" "^libcupti" "^libnccl")
  if(missing)
    message(FATAL_ERROR "libraries that the programs need are not on this machine: ${missing}")
  endif()
  foreach(library ${found})
    file(INSTALL ${library} DESTINATION ${CMAKE_INSTALL_PREFIX}/lib FOLLOW_SYMLINK_CHAIN)
  endforeach()
  set(prefix $ENV{DESTDIR}${CMAKE_INSTALL_PREFIX})
  set(share ${prefix}/share)
  file(MAKE_DIRECTORY ${share}/bash-completion/completions ${share}/zsh/site-functions)
  execute_process(COMMAND ${prefix}/bin/isthmus completion bash
    OUTPUT_FILE ${share}/bash-completion/completions/isthmus COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${prefix}/bin/isthmus completion zsh
    OUTPUT_FILE ${share}/zsh/site-functions/_isthmus COMMAND_ERROR_IS_FATAL ANY)
]] COMPONENT programs)
