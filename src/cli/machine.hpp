// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What this machine has, found out without linking to any of it.
#pragma once

#include <string>
#include <vector>

namespace tangram::cli {

/// One thing that may be there, and what was found or why not.
struct Finding {
  std::string name;
  bool found = false;
  std::string detail;
};

struct CpuInfo {
  std::string name;
  int num_cores = 0;
  std::vector<std::string> features;  // the features that kernels use
};
CpuInfo probe_cpu();

/// GPUs by the CUDA driver, opened at run time; one finding with the reason where there is none.
std::vector<Finding> probe_gpus();
/// Libraries that transports open at run time.
Finding probe_nccl();
Finding probe_mpi();

}  // namespace tangram::cli
