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

# What most sources include, parsed once: core's, which all layers share, as one set of flags holds for all.
set(
  TANGRAM_PRECOMPILED
  <algorithm>
  <array>
  <atomic>
  <chrono>
  <cmath>
  <condition_variable>
  <cstdint>
  <cstring>
  <functional>
  <limits>
  <map>
  <memory>
  <mutex>
  <numeric>
  <optional>
  <set>
  <span>
  <string>
  <string_view>
  <thread>
  <utility>
  <vector>
  <fmt/format.h>
)

# The headers of TANGRAM_PRECOMPILED, parsed once for all targets of a kind, whose flags are alike: by the first of them.
function(tangram_share_precompiled target kind)
  get_property(first GLOBAL PROPERTY TANGRAM_${kind}_PRECOMPILED)
  if(first)
    target_precompile_headers(${target} REUSE_FROM ${first})
  else()
    target_precompile_headers(${target} PRIVATE ${TANGRAM_PRECOMPILED})
    set_property(GLOBAL PROPERTY TANGRAM_${kind}_PRECOMPILED ${target})
  endif()
endfunction()

# tangram_add_layer(
#   plan SOURCES a.cpp b.cpp DEPENDS core [LINK_PRIVATE nlohmann_json::nlohmann_json] [ALONE a.cpp] [LIGHT] [GLUE]
# )
#
# A static library tangram_<name>. Layers link what they depend on publicly, third-party libraries privately. Sources of
# a folder are compiled by fives, but those ALONE: most of what a unit compiles are templates that all units share.
# Names in anonymous namespaces of five neighbours must differ. LIGHT: it computes so little that with sanitizers, where
# optimising takes most of the time to compile, it is not optimised. GLUE: it calls what computes, and is optimised a
# little everywhere, which takes two thirds of the time to compile. TANGRAM_QUICK_LAYERS takes all but core and attn for glue.
function(tangram_add_layer name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "LIGHT;GLUE" "" "SOURCES;DEPENDS;LINK_PRIVATE;ALONE")
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
  target_link_libraries(${target} PUBLIC ${arg_DEPENDS} PRIVATE $<BUILD_INTERFACE:tangram_fmt> ${arg_LINK_PRIVATE})
  tangram_set_warnings(${target})
  # Tests of threads plan little. The precompiled header of core serves attn, too, which computes.
  if(TANGRAM_SANITIZE STREQUAL "thread" AND NOT name MATCHES "^(attn|core)$")
    set(arg_LIGHT TRUE)
  endif()
  if(arg_LIGHT AND TANGRAM_SANITIZE)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O0>)
    tangram_share_precompiled(${target} LIGHT)
  elseif(
    CMAKE_BUILD_TYPE STREQUAL "Release"
    AND (arg_GLUE OR (TANGRAM_QUICK_LAYERS AND NOT name MATCHES "^attn|^core"))
  )
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1>)
    tangram_share_precompiled(${target} GLUE)
  elseif(name STREQUAL "core")
    target_precompile_headers(${target} PRIVATE ${TANGRAM_PRECOMPILED})
  else()
    target_precompile_headers(${target} REUSE_FROM tangram_core)
  endif()
  set(joined ${arg_SOURCES})
  list(FILTER joined INCLUDE REGEX "\\.cpp$")
  if(arg_ALONE)
    list(REMOVE_ITEM joined ${arg_ALONE})
  endif()
  tangram_join_folders(${target} ${joined})
endfunction()

# tangram_join_sources(cli verbs app.cpp bench_verb.cpp ...)
#
# Compiles these sources of a layer as one unit, because a library that they share costs more than they do. Names in
# their anonymous namespaces must differ.
function(tangram_join_sources layer group)
  set_source_files_properties(${ARGN} PROPERTIES UNITY_GROUP ${group})
endfunction()

# tangram_guide_fuzzing(plan json)
#
# Lets libFuzzer see how far it comes in a unit that tangram_join_sources made.
function(tangram_guide_fuzzing layer group)
  if(TANGRAM_FUZZ_BESIDE)
    set_source_files_properties(
      ${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/tangram_${layer}.dir/Unity/unity_${group}_cxx.cxx
      PROPERTIES COMPILE_OPTIONS "${TANGRAM_COVERAGE}"
    )
  endif()
endfunction()

# Joins sources of a target by fives of a folder.
function(tangram_join_folders target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  foreach(source ${ARGN})
    get_filename_component(folder ${source} DIRECTORY)
    string(MAKE_C_IDENTIFIER "in_${folder}" group)
    if(NOT DEFINED ${group}_count)
      set(${group}_count 0)
    endif()
    math(EXPR number "${${group}_count} / 5")
    math(EXPR ${group}_count "${${group}_count} + 1")
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group}_${number})
  endforeach()
endfunction()

# tangram_set_test_flags(test_plan [LIGHT])
#
# Warnings as everywhere; little optimisation, because what computes is in the library (LIGHT: none with sanitizers, as in
# tangram_add_layer); and what every test includes, parsed once (tests/CMakeLists.txt).
function(tangram_set_test_flags target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "LIGHT" "" "")
  tangram_set_warnings(${target})
  set(optimisation -O1)
  set(precompiled tangram_test_precompiled)
  if(arg_LIGHT AND TANGRAM_SANITIZE)
    set(optimisation -O0)
    set(precompiled tangram_light_test_precompiled)
  endif()
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${optimisation}>)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF) # which programs and objects spell alike
  if(target STREQUAL precompiled)
    target_precompile_headers(${target} PRIVATE ${TANGRAM_PRECOMPILED} <gmock/gmock.h> <gtest/gtest.h>)
  else()
    target_precompile_headers(${target} REUSE_FROM ${precompiled})
  endif()
endfunction()

# tangram_add_test(core SOURCES slice_test.cpp ... DEPENDS core [LABELS cpu] [SHARDS 2] [ALONE slice_test.cpp] [LIGHT]
#   [COST 30])
#
# A GoogleTest program test_<name>, its sources joined as those of a layer, which is one ctest test <name> with the labels (default: cpu), or SHARDS of them,
# <name>.1 and so on, that run beside each other. With the label gpu each case is a test of its own, in a process of its
# own, because an error on a GPU stays with the process; the target gpu_tests builds all such programs. COST, about how
# many seconds it takes under sanitizers: the longest begin first, so that none is left to run alone at the end. LIGHT is
# that of tangram_set_test_flags.
function(tangram_add_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "LIGHT" "SHARDS;COST" "SOURCES;DEPENDS;LABELS;LINK_PRIVATE;ALONE")
  if(NOT arg_LABELS)
    set(arg_LABELS cpu)
  endif()
  set(target test_${name})
  add_executable(${target} ${arg_SOURCES})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
  list(TRANSFORM arg_DEPENDS PREPEND tangram_)
  target_link_libraries(
    ${target}
    PRIVATE ${arg_DEPENDS} ${arg_LINK_PRIVATE} tangram_test_sums tangram_fmt GTest::gtest_main GTest::gmock
  )
  target_compile_definitions(${target} PRIVATE TANGRAM_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data")
  set(light)
  if(arg_LIGHT)
    set(light LIGHT)
  endif()
  if(NOT arg_COST)
    set(arg_COST 1)
  endif()
  tangram_set_test_flags(${target} ${light})
  if("gpu" IN_LIST arg_LABELS)
    if(NOT TARGET gpu_tests)
      add_custom_target(gpu_tests)
    endif()
    add_dependencies(gpu_tests ${target})
    gtest_discover_tests(${target} TEST_PREFIX "${name}." DISCOVERY_TIMEOUT 120 PROPERTIES LABELS "${arg_LABELS}")
    return()
  endif()
  set(joined ${arg_SOURCES})
  if(arg_ALONE)
    list(REMOVE_ITEM joined ${arg_ALONE})
  endif()
  tangram_join_folders(${target} ${joined})
  if(arg_SHARDS)
    foreach(shard RANGE 1 ${arg_SHARDS})
      math(EXPR index "${shard} - 1")
      add_test(NAME ${name}.${shard} COMMAND ${target})
      set_tests_properties(
        ${name}.${shard}
        PROPERTIES
          LABELS "${arg_LABELS}"
          COST ${arg_COST}
          ENVIRONMENT "GTEST_TOTAL_SHARDS=${arg_SHARDS};GTEST_SHARD_INDEX=${index}"
      )
    endforeach()
  else()
    add_test(NAME ${name} COMMAND ${target})
    set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" COST ${arg_COST})
  endif()
endfunction()
