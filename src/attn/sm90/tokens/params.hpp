// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Parameters of the kernels for token indices, as plain data that host and device agree on.
#pragma once

#include <cstdint>

namespace tangram::sm90::tokens {

inline constexpr int kHeadDim = 128;  // of q, k and v
inline constexpr int kRowsOfWarpgroup = 64;

/// Parameters of the forward pass. Strides are in elements.
struct Params {
  const void* q;
  const void* k;
  const void* v;
  void* out;
  float* lse;              ///< [seqlen_q, num_heads_q]
  const int32_t* indices;  ///< [seqlen_q, num_heads_kv, topk]
  const int32_t* counts;   ///< [num_heads_kv, seqlen_q], see check.hpp
  int64_t q_row_stride, q_head_stride;
  int64_t k_row_stride, k_head_stride;
  int64_t v_row_stride, v_head_stride;
  int64_t out_row_stride, out_head_stride;
  int64_t topk;
  int32_t seqlen_q;
  int32_t num_heads_q, num_heads_kv;
  int32_t heads_per_kv;
  int32_t parts;            ///< of the query heads of a K/V head: work tiles of one list
  int32_t num_work_tiles;   ///< num_heads_kv * seqlen_q * parts, in this order
  float scale_log2;         ///< softmax_scale * log2(e)
  float rescale_threshold;  ///< by how much scores may exceed the reference of their row
  bool out_is_float32;      ///< else the dtype of q
};

/// Report of the GPU about refused lists: the last one, in 16 bytes that a thread stores at once, and their number so
/// far.
struct ControlBlock {
  struct alignas(16) Refused {
    int32_t row = 0;
    int32_t kv_head = 0;
    int32_t key = 0;
    int32_t is_repeated = 0;  ///< the key is named twice; else it is no row of k
  };
  Refused last;
  int32_t count = 0;
};

/// Keys that a warp of the check marks at a time, at most.
inline constexpr int kMostWindow = 1 << 18;

struct CheckParams {
  const int32_t* indices;
  int32_t* counts;
  int32_t* num_refused;         ///< of all calls on the device
  ControlBlock* control_block;  ///< in page-locked memory of the host
  int64_t topk;
  int64_t seqlen_k;
  int32_t seqlen_q, num_heads_kv;
  int32_t window;  ///< keys of a warp's bitmap, a multiple of 128, at most kMostWindow
};

}  // namespace tangram::sm90::tokens
