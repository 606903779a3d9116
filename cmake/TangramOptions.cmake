# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0

# What can be switched, and the settings that hold for every target.

set(TANGRAM_CUDA AUTO CACHE STRING "Build GPU code: AUTO (where nvcc is found), ON or OFF")
set_property(CACHE TANGRAM_CUDA PROPERTY STRINGS AUTO ON OFF)
set(TANGRAM_MPI AUTO CACHE STRING "Build the transport mpi: AUTO (where OpenMPI's headers are found), ON or OFF")
set_property(CACHE TANGRAM_MPI PROPERTY STRINGS AUTO ON OFF)
option(TANGRAM_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(TANGRAM_BUILD_BENCHMARKS "Build the benchmarks" OFF)
option(TANGRAM_BUILD_PYTHON "Build the Python extension; needs nanobind (tools/setup_python.sh)" OFF)
set(TANGRAM_LIBRARY_TREE "" CACHE PATH "Build the Python extension alone, with the library of this build folder")
option(TANGRAM_FUZZ "Build the fuzz targets and nothing else; needs clang (make fuzz)" OFF)
option(TANGRAM_FUZZ_BESIDE "With clang and sanitizers: tests of fuzz targets search with libFuzzer" OFF)
option(TANGRAM_CPU_AVX512 "Build the CPU kernels of AVX-512, too" ON)
option(TANGRAM_WERROR "Treat compiler warnings as errors" OFF)
option(TANGRAM_PTXAS_REPORT "Keep what ptxas says beside the objects, for tools/check_ptxas.py" OFF)
set(
  TANGRAM_SM90_KERNELS
  all
  CACHE STRING
  "Hopper kernels to compile: all, or sample: bfloat16 alone, for any head dims only the largest classes without softcap"
)
set_property(CACHE TANGRAM_SM90_KERNELS PROPERTY STRINGS all sample)
if(NOT TANGRAM_SM90_KERNELS MATCHES "^(all|sample)$")
  message(FATAL_ERROR "TANGRAM_SM90_KERNELS must be all or sample (got ${TANGRAM_SM90_KERNELS})")
endif()
set(
  TANGRAM_SM80_ARCHITECTURES
  80-real
  86-real
  90-real
  120-real
  80-virtual
  CACHE STRING
  "Machine code and PTX of the kernels for GPUs of compute capability 8.0 and later, as CUDA_ARCHITECTURES"
)
set(TANGRAM_SANITIZE "" CACHE STRING "Sanitizers to build with, e.g. address;undefined or thread")
option(TANGRAM_QUICK_LAYERS "Optimise all layers but core and attn less: two thirds of the time to compile (CI)" OFF)
option(
  TANGRAM_SANITIZE_QUICK
  "With clang leave out the checks that cost most to compile (make sanitize-all has them)"
  OFF
)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON) # the Python extension links the same archives
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)

find_program(TANGRAM_CCACHE ccache)
if(TANGRAM_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Without these it keeps nothing that is compiled with a precompiled header.
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_ctime,include_file_mtime)
  list(APPEND CMAKE_CXX_COMPILER_LAUNCHER ${TANGRAM_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${TANGRAM_CCACHE})
endif()
if(TANGRAM_PTXAS_REPORT)
  list(PREPEND CMAKE_CUDA_COMPILER_LAUNCHER ${PROJECT_SOURCE_DIR}/tools/keep_ptxas_report.sh)
endif()
find_program(TANGRAM_MOLD mold)
if(
  TANGRAM_MOLD
  AND
    (
      CMAKE_CXX_COMPILER_ID MATCHES "Clang"
      OR (CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 12.1)
    )
)
  add_link_options($<$<LINK_LANGUAGE:CXX>:-fuse-ld=mold>)
endif()

if(NOT TANGRAM_CUDA STREQUAL "OFF" AND NOT TANGRAM_LIBRARY_TREE)
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_ARCHITECTURES 90a-real CACHE STRING "")
    set(CMAKE_CUDA_STANDARD 20)
    enable_language(CUDA)
    # CMake 3.25 does not know that nvcc 12 and later speak C++20.
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
    # An eighth of the size. Drivers that run what nvcc 13 makes can read it; those of nvcc 12 need not.
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13 AND NOT TANGRAM_PTXAS_REPORT)
      add_compile_options($<$<COMPILE_LANGUAGE:CUDA>:--compress-mode=size>)
    endif()
    find_package(CUDAToolkit REQUIRED)
    set(TANGRAM_HAVE_CUDA ON)
  elseif(TANGRAM_CUDA STREQUAL "ON")
    message(
      FATAL_ERROR
      "TANGRAM_CUDA=ON needs nvcc, which was not found; use TANGRAM_CUDA=AUTO to build without GPU code"
    )
  endif()
endif()

if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # libstdc++ 12 itself uses what it deprecates; clang tells.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-deprecated-declarations>)
endif()
if(TANGRAM_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
  add_link_options(-fsanitize=fuzzer-no-link)
endif()
if(TANGRAM_FUZZ_BESIDE AND NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  set(TANGRAM_FUZZ_BESIDE OFF) # they replay the corpus
endif()
# What guides libFuzzer, for the units that parse: for all code it costs half as much as compiling it.
set(TANGRAM_COVERAGE -fsanitize-coverage=inline-8bit-counters,indirect-calls,trace-cmp,pc-table)
if(TANGRAM_SANITIZE)
  list(JOIN TANGRAM_SANITIZE "," sanitizers)
  add_compile_options(
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${sanitizers}>
    $<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer>
    # What is wrong ends the program anyway (UBSAN_OPTIONS of the presets); so less code is compiled.
    $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=all>
  )
  add_link_options(-fsanitize=${sanitizers})
  set(TANGRAM_SANITIZE_NONE -fno-sanitize=all) # for references of tests, which are slow enough without
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    if(TANGRAM_SANITIZE_QUICK AND "address" IN_LIST TANGRAM_SANITIZE)
      # A quarter of the time to compile. A null pointer that is read ends the program without, too.
      add_compile_options(
        $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=null,alignment,vptr,object-size,function>
        $<$<COMPILE_LANGUAGE:CXX>:-fsanitize-address-use-after-return=never>
      )
    endif()
    # What g++ defines by itself: the host pool poisons what it keeps, and tests ask for it.
    foreach(sanitizer IN ITEMS address thread)
      if(sanitizer IN_LIST TANGRAM_SANITIZE)
        string(TOUPPER ${sanitizer} upper)
        add_compile_definitions(__SANITIZE_${upper}__)
      endif()
    endforeach()
  endif()
endif()

find_package(Threads REQUIRED)
