# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0

# The CMake package: `find_package(tangram)` gives `tangram::tangram`, all layers at once.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# Not named tangram: that is the program.
add_library(tangram_all INTERFACE)
set_target_properties(tangram_all PROPERTIES EXPORT_NAME tangram)
add_library(tangram::tangram ALIAS tangram_all)
set(installed tangram_all)
add_custom_target(tangram_library)
foreach(
  layer
  core
  machine
  schedule
  plan
  cuda
  attn_gpu
  attn_sm80
  attn_sm90
  attn
  comm
  runtime
)
  if(TARGET tangram_${layer})
    target_link_libraries(tangram_all INTERFACE tangram_${layer})
    list(APPEND installed tangram_${layer})
    add_dependencies(tangram_library tangram_${layer})
  endif()
endforeach()

install(TARGETS ${installed} ${TANGRAM_EXTRA_INSTALL_TARGETS} EXPORT tangram-targets)
install(DIRECTORY include/tangram TYPE INCLUDE)
install(FILES ${PROJECT_BINARY_DIR}/include/tangram/version.hpp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tangram)
# For TANGRAM_LIBRARY_TREE: as below, but where the archives are built.
file(
  CONFIGURE
  OUTPUT ${PROJECT_BINARY_DIR}/tangram-library.cmake
  @ONLY
  CONTENT
    [[
set(TANGRAM_HAVE_CUDA "@TANGRAM_HAVE_CUDA@")
if(TANGRAM_HAVE_CUDA)
  find_package(CUDAToolkit REQUIRED)
endif()
find_package(nlohmann_json REQUIRED)
include(${CMAKE_CURRENT_LIST_DIR}/tangram-library-targets.cmake)
]]
)
export(EXPORT tangram-targets FILE ${PROJECT_BINARY_DIR}/tangram-library-targets.cmake)
install(EXPORT tangram-targets NAMESPACE tangram:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tangram)
configure_package_config_file(
  cmake/tangram-config.cmake.in
  ${PROJECT_BINARY_DIR}/tangram-config.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tangram
)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tangram-config-version.cmake COMPATIBILITY SameMinorVersion)
install(
  FILES ${PROJECT_BINARY_DIR}/tangram-config.cmake ${PROJECT_BINARY_DIR}/tangram-config-version.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tangram
)
if(TARGET tangram)
  install(TARGETS tangram)
endif()
