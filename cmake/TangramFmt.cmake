# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0

# tangram_fmt: {fmt} for the sources of all layers, tests and the extension. Header-only, every unit that formats
# compiles all of its formatters anew, up to five seconds each; the shared library of a distribution would have to be
# there, of the very same version, wherever a built program runs. So src/core/fmt_library.cpp compiles it once, into
# tangram_core. Versions whose template list that file does not know are used header-only.

find_package(fmt 9 REQUIRED)

# Imported, so that exported layers may name it.
add_library(tangram_fmt INTERFACE IMPORTED)
if(fmt_VERSION VERSION_LESS 11)
  set(TANGRAM_FMT_SOURCES fmt_library.cpp)
  target_include_directories(
    tangram_fmt
    SYSTEM
    INTERFACE $<TARGET_PROPERTY:fmt::fmt-header-only,INTERFACE_INCLUDE_DIRECTORIES>
  )
else()
  target_link_libraries(tangram_fmt INTERFACE fmt::fmt-header-only)
endif()
