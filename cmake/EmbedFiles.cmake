# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0

# Run as `cmake -DOUTPUT=x.cpp -DNAMESPACE=a::b -DHEADER=h -DFILES=kName=path;... -P EmbedFiles.cmake`: writes a source
# file with each file's contents as a std::string_view.

set(text "// Written by cmake/EmbedFiles.cmake.\n#include \"${HEADER}\"\n\nnamespace ${NAMESPACE} {\n\n")
foreach(entry IN LISTS FILES)
  string(REGEX MATCH "^([^=]+)=(.*)$" _ "${entry}")
  set(name ${CMAKE_MATCH_1})
  file(READ "${CMAKE_MATCH_2}" hex HEX)
  string(REGEX REPLACE "(................................)" "\\1\n" lines "${hex}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "\\\\x\\1" lines "${lines}")
  string(REPLACE "\n" "\"\n\"" lines "${lines}")
  string(LENGTH "${hex}" num_digits)
  math(EXPR num_bytes "${num_digits} / 2")
  string(APPEND text "const std::string_view ${name}(\n\"${lines}\", ${num_bytes});\n\n")
endforeach()
string(APPEND text "}  // namespace ${NAMESPACE}\n")
file(WRITE "${OUTPUT}" "${text}")
