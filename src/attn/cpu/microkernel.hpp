// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The one matrix product of the CPU backend: broadcast elements of A times vectors of B, accumulators in registers.
// A needs no packing because it is read by broadcast, in either order; B has its columns in lanes.
#pragma once

#include "attn/cpu/row_prefetch.hpp"
#include "attn/cpu/simd.hpp"

namespace tangram::cpu::TANGRAM_ISA {

/// Type of one element of A and B, always four bytes: a float32, or two bfloat16 that follow each other along the inner
/// index.
struct Float32 {
  static constexpr int kWidth = 1;
  TANGRAM_INLINE Vec multiply_add(Vec sum, const float* a, Vec b) { return sum + splat(*a) * b; }
};

#if defined(__AVX512BF16__)
struct BFloat16Pair {
  static constexpr int kWidth = 2;
  TANGRAM_INLINE Vec multiply_add(Vec sum, const float* a, Vec b) {
    int32_t bits;
    __builtin_memcpy(&bits, a, 4);
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(b), reinterpret_cast<__m512bh>(_mm512_set1_epi32(bits)));
  }
  /// One element of each lane's `low` and `high`, rounded.
  TANGRAM_INLINE Vec pair_up(Vec low, Vec high) { return interleave_as_bfloat16(low, high); }
  /// The lanes one after another, rounded.
  TANGRAM_INLINE void store_rounded(float* to, Vec x) { store_as_bfloat16(to, x); }
};
#endif

/// How the elements of A lie: `rows` contiguous (column-major) or the products' index `k` contiguous (row-major).
enum class AOrder { kRowsContiguous, kInnerContiguous };

/// All sizes and strides count elements of A and B (see Float32 and BFloat16Pair); C is float32.
/// C (+)= A B: `rows` x (vectors of one panel), summed over `inner`.
struct Product {
  int rows;
  int inner;
  const float* a;
  int64_t a_stride;  // of the index that is not contiguous
  const float* b;
  int64_t b_stride;  // between inner indices
  float* c;
  int64_t c_stride;                 // between rows
  bool add;                         // to what C holds
  RowPrefetch* prefetch = nullptr;  // what comes next is fetched meanwhile
};

template <class Element, int kRows, int kNumVecs, AOrder kOrder>
TANGRAM_INLINE void product_block(const Product& p, int row) {
  Vec acc[kRows][kNumVecs];
  float* c = p.c + row * p.c_stride;
  if (p.prefetch != nullptr) p.prefetch->step();
  if (p.add) {
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int v = 0; v < kNumVecs; ++v) acc[i][v] = load(c + i * p.c_stride + v * kLanes);
    }
  } else {
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int v = 0; v < kNumVecs; ++v) acc[i][v] = Vec{};
    }
  }
  constexpr bool kRowsContiguous = kOrder == AOrder::kRowsContiguous;
  const float* a = p.a + row * (kRowsContiguous ? 1 : p.a_stride);
  const int64_t a_row = kRowsContiguous ? 1 : p.a_stride;
  const int64_t a_inner = kRowsContiguous ? p.a_stride : 1;
  const float* b = p.b;
  for (int k = 0; k < p.inner; ++k) {
    Vec b_vec[kNumVecs];
#pragma GCC unroll 4
    for (int v = 0; v < kNumVecs; ++v) b_vec[v] = load(b + v * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int v = 0; v < kNumVecs; ++v) acc[i][v] = Element::multiply_add(acc[i][v], a + i * a_row, b_vec[v]);
    }
    a += a_inner;
    b += p.b_stride;
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kNumVecs; ++v) store(c + i * p.c_stride + v * kLanes, acc[i][v]);
  }
}

template <class Element, int kNumVecs, AOrder kOrder>
__attribute__((noinline)) static void product_panel(const Product& p) {
  // Rows at once: as many as fit into registers, at most 12, enough to hide the latency of an FMA.
  constexpr int kMaxRows = kNumVecs == 4 ? 6 : kNumVecs == 3 ? 8 : kVecs == 4 ? 12 : 12 / kVecs;
  int row = 0;
  for (; row + kMaxRows <= p.rows; row += kMaxRows) product_block<Element, kMaxRows, kNumVecs, kOrder>(p, row);
  if constexpr (kMaxRows > 8) {
    if (row + 8 <= p.rows) product_block<Element, 8, kNumVecs, kOrder>(p, row), row += 8;
  }
  if constexpr (kMaxRows > 4) {
    if (row + 4 <= p.rows) product_block<Element, 4, kNumVecs, kOrder>(p, row), row += 4;
  }
  if (row + 2 <= p.rows) product_block<Element, 2, kNumVecs, kOrder>(p, row), row += 2;
  if (row < p.rows) product_block<Element, 1, kNumVecs, kOrder>(p, row);
}

/// The product over `num_vecs` vectors of columns; more than a panel's is done panel by panel.
template <class Element, AOrder kOrder>
TANGRAM_INLINE void product(Product p, int num_vecs) {
  for (; num_vecs > 0; num_vecs -= kVecs, p.b += kPanel, p.c += kPanel) {
    switch (min_of(num_vecs, kVecs)) {
      case 1: product_panel<Element, 1, kOrder>(p); break;
      case 2: product_panel<Element, 2, kOrder>(p); break;
#if defined(__AVX512F__)
      case 3: product_panel<Element, 3, kOrder>(p); break;
      case 4: product_panel<Element, 4, kOrder>(p); break;
#endif
      default: break;
    }
  }
}

}  // namespace tangram::cpu::TANGRAM_ISA
