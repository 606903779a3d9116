// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// In place of device_bench.cpp where there is no CUDA: no backend of such a build works on device memory.
#include "cli/measure/device_bench.hpp"
#include "tangram/backends.hpp"
#include "tangram/error.hpp"

namespace tangram::cli {

bool is_benched_on_device(const std::string& name) {
  if (name != "auto") make_attn_backend(name);  // refuses names that mean nothing or cannot run here
  return false;
}

DeviceBench bench_on_device(const Plan&, const StepOptions&) {
  throw NotAvailable("bench_on_device: this build has no GPU code: nvcc was not found");
}

}  // namespace tangram::cli
