# Writes a C++ file with the bytes of files in it:
#   cmake -DOUT=x.cpp "-DFILES=name=path;name=path" -P embed_files.cmake
# It defines kEmbeddedFiles of server/embedded_files.h.
set(arrays "")
set(table "")
set(index 0)
foreach(entry IN LISTS FILES)
  string(REGEX MATCH "^([^=]+)=(.*)$" matched "${entry}")
  set(name "${CMAKE_MATCH_1}")
  file(READ "${CMAKE_MATCH_2}" hex HEX)
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${hex}")
  string(APPEND arrays "constexpr unsigned char kFile${index}[] = {${bytes}0};\n")
  string(APPEND table "    {\"${name}\", {kFile${index}, sizeof(kFile${index}) - 1}},\n")
  math(EXPR index "${index} + 1")
endforeach()
file(WRITE "${OUT}.new" "// Made by cmake/embed_files.cmake.
#include \"server/embedded_files.h\"

namespace gapless {
namespace {
${arrays}
constexpr EmbeddedFile kFiles[] = {
${table}};
}  // namespace

std::span<const EmbeddedFile> embedded_files() { return kFiles; }

}  // namespace gapless
")
file(RENAME "${OUT}.new" "${OUT}")
