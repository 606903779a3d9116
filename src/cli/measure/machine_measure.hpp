// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What `tangram doctor --measure` measures: kernels, copies in memory, and the transport between ranks. Every rank
// measures at the same time, so that figures are those of a machine at work.
#pragma once

#include <string>
#include <vector>

#include "cli/machine_file.hpp"
#include "cli/measure/head_dims.hpp"
#include "tangram/communicator.hpp"

namespace tangram::cli {

struct MeasureOptions {
  std::vector<DType> dtypes;
  std::vector<HeadDims> head_dims;
  int64_t max_rows = 2048;  ///< of the largest attention call
  int num_repeats = 5;
};

/// Measured machine file, and how far the fitted constants are from the samples.
struct Measured {
  MachineFile file;
  std::vector<std::string> notes;  ///< a line for each fit
};

/// Refuses dtypes and head dims that no GPU kernel holds.
void check_gpu_measure(const MeasureOptions& options);

/// Measures the CPU. Runs one rank for each core as threads, or is one of the processes of mpirun. `is_root` says
/// whether this process has the result; others get an empty one.
Measured measure_machine(const MeasureOptions& options, bool& is_root);

/// Entries of `fresh` replace those of `known` that describe the same thing; others stay. Node constants are those of
/// `fresh`.
MachineFile merge_machine_files(MachineFile known, const MachineFile& fresh);

/// Like merge_machine_files, for a measurement of GPUs. Keeps the name of `known` and fields that `fresh` lacks
/// (without kernels the cost of a stage, without links the node size). If nothing is known these are the default
/// machine's; its kernels are dropped unless the device is the same.
MachineFile merge_gpu_measurement(const MachineFile& known, MachineFile fresh);

}  // namespace tangram::cli
