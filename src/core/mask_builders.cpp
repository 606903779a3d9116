// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/mask_builders.hpp"

#include <algorithm>
#include <string>

#include "core/require.hpp"

namespace tangram {

namespace {

void require_cu_seqlens(const char* function, const char* name, std::span<const int64_t> cu_seqlens) {
  require(!cu_seqlens.empty() && cu_seqlens[0] == 0, "{}: {} must start with 0 (got {})", function, name,
          cu_seqlens.empty() ? std::string("an empty list") : std::to_string(cu_seqlens[0]));
  for (size_t i = 1; i < cu_seqlens.size(); ++i) {
    require(cu_seqlens[i - 1] <= cu_seqlens[i], "{}: {} must not decrease (got {}[{}]={} after {})", function, name,
            name, i, cu_seqlens[i], cu_seqlens[i - 1]);
  }
}

void require_window(const char* function, Window window) {
  require(window.left >= -1 && window.right >= -1,
          "{}: window sides must be -1 (unbounded) or more (got left={}, right={})", function, window.left,
          window.right);
}

void require_positive(const char* function, const char* name, int64_t value) {
  require(value > 0, "{}: {} must be positive (got {})", function, name, value);
}

void require_length(const char* function, int64_t seqlen) {
  require(seqlen >= 0, "{}: seqlen must not be negative (got {})", function, seqlen);
}

// The documents of cu_seqlens.
std::vector<Range> documents(std::span<const int64_t> cu_seqlens) {
  std::vector<Range> result;
  for (size_t i = 1; i < cu_seqlens.size(); ++i) result.push_back({cu_seqlens[i - 1], cu_seqlens[i]});
  return result;
}

// A window whose last query is aligned with the last key.
AttnSlice windowed(Range q, Range k, Window window) {
  AttnSlice slice = AttnSlice::full(q, k);
  const int64_t diagonal = k.end - q.end;
  if (window.left >= 0) slice.min_diag = diagonal - window.left;
  if (window.right >= 0) slice.max_diag = diagonal + window.right;
  return slice;
}

void append_block_causal(Range document, int64_t block_size, std::vector<AttnSlice>& slices) {
  for (int64_t begin = document.begin; begin < document.end; begin += block_size) {
    const int64_t end = std::min(begin + block_size, document.end);
    slices.push_back(AttnSlice::full({begin, end}, {document.begin, end}));
  }
}

}  // namespace

Mask full_mask(int64_t seqlen_q, int64_t seqlen_k) {
  return Mask(seqlen_q, seqlen_k, {AttnSlice::full({0, seqlen_q}, {0, seqlen_k})});
}

Mask causal_mask(int64_t seqlen_q, int64_t seqlen_k) {
  return Mask(seqlen_q, seqlen_k, {AttnSlice::causal({0, seqlen_q}, {0, seqlen_k})});
}

Mask varlen_mask(std::span<const int64_t> cu_seqlens_q, std::span<const int64_t> cu_seqlens_k, bool causal) {
  require_cu_seqlens("varlen_mask", "cu_seqlens_q", cu_seqlens_q);
  require_cu_seqlens("varlen_mask", "cu_seqlens_k", cu_seqlens_k);
  require(cu_seqlens_q.size() == cu_seqlens_k.size(),
          "varlen_mask: cu_seqlens_q and cu_seqlens_k must have equal length (got {} and {})", cu_seqlens_q.size(),
          cu_seqlens_k.size());
  const std::vector<Range> q = documents(cu_seqlens_q);
  const std::vector<Range> k = documents(cu_seqlens_k);
  std::vector<AttnSlice> slices;
  for (size_t i = 0; i < q.size(); ++i) {
    slices.push_back(causal ? AttnSlice::causal(q[i], k[i]) : AttnSlice::full(q[i], k[i]));
  }
  return Mask(cu_seqlens_q.back(), cu_seqlens_k.back(), std::move(slices));
}

Mask varlen_mask(std::span<const int64_t> cu_seqlens, bool causal) {
  return varlen_mask(cu_seqlens, cu_seqlens, causal);
}

Mask sliding_window_mask(int64_t seqlen, Window window) {
  require_length("sliding_window_mask", seqlen);
  require_window("sliding_window_mask", window);
  return Mask(seqlen, seqlen, {windowed({0, seqlen}, {0, seqlen}, window)});
}

Mask sliding_window_mask(std::span<const int64_t> cu_seqlens, Window window) {
  return sliding_window_mask(cu_seqlens, cu_seqlens, window);
}

Mask sliding_window_mask(std::span<const int64_t> cu_seqlens_q, std::span<const int64_t> cu_seqlens_k, Window window) {
  require_cu_seqlens("sliding_window_mask", "cu_seqlens_q", cu_seqlens_q);
  require_cu_seqlens("sliding_window_mask", "cu_seqlens_k", cu_seqlens_k);
  require(cu_seqlens_q.size() == cu_seqlens_k.size(),
          "sliding_window_mask: cu_seqlens_q and cu_seqlens_k must have equal length (got {} and {})",
          cu_seqlens_q.size(), cu_seqlens_k.size());
  require_window("sliding_window_mask", window);
  const std::vector<Range> q = documents(cu_seqlens_q), k = documents(cu_seqlens_k);
  std::vector<AttnSlice> slices;
  for (size_t i = 0; i < q.size(); ++i) slices.push_back(windowed(q[i], k[i], window));
  return Mask(cu_seqlens_q.back(), cu_seqlens_k.back(), std::move(slices));
}

Mask block_causal_mask(int64_t seqlen, int64_t block_size) {
  require_length("block_causal_mask", seqlen);
  require_positive("block_causal_mask", "block_size", block_size);
  std::vector<AttnSlice> slices;
  append_block_causal({0, seqlen}, block_size, slices);
  return Mask(seqlen, seqlen, std::move(slices));
}

Mask block_causal_mask(std::span<const int64_t> cu_seqlens, int64_t block_size) {
  require_cu_seqlens("block_causal_mask", "cu_seqlens", cu_seqlens);
  require_positive("block_causal_mask", "block_size", block_size);
  std::vector<AttnSlice> slices;
  for (const Range& document : documents(cu_seqlens)) append_block_causal(document, block_size, slices);
  return Mask(cu_seqlens.back(), cu_seqlens.back(), std::move(slices));
}

Mask prefix_lm_mask(int64_t seqlen, int64_t prefix) {
  require(0 <= prefix && prefix <= seqlen, "prefix_lm_mask: prefix must lie in [0, {}] (got {})", seqlen, prefix);
  return Mask(seqlen, seqlen,
              {AttnSlice::full({0, prefix}, {0, prefix}), AttnSlice::causal({prefix, seqlen}, {0, seqlen})});
}

Mask varlen_prefix_lm_mask(std::span<const int64_t> cu_seqlens, std::span<const int64_t> prefixes) {
  require_cu_seqlens("varlen_prefix_lm_mask", "cu_seqlens", cu_seqlens);
  const std::vector<Range> rows = documents(cu_seqlens);
  require(prefixes.size() == rows.size(),
          "varlen_prefix_lm_mask: prefixes must have an entry for each document (got {} and {} documents)",
          prefixes.size(), rows.size());
  std::vector<AttnSlice> slices;
  for (size_t i = 0; i < rows.size(); ++i) {
    require(0 <= prefixes[i] && prefixes[i] <= rows[i].size(),
            "varlen_prefix_lm_mask: prefixes[{}] must lie in [0, {}] (got {})", i, rows[i].size(), prefixes[i]);
    const Range prefix{rows[i].begin, rows[i].begin + prefixes[i]};
    slices.push_back(AttnSlice::full(prefix, prefix));
    slices.push_back(AttnSlice::causal({prefix.end, rows[i].end}, rows[i]));
  }
  return Mask(cu_seqlens.back(), cu_seqlens.back(), std::move(slices));
}

Mask shared_prefix_mask(int64_t prefix, std::span<const int64_t> continuation_lengths) {
  require(prefix >= 0, "shared_prefix_mask: prefix must not be negative (got {})", prefix);
  std::vector<AttnSlice> slices{AttnSlice::causal({0, prefix}, {0, prefix})};
  int64_t begin = prefix;
  for (size_t i = 0; i < continuation_lengths.size(); ++i) {
    require(continuation_lengths[i] >= 0, "shared_prefix_mask: continuation_lengths[{}] must not be negative (got {})",
            i, continuation_lengths[i]);
    const Range rows{begin, begin + continuation_lengths[i]};
    slices.push_back(AttnSlice::full(rows, {0, prefix}));
    slices.push_back(AttnSlice::causal(rows, rows));
    begin = rows.end;
  }
  return Mask(begin, begin, std::move(slices));
}

Mask global_window_mask(int64_t seqlen, int64_t num_global, Window window) {
  require(0 <= num_global && num_global <= seqlen, "global_window_mask: num_global must lie in [0, {}] (got {})",
          seqlen, num_global);
  require_window("global_window_mask", window);
  const Range global{0, num_global};
  const Range rest{num_global, seqlen};
  const bool causal = window.right == 0;
  std::vector<AttnSlice> slices;
  slices.push_back(causal ? AttnSlice::causal(global, global) : AttnSlice::full(global, global));
  if (!causal) slices.push_back(AttnSlice::full(global, rest));
  slices.push_back(AttnSlice::full(rest, global));
  slices.push_back(windowed(rest, rest, window));
  return Mask(seqlen, seqlen, std::move(slices));
}

Mask block_sparse_mask(int64_t seqlen_q, int64_t seqlen_k, int64_t block_q, int64_t block_k,
                       std::span<const std::pair<int64_t, int64_t>> blocks) {
  require_positive("block_sparse_mask", "block_q", block_q);
  require_positive("block_sparse_mask", "block_k", block_k);
  std::vector<AttnSlice> slices;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto [q_block, k_block] = blocks[i];
    const int64_t num_q_blocks = (seqlen_q + block_q - 1) / block_q;
    const int64_t num_k_blocks = (seqlen_k + block_k - 1) / block_k;
    require(0 <= q_block && q_block < num_q_blocks && 0 <= k_block && k_block < num_k_blocks,
            "block_sparse_mask: blocks[{}] must lie in {} x {} blocks (got ({}, {}))", i, num_q_blocks, num_k_blocks,
            q_block, k_block);
    slices.push_back(AttnSlice::full({q_block * block_q, std::min((q_block + 1) * block_q, seqlen_q)},
                                     {k_block * block_k, std::min((k_block + 1) * block_k, seqlen_k)}));
  }
  return Mask(seqlen_q, seqlen_k, std::move(slices));
}

std::vector<TypedSlice> to_typed(const AttnSlice& slice) {
  const AttnSlice whole = canonical(slice);
  if (whole.q_range.empty()) return {};
  // From row `left_binds` on the left border is the diagonal, up to row `right_free` the right border is. The row in
  // which a diagonal meets the edge belongs to either side. At an end of the slice it is no piece of its own.
  int64_t left_binds = whole.min_diag <= kOpenMinDiag ? whole.q_range.end : whole.k_range.begin - whole.min_diag + 1;
  int64_t right_free = whole.max_diag >= kOpenMaxDiag ? whole.q_range.begin : whole.k_range.end - whole.max_diag - 1;
  if (left_binds == whole.q_range.begin + 1) left_binds = whole.q_range.begin;
  if (right_free == whole.q_range.end - 1) right_free = whole.q_range.end;
  int64_t cuts[] = {whole.q_range.begin, left_binds, right_free, whole.q_range.end};
  for (int64_t& cut : cuts) cut = std::clamp(cut, whole.q_range.begin, whole.q_range.end);
  std::sort(std::begin(cuts), std::end(cuts));
  std::vector<TypedSlice> pieces;
  for (int i = 0; i < 3; ++i) {
    const AttnSlice piece = cut_rows(whole, {cuts[i], cuts[i + 1]});
    if (piece.q_range.empty()) continue;
    const bool left = piece.min_diag > kOpenMinDiag;
    const bool right = piece.max_diag < kOpenMaxDiag;
    const MaskType type = left && right ? MaskType::kBiCausal
                          : right       ? MaskType::kCausal
                          : left        ? MaskType::kInvCausal
                                        : MaskType::kFull;
    pieces.push_back({piece.q_range, piece.k_range, type});
  }
  return pieces;
}

std::vector<TypedSlice> infer_attn_mask_from_sliding_window(Range q_range, Range k_range, Window window) {
  require_window("infer_attn_mask_from_sliding_window", window);
  return to_typed(windowed(q_range, k_range, window));
}

TypedMask infer_attn_mask_from_cu_seqlens(std::span<const int64_t> cu_seqlens_q, std::span<const int64_t> cu_seqlens_k,
                                          bool causal, Window window, int64_t num_global) {
  constexpr const char* kFunction = "infer_attn_mask_from_cu_seqlens";
  require_cu_seqlens(kFunction, "cu_seqlens_q", cu_seqlens_q);
  require_cu_seqlens(kFunction, "cu_seqlens_k", cu_seqlens_k);
  require_window(kFunction, window);
  require(cu_seqlens_q.size() == cu_seqlens_k.size(),
          "{}: cu_seqlens_q and cu_seqlens_k must have equal length (got {} and {})", kFunction, cu_seqlens_q.size(),
          cu_seqlens_k.size());
  const bool has_window = window != Window{};
  require(!(causal && has_window),
          "{}: causal must be false when a window is given, whose right side 0 is causal (got window=({}, {}))",
          kFunction, window.left, window.right);
  require(num_global >= 0 && (num_global == 0 || has_window),
          "{}: the global window must not be negative and needs a window beside it (got {})", kFunction, num_global);
  TypedMask result{{}, cu_seqlens_q.back(), cu_seqlens_k.back()};
  const auto append = [&result](const AttnSlice& slice) {
    for (const TypedSlice& piece : to_typed(slice)) result.slices.push_back(piece);
  };
  const std::vector<Range> q = documents(cu_seqlens_q);
  const std::vector<Range> k = documents(cu_seqlens_k);
  for (size_t i = 0; i < q.size(); ++i) {
    const AttnSlice slice = causal ? AttnSlice::causal(q[i], k[i]) : windowed(q[i], k[i], window);
    if (num_global == 0) {
      append(slice);
      continue;
    }
    // Global keys inside the window already belong to it; the others lie to its left. Before the first aligned query
    // they lie to its right, where nothing is added: a window bounded on the right stays so.
    append(slice);
    const Range global{k[i].begin, std::min(k[i].begin + num_global, k[i].end)};
    if (slice.min_diag > kOpenMinDiag) {
      append({q[i], global, kOpenMinDiag, slice.min_diag - 1});
    }
  }
  return result;
}

}  // namespace tangram
