// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Random masks as data of a GPU, and the slices that they are.
#pragma once

#include <algorithm>
#include <random>
#include <vector>

#include "schedule/serial_build.hpp"

namespace tangram::schedule::builder {

inline ImageCase case_of(int64_t rows, int64_t keys, int heads_q, int heads_kv, const MaskCapacity& capacity) {
  return {.shape = {rows, keys, heads_q, heads_kv, 128, 128, DType::kBFloat16},
          .forward = {heads_q == heads_kv ? 128 : 16, 128},
          .capacity = capacity};
}

/// For random_pack().
inline std::vector<ImageCase> document_cases() {
  const MaskCapacity both{.documents = 80};
  return {case_of(3000, 3000, 8, 1, both),
          case_of(3000, 3000, 4, 4, both),
          case_of(2048, 900, 16, 2, both),
          case_of(700, 2500, 6, 2, both),
          case_of(3000, 3000, 8, 2, {.documents = 80, .passes = AttnPasses::kForward}),
          case_of(3000, 3000, 8, 2, {.documents = 80, .passes = AttnPasses::kBackward}),
          case_of(0, 500, 2, 1, both),
          case_of(500, 0, 2, 1, both)};
}

struct Pack {
  std::vector<int32_t> q, k;
  int64_t left = -1, right = -1;
};

inline Documents documents_of(const Pack& pack) {
  Documents documents;
  documents.cu_q = pack.q.data();
  documents.cu_k = pack.k.data();
  documents.count = static_cast<int32_t>(pack.q.size()) - 1;
  documents.left = pack.left;
  documents.right = pack.right;
  return documents;
}

/// A slice for each document, none joined to another.
inline SliceLists slices_of(const Pack& pack) {
  SliceLists lists;
  for (size_t i = 0; i + 1 < pack.q.size(); ++i) {
    AttnSlice slice = AttnSlice::full({pack.q[i], pack.q[i + 1]}, {pack.k[i], pack.k[i + 1]});
    const int64_t diagonal = int64_t{pack.k[i + 1]} - pack.q[i + 1];
    if (pack.left >= 0) slice.min_diag = diagonal - pack.left;
    if (pack.right >= 0) slice.max_diag = diagonal + pack.right;
    lists.by_rows.push_back(slice);
  }
  lists.by_keys = lists.by_rows;
  return lists;
}

inline int64_t number(std::mt19937& rng, int64_t least, int64_t most) {
  return std::uniform_int_distribution<int64_t>(least, most)(rng);
}

/// Documents of a few kinds of lengths, some of them empty.
inline std::vector<int32_t> random_ends(std::mt19937& rng, int64_t rows, int count) {
  std::vector<int32_t> ends{0};
  const int64_t longest = number(rng, 0, 2) == 0 ? 3 : number(rng, 0, 1) == 0 ? 150 : 2 * rows / count;
  while (static_cast<int>(ends.size()) < count) {
    ends.push_back(static_cast<int32_t>(std::min<int64_t>(rows, ends.back() + number(rng, 0, longest))));
  }
  ends.push_back(static_cast<int32_t>(rows));
  return ends;
}

/// Up to 80 documents, causal, whole or in windows.
inline Pack random_pack(std::mt19937& rng, const ImageCase& c) {
  const int count = static_cast<int>(number(rng, 1, 80));
  const bool is_square = c.shape.seqlen_q == c.shape.seqlen_k;
  Pack pack;
  pack.q = random_ends(rng, c.shape.seqlen_q, count);
  pack.k = is_square && number(rng, 0, 4) > 0 ? pack.q : random_ends(rng, c.shape.seqlen_k, count);
  if (number(rng, 0, 3) > 0) pack.right = number(rng, 0, 2) == 0 ? number(rng, 0, 100) : 0;
  if (number(rng, 0, 2) == 0) pack.left = number(rng, 0, 300);
  return pack;
}

}  // namespace tangram::schedule::builder
