// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What the backward pass of one mask keeps on the device: its work list and its workspace.
#pragma once

#include <cstdint>

#include "attn/sm90/backward/work_list.hpp"
#include "cuda/device_buffer.hpp"
#include "tangram/attention.hpp"

namespace tangram::sm90::backward {

/// Everything that calls need is uploaded and allocated on construction, for deterministic calls too: calls allocate
/// nothing. Used by one call at a time (in stream order).
class Plan {
 public:
  /// Throws CudaError.
  Plan(const WorkList& work, const AttnShape& shape);

  /// Fills in the pointers and sizes that come from the plan.
  void fill(Params& params, EdgeParams& edge, bool deterministic) const;

  int64_t num_items(bool deterministic) const { return deterministic ? num_deterministic_items_ : num_items_; }

 private:
  int32_t num_items_ = 0, num_deterministic_items_ = 0;
  int32_t num_q_tiles_ = 0;
  Walk walk_, deterministic_walk_;
  bool zeroed_sums_ = true;
  cuda::DeviceBuffer items_, deterministic_items_, runs_, run_tiles_, q_tiles_, intervals_, covered_queries_,
      turn_segments_;
  cuda::DeviceBuffer stats_, dq_sums_, slabs_, piece_turns_, ticket_, turns_;
};

}  // namespace tangram::sm90::backward
