# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0

# Every public header compiles alone: one generated source per header, built by `make lint`.

file(
  GLOB public_headers
  RELATIVE ${PROJECT_SOURCE_DIR}/include
  CONFIGURE_DEPENDS
  ${PROJECT_SOURCE_DIR}/include/tangram/*.hpp
)
set(sources)
foreach(header ${public_headers} tangram/version.hpp)
  string(MAKE_C_IDENTIFIER ${header} name)
  set(source ${PROJECT_BINARY_DIR}/header_check/${name}.cpp)
  # Twice, so that a missing include guard shows.
  file(CONFIGURE OUTPUT ${source} CONTENT "#include <${header}>\n#include <${header}>\n")
  list(APPEND sources ${source})
endforeach()
add_library(tangram_header_check OBJECT EXCLUDE_FROM_ALL ${sources})
target_link_libraries(tangram_header_check PRIVATE tangram_core)
tangram_set_warnings(tangram_header_check)
