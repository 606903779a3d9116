# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0

# One function for each kind of target, so that all are built alike.

configure_file(${PROJECT_SOURCE_DIR}/cmake/version.hpp.in ${PROJECT_BINARY_DIR}/include/tangram/version.hpp @ONLY)

function(tangram_set_warnings target)
  target_compile_options(
    ${target}
    PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-Wall
      -Wextra
      -Wpedantic
      -Wno-missing-field-initializers>
      $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wshadow=local>
  )
  if(TANGRAM_WERROR)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
  endif()
endfunction()

# tangram_add_layer(plan SOURCES a.cpp b.cpp DEPENDS core [LINK_PRIVATE nlohmann_json::nlohmann_json])
#
# A static library tangram_<name>. Layers link what they depend on publicly, third-party libraries privately.
function(tangram_add_layer name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;DEPENDS;LINK_PRIVATE")
  set(target tangram_${name})
  add_library(${target} STATIC ${arg_SOURCES})
  target_include_directories(
    ${target}
    PUBLIC
      $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
      $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
      $<INSTALL_INTERFACE:include>
    PRIVATE ${PROJECT_SOURCE_DIR}/src
  )
  list(TRANSFORM arg_DEPENDS PREPEND tangram_)
  # Header-only, so that a built program needs no libfmt of the very same version where it runs.
  target_link_libraries(
    ${target}
    PUBLIC ${arg_DEPENDS}
    PRIVATE $<BUILD_INTERFACE:fmt::fmt-header-only> ${arg_LINK_PRIVATE}
  )
  tangram_set_warnings(${target})
endfunction()

# tangram_add_test(core SOURCES slice_test.cpp ... DEPENDS core [LABELS cpu])
#
# A GoogleTest program test_<name>; its cases become ctest tests with the labels (default: cpu). The target gpu_tests
# builds all programs with the label gpu.
function(tangram_add_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;DEPENDS;LABELS;LINK_PRIVATE")
  if(NOT arg_LABELS)
    set(arg_LABELS cpu)
  endif()
  set(target test_${name})
  add_executable(${target} ${arg_SOURCES})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
  list(TRANSFORM arg_DEPENDS PREPEND tangram_)
  target_link_libraries(
    ${target}
    PRIVATE ${arg_DEPENDS} ${arg_LINK_PRIVATE} fmt::fmt-header-only GTest::gtest_main GTest::gmock
  )
  target_compile_definitions(${target} PRIVATE TANGRAM_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data")
  tangram_set_warnings(${target})
  if("gpu" IN_LIST arg_LABELS)
    if(NOT TARGET gpu_tests)
      add_custom_target(gpu_tests)
    endif()
    add_dependencies(gpu_tests ${target})
  endif()
  gtest_discover_tests(${target} TEST_PREFIX "${name}." DISCOVERY_TIMEOUT 120 PROPERTIES LABELS "${arg_LABELS}")
endfunction()
