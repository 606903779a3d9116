// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What a step computes on: tensors from files or drawn, padded to the plan's lengths.
#pragma once

#include <cstdint>
#include <string>

#include "cli/options.hpp"
#include "cli/plan_summary.hpp"
#include "tangram/attention.hpp"
#include "tangram/tensor.hpp"

namespace CLI {
class App;
}

namespace tangram::cli {

/// Options of the verbs that compute.
struct StepOptions {
  std::string q_file;
  std::string k_file;
  std::string v_file;
  std::string dout_file;
  std::string backend = "auto";
  int64_t num_gpus = 0;        // 0: ranks compute on the CPU
  std::string transport;       // between GPUs; empty: copy_engine, between nodes nccl
  int64_t max_ctas = 0;        // of NCCL; 0: as many as the transport takes
  int64_t ranks_per_node = 0;  // 0: nodes as they are found
  double softmax_scale = 0;    // meant only when has_softmax_scale
  bool has_softmax_scale = false;
  double softcap = 0;
  bool deterministic = false;
  int64_t num_repeats = 1;
};
void add_step_options(CLI::App& app, StepOptions& options);
/// Adds the step options that say which processes are ranks and how rows move between GPUs.
void add_gpu_options(CLI::App& app, StepOptions& options);

/// Throws InvalidArgument for scales that are not finite or not positive.
AttnOptions make_attn_options(const StepOptions& options);

/// q, k, v and dout of all rows, in the step's dtype. Rows of padding are zero.
struct StepInputs {
  HostTensor q;
  HostTensor k;
  HostTensor v;
  HostTensor dout;
};

/// Tensors read from files, float32, not yet padded; empty where none is given.
struct FileTensors {
  HostTensor q;
  HostTensor k;
  HostTensor v;
  HostTensor dout;
};
/// Reads what the options name and sets the heads and dims of `dist` from it. Throws InvalidArgument when only some of
/// q, k and v are given, or shapes contradict each other or the options.
FileTensors read_tensors(const StepOptions& options, DistOptions& dist);

/// Throws InvalidArgument when a file has not as many rows as the mask.
///
/// Drawn data: element i of tensor t (q 0, k 1, v 2, dout 3; row-major index over the rows before padding) is the sum
/// of the four 16-bit parts of splitmix64(splitmix64(4 * seed + t) + i), centred and scaled to mean 0 and variance 1:
/// close to normal, and the same on every machine and for every distribution of rows.
StepInputs make_inputs(const PlanSummary& summary, const FileTensors& files, uint64_t seed);

}  // namespace tangram::cli
