// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The transports between GPUs over which tests of programs run, and what those tests share. Need a Hopper GPU; skipped
// elsewhere.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <ostream>
#include <vector>

#include "runtime/device/device_step.hpp"
#include "tangram/backends.hpp"

namespace tangram::testing {

// Before CUDA starts. Where ranks share a GPU, no kernel may be loaded while another waits, which loading would wait
// for.
[[maybe_unused]] inline const int kLoading = setenv("CUDA_MODULE_LOADING", "EAGER", 0);

struct Transport {
  const char* name;
  MakeCommunicator make;
  bool shares_gpus = true;  // several ranks on one GPU
  bool on_device = true;    // the host never waits, nor moves rows
};
inline void PrintTo(const Transport& transport, std::ostream* stream) { *stream << transport.name; }

inline MakeCommunicator over(DeviceTransport transport) {
  return [transport](Communicator& control) {
    return make_device_communicator(
        control, {.transport = transport, .timeout_s = 20, .lockstep = must_keep_step(control.size())});
  };
}

inline std::vector<Transport> transports() {
  return {{"Blocking", make_blocking, true, false}, {"CopyEngine", over(DeviceTransport::kCopyEngine), true, true}};
}
inline Transport nccl() { return {"Nccl", over(DeviceTransport::kNccl), false, true}; }

class OverTransports : public ::testing::TestWithParam<Transport> {
 protected:
  void SetUp() override {
    if (!have_hopper()) GTEST_SKIP() << "needs a Hopper GPU";
    if (!GetParam().shares_gpus && num_gpus() < 2) GTEST_SKIP() << "needs a GPU for each rank";
  }
  bool can(int num_ranks) const { return GetParam().shares_gpus || num_ranks <= num_gpus(); }
};

inline StepResults cpu_step(const Mask& mask, const StepOptions& options, const StepInputs& inputs) {
  static const std::unique_ptr<AttnBackend> cpu = make_attn_backend("cpu");
  return single_step(mask, options, inputs, *cpu);
}

}  // namespace tangram::testing
