// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What the backward pass of one mask keeps on the device: its work list and its workspace.
#pragma once

#include <cstdint>

#include "attn/sm90/backward/work_list.hpp"
#include "cuda/device_buffer.hpp"
#include "tangram/attention.hpp"

namespace tangram::sm90::backward {

/// The work list waits on the host until the first backward call, which uploads it and allocates the workspace; later
/// calls allocate nothing. Used by one call at a time (in stream order).
class Plan {
 public:
  Plan(WorkList work, const AttnShape& shape) : work_(std::move(work)), shape_(shape) {}

  /// Uploads and allocates what a call needs and is not there yet. Throws CudaError.
  void make_ready(bool deterministic);
  /// Fills in the pointers and sizes that come from the plan. After make_ready().
  void fill(Params& params, EdgeParams& edge, bool deterministic) const;

  int64_t num_items() const { return static_cast<int64_t>(work_.items.size()); }
  const uint64_t* covered_queries() const {
    return work_.covered_queries.empty() ? nullptr : covered_queries_.as<uint64_t>();
  }

 private:
  WorkList work_;
  AttnShape shape_;
  bool ready_ = false;
  bool turns_ready_ = false;
  cuda::DeviceBuffer items_, runs_, intervals_, covered_queries_;
  cuda::DeviceBuffer stats_, dq_sums_, slabs_, piece_turns_, ticket_, orders_, turns_;
};

}  // namespace tangram::sm90::backward
