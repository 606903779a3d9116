// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Masks as data that a program has computed, in the memory of a backend: on a GPU, no host has seen them.
#pragma once

#include <cstdint>
#include <variant>

#include "tangram/mask_builders.hpp"

namespace tangram {

/// Packed documents: queries [q[i], q[i + 1]) see keys [k[i], k[i + 1]). Lists start at 0, do not decrease and end with
/// the lengths of the sequences. Documents may be empty, so that lists of one length serve packs of fewer documents.
struct CuSeqlens {
  const void* q = nullptr;  // [documents + 1], int32 or int64
  const void* k = nullptr;  // likewise; null: those of q
  bool is_int64 = false;
  int64_t documents = 0;
  /// Causal, aligned at the end: a document's last query sees up to its last key, each earlier query one key fewer.
  bool causal = false;
  /// Keys around that diagonal; on its right causal wins.
  Window window;
};

/// Chosen blocks of keys: queries [i * block_size, (i + 1) * block_size) see those blocks of as many keys whose numbers
/// stand in row i. The last block of a sequence may be short.
struct BlockTable {
  /// [head_groups, ceil(seqlen_q / block_size), width], int32 or int64, padded at the end by -1.
  const void* indices = nullptr;
  bool is_int64 = false;
  int64_t width = 0;
  int64_t block_size = 0;  // at least 16
  /// Besides, no query sees a key behind it; sequences must have one length.
  bool causal = false;
  /// Groups of heads with blocks of their own, as the MaskBuffer is made for.
  int head_groups = 1;
};

/// Typed ranges in any order: queries q_ranges[i] see keys k_ranges[i] as MaskType types[i] says. None may show a cell
/// that another shows.
struct RangeList {
  const void* q_ranges = nullptr;  // [count, 2], int32 or int64: begin and end
  const void* k_ranges = nullptr;  // likewise
  const void* types = nullptr;     // [count], likewise; null: all are of `type`
  MaskType type = MaskType::kFull;
  bool is_int64 = false;  // all three lists
  int64_t count = 0;
};

using MaskData = std::variant<CuSeqlens, BlockTable, RangeList>;

}  // namespace tangram
