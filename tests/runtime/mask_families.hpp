// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A mask of every family; by default small enough for dense references.
#pragma once

#include <cstdint>
#include <ostream>
#include <string_view>
#include <utility>
#include <vector>

#include "tangram/mask_builders.hpp"

namespace tangram::testing {

// 240 = 16 * 15 divides by 1, 2, 3, 4, 5, 6, 8 ranks with whole chunks of 5 or 10.
inline constexpr int64_t kSeqlen = 240;

struct NamedMask {
  const char* name;
  Mask mask;
};
inline void PrintTo(const NamedMask& family, std::ostream* stream) { *stream << family.name; }

/// Where the masks cut a sequence.
struct FamilySizes {
  int64_t seqlen = kSeqlen;
  std::vector<int64_t> cu_seqlens = {0, 17, 90, 91, 160, 240};
  Window window = {40, 9};
  Window window_of_documents = {20, 0};
  int64_t causal_block = 33;
  int64_t prefix_lm = 50;
  int64_t shared_prefix = 70;
  std::vector<int64_t> continuations = {70, 40, 60};
  Window window_beside_global = {30, 0};
  int64_t sparse_block_q = 40;
  int64_t sparse_block_k = 60;
};

inline std::vector<NamedMask> mask_families(const FamilySizes& sizes = {}) {
  const int64_t seqlen = sizes.seqlen;
  const std::vector<std::pair<int64_t, int64_t>> blocks = {{0, 0}, {0, 3}, {1, 2}, {3, 0}, {3, 3}, {5, 1}};
  return {
      {"Full", full_mask(seqlen, seqlen)},
      {"Causal", causal_mask(seqlen, seqlen)},
      {"VarlenCausal", varlen_mask(sizes.cu_seqlens, true)},
      {"VarlenFull", varlen_mask(sizes.cu_seqlens, false)},
      {"Window", sliding_window_mask(seqlen, sizes.window)},
      {"WindowOfDocuments", sliding_window_mask(sizes.cu_seqlens, sizes.window_of_documents)},
      {"BlockCausal", block_causal_mask(seqlen, sizes.causal_block)},
      {"PrefixLm", prefix_lm_mask(seqlen, sizes.prefix_lm)},
      {"SharedPrefix", shared_prefix_mask(sizes.shared_prefix, sizes.continuations)},
      {"GlobalWindow", global_window_mask(seqlen, 8, sizes.window_beside_global)},
      // Has rows and keys that see nothing.
      {"BlockSparse", block_sparse_mask(seqlen, seqlen, sizes.sparse_block_q, sizes.sparse_block_k, blocks)},
      {"Empty", Mask(seqlen, seqlen, {})},
  };
}

/// The place of a family among them.
inline int number_of(const NamedMask& family) {
  const std::vector<NamedMask> families = mask_families();
  int number = 0;
  while (std::string_view(families.at(static_cast<size_t>(number)).name) != family.name) ++number;
  return number;
}

}  // namespace tangram::testing
