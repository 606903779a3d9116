// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// The part of a message by which consumers find the interval of each row of their tile in a key range. It is in closed
// form (a band of diagonals of one slice), or the place of the rows' listed intervals.
#pragma once

#include <cstdint>

#include "tangram/tile_list.hpp"

namespace tangram::sm90 {

// A message holds the fields that are named here. They are no struct of their own, because the compiler would lose
// their alignment and store one word at a time.

/// Puts a run into a message.
template <typename Message>
__device__ __forceinline__ void describe_run(Message& message, const TileRange& run) {
  message.row_begin = run.row_begin;
  message.row_end = run.row_end;
  message.slice_begin = run.slice_k_begin;
  message.slice_end = run.slice_k_end;
  message.min_diag = run.min_diag;
  message.max_diag = run.max_diag;
  message.interval_begin = run.interval_begin;
}

/// Visible keys of a row. In closed form (interval_begin < 0) `row` in [row_begin, row_end) sees
/// [interval_begin_of(row), interval_end_of(row)), others nothing.
template <typename Message>
__device__ __forceinline__ int32_t interval_begin_of(const Message& message, int32_t row) {
  return max(message.slice_begin, row + message.min_diag);
}
template <typename Message>
__device__ __forceinline__ int32_t interval_end_of(const Message& message, int32_t row) {
  return min(message.slice_end, row + message.max_diag + 1);
}

}  // namespace tangram::sm90
