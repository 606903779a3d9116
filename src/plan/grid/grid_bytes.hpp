// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Bytes that a grid moves, in closed form, from its shape and the rows of a rank. So a plan, the choice of a strategy
// and the simulator count the same.
#pragma once

#include <cstdint>

#include "plan/grid/grid.hpp"
#include "plan/stages.hpp"

namespace tangram {

/// A grid and the rows of a rank's shards. `config` must outlive it.
struct GridSizes {
  const DistAttnConfig& config;
  GridShape shape;
  int64_t q_rows = 0;
  int64_t k_rows = 0;
};

/// Bytes that one rank receives in the head exchange, on the way to heads and back, and in how many copies from each
/// peer.
struct HeadBytes {
  int64_t in = 0;
  int64_t back = 0;
  int in_copies = 0;
  int back_copies = 0;
};
/// Bytes of a chunk of `heads_kv` K/V heads with their query heads.
HeadBytes head_bytes(const GridSizes& sizes, const GridCall& call, AttnPass pass, int heads_kv);

/// One block as a rank receives it from another row group, and its gradients.
struct BlockBytes {
  int64_t kv = 0;
  int64_t dkv = 0;
};
BlockBytes block_bytes(const GridSizes& sizes);

GridTraffic grid_traffic(const GridSizes& sizes, const GridCall& call);

// What a rank reads and writes in its own memory, beside what a single call over all keys would.
/// Of a call that adds to results which are there: these, and backward also out and dout again and the kernel's own dq.
int64_t further_call_bytes(const HeadConfig& heads, AttnPass pass, int64_t q_rows, int64_t heads_q);
/// Bytes read and written to round float32 sums to results; 0 if results are float32.
int64_t rounding_bytes(const HeadConfig& heads, AttnPass pass, int64_t q_rows, int64_t heads_q);
/// Bytes copied to pack heads for other ranks, or to unpack them, with the rank's own share of `exchanged` bytes.
int64_t head_copy_bytes(int64_t exchanged, int ulysses_degree);

/// The call that predictions are for: everything in the dtype of the inputs, q, k, v, out and lse kept by heads.
GridCall predicted_call(const HeadConfig& heads);

}  // namespace tangram
