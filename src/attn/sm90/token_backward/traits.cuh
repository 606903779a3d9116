// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Compile-time shape of the kernel, and the messages of its threads. The shared-memory plan is that of query_backward.
#pragma once

#include "attn/sm90/query_backward/traits.cuh"
#include "attn/sm90/token_backward/params.hpp"

namespace tangram::sm90::token_backward {

inline constexpr int kProducerWarps = 4;
inline constexpr uint32_t kAllBlocks = (1u << kRowBlocks) - 1;

using query_backward::kStepFirst;
using query_backward::kStepLast;
using query_backward::kStepOddWorkTile;
using query_backward::kStepStop;

/// Written by the planner before it arrives on planned.
struct alignas(16) StepMessage {
  int32_t kind;       ///< a sum of query_backward::StepKind
  int32_t count;      ///< of keys, from here to the end of the work tile; 0: a work tile that sees nothing
  int64_t first;      ///< where they begin, in ListParams::keys, or indices where work tiles are one query
  int32_t work_tile;  ///< through all head groups
  int32_t kv_head;
  int32_t first_head;
  int32_t first_query;
  uint32_t seen_blocks;  ///< ListHead::seen_blocks
};

/// Traits for exactly this head_dim of q, k and v.
template <typename ElementT, int kHeadDimT>
struct Traits : query_backward::Traits<ElementT, kHeadDimT> {
  using Params = token_backward::Params;
  using Message = StepMessage;
  using SmemType = query_backward::Smem<Traits>;
  static constexpr int kProducerRegisters = 56;  // 56 + 2 * 224 = 3 * 168, what the launch gives
  static constexpr int kConsumerRegisters = 224;
  static constexpr bool kOrdered = false;
};

/// Traits of deterministic calls. Work tiles store their contributions to keys, a row for each entry of their lists.
/// The next kernel (collect.cuh) adds them in the order of work tiles. This includes work tiles of one query.
template <typename ElementT, int kHeadDimT>
struct OrderedTraits : Traits<ElementT, kHeadDimT> {
  using SmemType = query_backward::Smem<OrderedTraits>;
  static constexpr bool kOrdered = true;
};

/// Whether work tiles have lists of their own, or their indices are the list.
template <typename Traits>
__device__ __forceinline__ bool has_lists(const ListParams& lists) {
  return Traits::kOrdered || lists.packing.tokens > 1;
}
template <typename Traits>
__device__ __forceinline__ bool are_indices(const ListParams& lists) {
  return !Traits::kOrdered && lists.packing.tokens == 1;
}

/// Key `at` of the step, perhaps with kNanInK and kNanInV, or -1.
template <typename Traits>
__device__ __forceinline__ int32_t step_key(const ListParams& lists, const StepMessage& message, int32_t at) {
  const int32_t* keys = are_indices<Traits>(lists) ? lists.indices : lists.keys;
  return at < message.count ? __ldg(keys + message.first + at) : -1;
}

/// Which column sum `index` of a row is: TokenConsumer::add_sums adds 32 at once, four from each of eight threads.
__device__ __forceinline__ int sum_column(int index) {
  const int turn = index / 32 % 2, thread = index / 4 % 8, i = index % 4;
  return index / 64 * 64 + thread / 4 * 32 + turn * 16 + i / 2 * 8 + thread % 4 * 2 + i % 2;
}

}  // namespace tangram::sm90::token_backward
