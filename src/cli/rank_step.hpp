// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// One rank's part in a step, over tensors in memory of either kind.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cli/step_inputs.hpp"
#include "tangram/dist_attention.hpp"

namespace tangram::cli {

struct PassFigures {
  double seconds = 0;      // from the moment that all ranks start until the last one has ended
  double cpu_seconds = 0;  // of this process
  TrafficCounters received;
  TrafficCounters across_nodes;
};

/// A rank in the memory in which it computes.
class StepRank {
 public:
  virtual ~StepRank() = default;
  virtual Communicator& control() = 0;
  virtual DistAttention& attention() = 0;
  virtual std::string transport() const = 0;
  /// Memory for a tensor, where that is not the host's; and copies to it from host memory, or the other way.
  virtual std::shared_ptr<void> allocate(int64_t /*num_bytes*/) { return nullptr; }
  virtual void copy(void* /*to*/, const void* /*from*/, int64_t /*num_bytes*/) {}
  /// Runs a pass on the stream that it is given. Collective.
  virtual PassFigures measure(const std::function<void(void* stream)>& pass) = 0;
};

/// Figures of one rank; vectors have an entry per repeat.
struct RankFigures {
  std::vector<PassFigures> forward;
  std::vector<PassFigures> backward;
};

/// Results of the rows of a rank, in host memory.
struct RankResults {
  HostTensor out, lse, dq, dk, dv;
};

/// The rank's part in all repeats. Collective.
RankResults run_rank(StepRank& rank, const Plan& plan, const StepInputs& inputs, const StepOptions& options,
                     RankFigures& figures);

}  // namespace tangram::cli
