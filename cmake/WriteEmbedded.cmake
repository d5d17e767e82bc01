# Run by the build: see Embed.cmake.
string(REPLACE "|" ";" pairs "${PAIRS}")
set(text "#include <string_view>\n\nnamespace ${NAMESPACE} {\n")
while(pairs)
  list(POP_FRONT pairs function file)
  file(READ ${file} bytes HEX)
  string(REGEX REPLACE "(..)" "'\\\\x\\1'," bytes "${bytes}")
  string(APPEND text "\nstatic constexpr char bytes_of_${function}[] = {${bytes}};\n"
    "std::string_view ${function}() { return {bytes_of_${function}, sizeof bytes_of_${function}}; }\n")
endwhile()
file(WRITE ${OUT} "${text}\n}  // namespace ${NAMESPACE}\n")
