// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What the instruction-set specific translation units offer, and the plain structs that go in. Nothing here pulls in
// inline library code: a copy of it compiled for AVX-512 could be the one that the linker keeps for everybody.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attn/cpu/tile_index.hpp"
#include "attn/large_lse.hpp"
#include "tangram/dtype.hpp"

namespace tangram::cpu {

/// `[rows, heads, dim]` with contiguous dim; strides in elements.
struct Tokens {
  const void* data;
  DType dtype;
  int64_t row_stride;
  int64_t head_stride;
  int dim;
};

struct MutableTokens {
  void* data;
  DType dtype;
  int64_t row_stride;
  int64_t head_stride;
  int dim;
};

/// Data of the backward pass for rows with a large lse, computed as the forward pass computes out and lse.
struct ExactRows {
  Tokens dout;
  bool as_float32;  // computes scores of bfloat16 in float32, as a backward pass does whose dout is float32
  double* lse;      // [seqlen_q, num_heads_q], not rounded
  float* delta;     // [seqlen_q, num_heads_q], of an out that was not rounded either
};

struct ForwardJob {
  Tokens q, k, v;
  MutableTokens out;
  float* lse;              // [seqlen_q, num_heads_q]
  const double* sink_lse;  // [sink_rows, num_heads_q] or null
  bool sink_per_row;       // one row of sink_lse for each query
  bool accumulate;
  int num_heads_q;
  int group;  // query heads that share a KV head
  float scale;
  float softcap;
  const ExactRows* exact;  // or null: written in place of out and lse, without accumulate
};

struct BackwardJob {
  Tokens q, k, v, dout;
  const float* lse;       // [seqlen_q, num_heads_q]
  const float* lse_rest;  // [seqlen_q, num_heads_q] or null: what lse lost by rounding, NaN where that is unknown
  const float* delta;     // [seqlen_q, num_heads_q]
  MutableTokens dq;       // float32, added to
  MutableTokens dk, dv;
  bool accumulate_dkv;
  int num_heads_q;
  int group;
  float scale;
  float softcap;
  // NOTE [order of dq]: key tiles add to the same dq rows. `progress[head * num_grid_rows + row / kQueryGrid]` counts
  // the tiles that have; a tile adds when the count is its turn, so that sums do not depend on threads.
  int* progress;
  int64_t num_grid_rows;
};

/// Query rows of a backward block; blocks do not cross its multiples.
inline constexpr int kQueryGrid = 64;

/// Waits until `*progress == turn`, sees what was written before; then `finish_turn` lets the next one in.
void wait_for_turn(const int* progress, int turn);
void finish_turn(int* progress, int turn);

/// One instruction set's kernels.
struct Kernels {
  const char* name;
  /// Scratch of one thread; 64-byte aligned when passed in.
  size_t (*forward_scratch_bytes)(const ForwardJob& job);
  size_t (*backward_scratch_bytes)(const BackwardJob& job);
  /// Writes out and lse of the tile's rows for query head `head`; returns the largest visible raw q.k.
  float (*forward_tile)(const ForwardJob& job, const TileIndex& index, const LaneTile& tile, int head, void* scratch);
  /// delta[head] = sum(out * dout) of row `row`, for all heads.
  void (*row_delta)(const BackwardJob& job, const Tokens& out, int64_t row, float* delta, void* scratch);
  /// Writes dk and dv of the tile's rows for KV head `kv_head` and adds to dq. `turns[i]`: the turn of block i.
  void (*backward_tile)(const BackwardJob& job, const TileIndex& index, const LaneTile& tile, int kv_head,
                        const int* turns, void* scratch);
};

extern const Kernels kBaselineKernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
extern const Kernels kAvx512Bf16Kernels;

}  // namespace tangram::cpu
