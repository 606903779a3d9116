# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0

# Short names for the presets of CMakePresets.json; `make help` lists them.

.DEFAULT_GOAL := help
# Where there is no GPU, its kernels, minutes of compiling, are left out unless PRESET=dev asks for them.
GPUS_HERE := $(wildcard /dev/nvidia[0-9]* /dev/dxg)
PRESET ?= $(if $(GPUS_HERE),dev,cpu)
ifeq ($(PRESET),cpu)
say_preset = @echo "build: without GPU code since there is no GPU here (PRESET=dev builds it where nvcc is)"
endif
PYTHON_FLAGS = -DTANGRAM_BUILD_PYTHON=ON -DPython_EXECUTABLE=$(CURDIR)/.venv/bin/python

.PHONY: help setup build demo test test-long test-gpu soak sanitize-gpu bench-gpu bench-dist kernels check-kernels wheel image sanitize sanitize-memory sanitize-threads sanitize-all fuzz docs lint format clean

help: ## This list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: ## Install what the build needs (Debian 12 or Ubuntu 24.04 and later)
	@tools/setup.sh

build: setup ## Build everything that this machine can run
	$(say_preset)
	@cmake --preset $(PRESET) $(if $(VERBOSE),,> /dev/null)
	@cmake --build --preset $(PRESET)

demo: setup ## Build, then plan a packed batch, compute a smaller one and verify it; ends in out/demo_report.html
	$(say_preset)
	@cmake --preset $(PRESET) -DTANGRAM_BUILD_TESTS=OFF > /dev/null
	@cmake --build --preset $(PRESET) --target tangram
	@tools/demo.sh build/$(PRESET)/bin/tangram

test: setup ## Build and run the tests that need no GPU; what takes long by nature is sampled
	$(say_preset)
	@tools/setup_python.sh
	@cmake --preset $(PRESET) -DTANGRAM_BUILD_TESTS=ON $(PYTHON_FLAGS) > /dev/null
	@cmake --build --preset $(PRESET)
	@ctest --preset $(PRESET)

test-long: setup ## As test, but whole: sweeps of thousands of cases, soaks, wheels from sources (half an hour)
	@tools/setup_python.sh
	@tools/setup_stacks.sh
	@TANGRAM_TEST_LONG=1 $(MAKE) --no-print-directory test

test-gpu: setup ## Build and run the tests that need a Hopper GPU
	@tools/setup_python.sh
	@cmake --preset cuda -DTANGRAM_BUILD_TESTS=ON $(PYTHON_FLAGS) > /dev/null
	@cmake --build --preset cuda --target gpu_tests tangram_python
	@ctest --test-dir build/cuda -L gpu --output-on-failure --no-tests=error
	@if command -v compute-sanitizer > /dev/null; then tools/sanitize_gpu.sh build/cuda/bin; fi

sanitize-gpu: setup ## compute-sanitizer over the Hopper kernels on small shapes
	@cmake --preset cuda -DTANGRAM_BUILD_TESTS=ON > /dev/null
	@cmake --build --preset cuda --target test_attn_sm90 racecheck_reproducer initcheck_reproducer memcheck_reproducer
	@tools/sanitize_gpu.sh build/cuda/bin

kernels: setup ## Compile and check all GPU kernels, and record of which sources; UPDATE=1 where their code is to change
	@cmake --preset kernels > /dev/null
	@tools/check_ptxas.py build/kernels
	@tools/check_machine_code.py build/kernels $(if $(UPDATE),--update,--record)

check-kernels: setup ## Compile a sample of the GPU kernels: no spills, no serialised wgmma, all as `make kernels` left it
	@cmake --preset ci > /dev/null
	@tools/check_ptxas.py build/ci
	@tools/check_machine_code.py build/ci

bench-gpu: setup ## Measure the Hopper kernels beside cuDNN (needs a Hopper GPU, and torch in python3)
	@cmake --preset cuda -DTANGRAM_BUILD_BENCHMARKS=ON > /dev/null
	@cmake --build --preset cuda --target tangram_sm90_bench
	@python3 benchmarks/attn/sm90_vs_cudnn.py build/cuda/lib/libtangram_sm90_bench.so

SOAK_SECONDS ?= 1800
SOAK_PIECE ?= 120
SOAK_DEVICE ?= cpu
SOAK_RANKS ?= 4
soak: setup ## Training steps for SOAK_SECONDS (1800) over SOAK_RANKS (4) on SOAK_DEVICE (cpu, cuda); a rank is killed in each piece
	$(say_preset)
	@tools/setup_python.sh
	@cmake --preset $(PRESET) -DTANGRAM_BUILD_TESTS=OFF $(PYTHON_FLAGS) > /dev/null
	@cmake --build --preset $(PRESET) --target tangram_python
	@PYTHONPATH=build/$(PRESET)/python .venv/bin/python tools/soak.py --seconds $(SOAK_SECONDS) --piece $(SOAK_PIECE) --device $(SOAK_DEVICE) --ranks $(SOAK_RANKS)

GPUS ?= $(shell nvidia-smi -L 2> /dev/null | wc -l)
bench-dist: setup ## Measure distributed attention over GPUS Hopper GPUs (all of this host); NODES=2 HOSTS=a,b: of each
ifdef NODES
	@cmake --preset cuda > /dev/null
	@cmake --build --preset cuda --target tangram
	@python3 benchmarks/runtime/several_nodes.py build/cuda/bin/tangram --nodes $(NODES) --hosts $(HOSTS) --gpus $(GPUS) --json out/several_nodes.json $(OPTIONS)
else
	@cmake --preset cuda -DTANGRAM_BUILD_BENCHMARKS=ON > /dev/null
	@cmake --build --preset cuda --target bench_dist_gpu
	@mkdir -p out && python3 benchmarks/runtime/all_gpus.py build/cuda/bin/bench_dist_gpu --gpus $(GPUS) --csv out/dist_gpu.csv
endif

DIST ?= dist
WHEEL_PRESET ?= $(if $(shell command -v nvcc),cuda,cpu)
wheel: setup ## Wheels in dist/ for Python 3.10, 3.11, and 3.12 and later, with GPU kernels where nvcc is found
	@cmake --preset $(WHEEL_PRESET) > /dev/null
	@cmake --build --preset $(WHEEL_PRESET) --target tangram_library
	@tools/build_wheels.py build/$(WHEEL_PRESET) $(DIST)

IMAGE ?= tangram
image: wheel ## A container image with the Python package (needs docker, or podman as DOCKER=podman)
	@$(or $(DOCKER),docker) build --tag $(IMAGE) .

sanitize: sanitize-memory sanitize-threads ## The CPU tests under ASan + UBSan, the threaded ones under TSan

sanitize-memory: setup ## The CPU tests under ASan + UBSan, and three seconds of every fuzz target
	@tools/sanitize.sh asan

sanitize-all: setup ## As sanitize-memory, with the checks and instruction sets that CI leaves out
	@tools/sanitize.sh asan-all

sanitize-threads: setup ## The threaded tests under TSan
	@tools/sanitize.sh tsan --target test_comm test_runtime -- -R '^(comm|runtime)(\.[0-9]+)?$$'

FUZZ_SECONDS ?= 10
fuzz: setup ## Run every fuzz target for FUZZ_SECONDS (10), all code guiding it, with clang, ASan and UBSan
	@tools/fuzz.sh $(FUZZ_SECONDS)

docs: ## Make the C++ API reference in build/docs/html
	@tools/docs.sh

lint: setup ## Formatting, spelling, layers, self-contained headers
	@tools/lint.sh
	@cmake --preset cpu > /dev/null && cmake --build --preset cpu --target tangram_header_check

format: setup ## Rewrite sources in the project's format
	@tools/lint.sh --fix

clean: ## Remove everything that was built
	@rm -rf build out .venv
