// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What the backward pass of one mask keeps on the device: its work list. What a call computes in is the caller's.
#pragma once

#include <cstdint>

#include "attn/sm90/backward/call_layout.hpp"
#include "attn/sm90/backward/params.hpp"
#include "cuda/packed_arrays.hpp"
#include "schedule/work_list.hpp"
#include "tangram/attention.hpp"

namespace tangram::sm90::backward {

/// Its copy is enqueued on construction, for deterministic calls too: calls allocate nothing.
class DeviceWorkList {
 public:
  /// Throws CudaError.
  DeviceWorkList(const schedule::WorkList& work, const AttnShape& shape);

  /// Fills in the pointers and sizes that come from the list, and those of `workspace`: workspace_bytes(), of any
  /// content, for one call at a time.
  void fill(Params& params, PrePostParams& pre_post, bool deterministic, void* workspace) const;
  size_t workspace_bytes() const { return workspace_bytes_; }
  /// Before each call that reads the list is put on `stream`. Throws CudaError.
  void before_call(cudaStream_t stream) const { lists_.before_call(stream); }

  int64_t num_work_tiles(bool deterministic) const {
    return deterministic ? num_deterministic_work_tiles_ : num_work_tiles_;
  }
  size_t device_bytes() const { return lists_.device_bytes(); }

 private:
  int32_t num_work_tiles_ = 0, num_deterministic_work_tiles_ = 0;
  int32_t num_q_tiles_ = 0;     // of a mask
  int32_t heads_per_mask_ = 0;  // as in PrePostParams
  int32_t num_accum_tiles_ = 0;
  CallLayout call_;  // NOTE [capacity]
  Walk walk_, deterministic_walk_;
  bool zeroed_sums_ = true;
  cuda::PackedArrays lists_;
  cuda::PackedArray work_tiles_, deterministic_work_tiles_, runs_, run_tiles_, q_tiles_, intervals_, covered_queries_,
      turn_segments_;
  size_t workspace_bytes_ = 0;
};

}  // namespace tangram::sm90::backward
