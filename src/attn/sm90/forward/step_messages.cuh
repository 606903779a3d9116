// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// What a step is to each consumer warpgroup of the forward kernel: which window of the tile it sees, where it must
// mask.
#pragma once

#include "attn/sm90/common/run_rows.cuh"
#include "attn/sm90/forward/packing.cuh"
#include "attn/sm90/forward/params.hpp"
#include "attn/sm90/forward/smem.cuh"

namespace tangram::sm90 {

/// SeenKeys of query rows [first, last].
__device__ __forceinline__ SeenKeys seen_keys(const TileRange& run, int32_t first, int32_t last) {
  if (run.interval_begin >= 0) return {run.k_begin, run.k_end, run.full_begin, run.full_end};
  const int32_t seen_first = max(first, run.row_begin), seen_last = min(last, run.row_end - 1);
  if (seen_first > seen_last) return {0, 0, 0, 0};
  SeenKeys seen;
  seen.see_begin = max(run.slice_k_begin, seen_first + run.min_diag);
  seen.see_end = min(run.slice_k_end, seen_last + run.max_diag + 1);
  seen.full_begin = max(run.slice_k_begin, seen_last + run.min_diag);
  seen.full_end = seen_first == first && seen_last == last ? min(run.slice_k_end, seen_first + run.max_diag + 1) : 0;
  return seen;
}

/// The word without flags of the work tile: the part of the tile at k0 on which a warpgroup works, and where it must
/// mask. Keys before `first_key` are not of this step.
template <typename Traits>
__device__ __forceinline__ uint32_t step_window(const SeenKeys& seen, int32_t k0, int32_t first_key) {
  constexpr int32_t kGroups16 = Traits::kBlockN / 16;
  const int32_t begin = (max(seen.see_begin, first_key) - k0) & ~15;
  const int32_t end = min(seen.see_end - k0, Traits::kBlockN);
  if (begin >= end) return 0;
  const int32_t full_begin = max(seen.full_begin, first_key) - k0, full_end = min(seen.full_end - k0, Traits::kBlockN);
  const int32_t first = min((full_begin + 15) / 16, kGroups16), last = max(full_end, 0) / 16;
  const uint32_t unmasked = first < last ? (1u << last) - (1u << first) : 0;
  const uint32_t masked = ((1u << kGroups16) - 1) & ~unmasked;
  const bool steady = max(full_begin, begin) < min(full_end, end);
  return pack_window(begin / 16, (end - begin + 15) / 16) | (steady ? kStepSteady : kStepNone) |
         (masked << kStepMaskShift);
}

template <typename Traits>
__device__ __forceinline__ void fill_words(StepMessage& message, uint32_t word) {
#pragma unroll
  for (int w = 0; w < Traits::kConsumers; ++w) message.word[w] = word;
}

/// Keys of the run that each warpgroup sees.
template <typename Traits>
__device__ __forceinline__ void find_seen(const ForwardParams& params, ForwardSmem<Traits>& smem,
                                          const MaskTile& work_tile, const TileRange& run) {
  const int32_t last_row = work_tile.row_end - 1;
  if constexpr (Traits::kAnyGqaRatio) {
#pragma unroll 1
    for (int w = 0; w < Traits::kConsumers; ++w) {
      const int32_t first_row = work_tile.row_begin + query_row_of<Traits>(params, 64 * w);
      const int32_t end_row = work_tile.row_begin + query_row_of<Traits>(params, 64 * w + 63);
      smem.seen[w] = first_row <= last_row ? seen_keys(run, first_row, min(end_row, last_row)) : SeenKeys{0, 0, 0, 0};
    }
    return;
  }
  const int32_t rows = 64 >> params.pack_log2;
#pragma unroll
  for (int w = 0; w < Traits::kConsumers; ++w) {
    const int32_t first_row = work_tile.row_begin + w * rows;
    smem.seen[w] =
        first_row <= last_row ? seen_keys(run, first_row, min(first_row + rows - 1, last_row)) : SeenKeys{0, 0, 0, 0};
  }
}

/// The message of the tile at k0; `unread`: the warpgroups have not been told to read the run's row intervals.
template <typename Traits>
__device__ __forceinline__ void write_message(const ForwardParams& params, const ForwardSmem<Traits>& smem,
                                              StepMessage& message, const TileRange& run, int32_t k0, int32_t first_key,
                                              int32_t k_end, bool first_of_work_tile, bool& unread) {
  uint32_t flags = first_of_work_tile ? kStepFirst : kStepNone;
  // Past the sequence TMA writes zeros, past the run's end there may be rows that no query sees.
  const bool gathered = Traits::kGathered && run.group_begin >= 0;
  if (k0 + Traits::kBlockN > k_end && (gathered || k_end < params.seqlen_k)) flags |= kStepTail;
  message.k0 = k0;
  message.first_key = first_key;
  message.v_valid = k_end - k0;
  uint32_t words[Traits::kConsumers], all = 0;
#pragma unroll
  for (int w = 0; w < Traits::kConsumers; ++w) {
    words[w] = step_window<Traits>(smem.seen[w], k0, first_key) | flags;
    all |= words[w];
  }
  uint32_t new_run = 0;
  if (unread && all >> kStepMaskShift != 0) {
    unread = false;
    new_run = kStepNewRun;
    describe_run(message, run);
  }
#pragma unroll
  for (int w = 0; w < Traits::kConsumers; ++w) message.word[w] = words[w] | new_run;
}

}  // namespace tangram::sm90
