// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Builders of the usual masks, and the published helpers that describe them as typed ranges.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "tangram/mask.hpp"

namespace tangram {

/// Keys that a query sees around its own position: `left` before and `right` after it, itself included; -1 is
/// unbounded.
struct Window {
  int64_t left = -1;
  int64_t right = -1;

  friend bool operator==(const Window&, const Window&) = default;
};

Mask full_mask(int64_t seqlen_q, int64_t seqlen_k);
/// Bottom-right aligned when the lengths differ.
Mask causal_mask(int64_t seqlen_q, int64_t seqlen_k);

/// Packed documents: queries `[cu_q[i], cu_q[i+1])` see keys `[cu_k[i], cu_k[i+1])`, all or causally. Both lists start
/// at 0, do not decrease and have equal length; the last entry is the sequence length.
Mask varlen_mask(std::span<const int64_t> cu_seqlens_q, std::span<const int64_t> cu_seqlens_k, bool causal);
Mask varlen_mask(std::span<const int64_t> cu_seqlens, bool causal);

/// Query i sees keys [i - left, i + right].
Mask sliding_window_mask(int64_t seqlen, Window window);
/// Sliding window within each document; if a document's numbers of queries and keys differ, the last of both are
/// aligned.
Mask sliding_window_mask(std::span<const int64_t> cu_seqlens, Window window);
Mask sliding_window_mask(std::span<const int64_t> cu_seqlens_q, std::span<const int64_t> cu_seqlens_k, Window window);

/// Query i sees every key of its own block and of all blocks before it. Blocks start at multiples of `block_size`, the
/// last may be short.
Mask block_causal_mask(int64_t seqlen, int64_t block_size);
/// Block-causal mask within each document, blocks counted from its start.
Mask block_causal_mask(std::span<const int64_t> cu_seqlens, int64_t block_size);

/// The first `prefix` keys are visible to all, the rest causally.
Mask prefix_lm_mask(int64_t seqlen, int64_t prefix);
/// Prefix LM within each of several packed documents. The first `prefixes[i]` rows of document i (an image or a prompt)
/// see each other, and all rows of the document see them. As many prefixes as documents, none longer than its document.
Mask varlen_prefix_lm_mask(std::span<const int64_t> cu_seqlens, std::span<const int64_t> prefixes);
/// One causal prefix followed by continuations, each causal, that see the prefix and themselves but not each other.
Mask shared_prefix_mask(int64_t prefix, std::span<const int64_t> continuation_lengths);
/// The first `num_global` rows see and are seen by everything that `window` is open to; the others see `window`
/// besides. With window.right == 0 the mask is causal throughout.
Mask global_window_mask(int64_t seqlen, int64_t num_global, Window window);
/// Pairs (query block, key block) that are visible whole. Blocks at the end may be short. Pairs must not repeat.
Mask block_sparse_mask(int64_t seqlen_q, int64_t seqlen_k, int64_t block_q, int64_t block_k,
                       std::span<const std::pair<int64_t, int64_t>> blocks);

/// Which blocks of keys every block of queries sees: what dynamic sparse attention chooses at every step. In host
/// memory; copy indices from a device first. Heads that see different blocks need a mask each.
struct BlockIndices {
  int64_t seqlen_q = 0;
  int64_t seqlen_k = 0;
  int64_t block_q = 0;  // rows of a block; the last of a sequence may be short
  int64_t block_k = 0;
  /// Key blocks, in any order within a query block.
  std::span<const int32_t> indices;
  /// `[num_q_blocks + 1]`: query block i sees indices[offsets[i]] .. indices[offsets[i + 1] - 1]. Empty when `indices`
  /// is `[num_q_blocks, max_blocks]`, rows padded at the end by -1.
  std::span<const int64_t> offsets;
  bool causal = false;  // besides, bottom-right aligned: cuts the blocks on the diagonal
};
/// The mask of these blocks, in as few slices as runs of equal blocks allow. Linear in the indices but for merging and
/// validation of the slices. Throws InvalidArgument when sizes do not fit, an index is out of bounds or repeats.
Mask mask_from_block_indices(const BlockIndices& blocks);

/// A slice in published form: ranges and a mask type.
struct TypedSlice {
  Range q_range;
  Range k_range;
  MaskType type = MaskType::kFull;

  friend bool operator==(const TypedSlice&, const TypedSlice&) = default;
};

/// The slice as at most three pieces of published types, cut by rows where a diagonal starts or stops to bind.
std::vector<TypedSlice> to_typed(const AttnSlice& slice);

/// A mask in published form, as `infer_attn_mask_from_cu_seqlens` of other systems returns it.
struct TypedMask {
  std::vector<TypedSlice> slices;
  int64_t total_seqlen_q = 0;
  int64_t total_seqlen_k = 0;
};
/// Packed documents, full, causal or windowed (the window is bottom-right aligned when lengths differ). With
/// `num_global > 0` a window also sees the first `num_global` keys of its document.
/// Throws InvalidArgument when `causal` and a window are both given.
TypedMask infer_attn_mask_from_cu_seqlens(std::span<const int64_t> cu_seqlens_q, std::span<const int64_t> cu_seqlens_k,
                                          bool causal = false, Window window = {}, int64_t num_global = 0);
/// Window over one pair of ranges, bottom-right aligned.
std::vector<TypedSlice> infer_attn_mask_from_sliding_window(Range q_range, Range k_range, Window window);

}  // namespace tangram
