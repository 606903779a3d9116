// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A mask of every family, small enough for dense references.
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

inline std::vector<NamedMask> mask_families() {
  const std::vector<int64_t> cu_seqlens = {0, 17, 90, 91, 160, 240};
  const std::vector<int64_t> continuations = {70, 40, 60};
  const std::vector<std::pair<int64_t, int64_t>> blocks = {{0, 0}, {0, 3}, {1, 2}, {3, 0}, {3, 3}, {5, 1}};
  return {
      {"Full", full_mask(kSeqlen, kSeqlen)},
      {"Causal", causal_mask(kSeqlen, kSeqlen)},
      {"VarlenCausal", varlen_mask(cu_seqlens, true)},
      {"VarlenFull", varlen_mask(cu_seqlens, false)},
      {"Window", sliding_window_mask(kSeqlen, {40, 9})},
      {"WindowOfDocuments", sliding_window_mask(cu_seqlens, {20, 0})},
      {"BlockCausal", block_causal_mask(kSeqlen, 33)},
      {"PrefixLm", prefix_lm_mask(kSeqlen, 50)},
      {"SharedPrefix", shared_prefix_mask(70, continuations)},
      {"GlobalWindow", global_window_mask(kSeqlen, 8, {30, 0})},
      {"BlockSparse", block_sparse_mask(kSeqlen, kSeqlen, 40, 60, blocks)},  // rows and keys that see nothing
      {"Empty", Mask(kSeqlen, kSeqlen, {})},
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
