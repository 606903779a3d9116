// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Rows of other tokens lie a page apart or so, which hardware does not foresee: unasked, copying a block's rows waits
// for each. Asked for all at once they would fill the queue of misses and hold up the products; so products ask, a
// little at a time.
#pragma once

#include "attn/cpu/kernels.hpp"
#include "attn/cpu/simd.hpp"

namespace tangram::cpu::TANGRAM_ISA {

/// Brings rows that will be copied or added to soon into the L2 cache, a few for each call of `step`.
class RowPrefetch {
 public:
  void clear() { num_sources_ = source_ = row_ = 0; }

  /// The rows of `block` of one head, after the rows added before. Keeps a pointer to the block.
  template <class AnyTokens>
  void add(const AnyTokens& tokens, int head, const StepBlock& block) {
    const int element_bytes = tokens.dtype == DType::kFloat32 ? 4 : 2;
    sources_[num_sources_++] = {static_cast<const char*>(row_of(tokens, 0, head)), tokens.row_stride * element_bytes,
                                tokens.dim * element_bytes, &block};
  }

  /// Called for each block of rows of a product.
  TANGRAM_MEMBER_INLINE void step() {
    for (int n = 0; n < kRowsOfStep && source_ < num_sources_; ++n) {
      const Source& source = sources_[source_];
      const char* at = source.data + source.block->rows[row_] * source.row_stride;
      for (int64_t b = 0; b < source.row_bytes; b += kLineBytes) __builtin_prefetch(at + b, 0, 2);
      if (++row_ == source.block->num_steps) row_ = 0, ++source_;
    }
  }

 private:
  // The products of a block take 54 to 76 steps forward (head dim 64 and 128), for up to 192 rows of K and V.
  static constexpr int kRowsOfStep = 3;
  static constexpr int kLineBytes = 64;
  static constexpr int kMaxSources = 3;

  struct Source {
    const char* data;
    int64_t row_stride;  // bytes
    int64_t row_bytes;
    const StepBlock* block;
  };

  Source sources_[kMaxSources];
  int num_sources_ = 0;
  int source_ = 0;
  int row_ = 0;
};

}  // namespace tangram::cpu::TANGRAM_ISA
