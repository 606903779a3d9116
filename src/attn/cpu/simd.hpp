// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Vectors of one instruction set. Included once by each kernels_<isa>.cpp, which sets its compiler flags and
// TANGRAM_ISA. TANGRAM_ISA is a namespace of its own, so that copies for different instruction sets never meet.
#pragma once

#include <cstdint>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "tangram/dtype.hpp"

namespace tangram::cpu::TANGRAM_ISA {

#if defined(__AVX512F__)
inline constexpr int kLanes = 16;
inline constexpr int kVecs = 4;  // vectors across a panel: 4 x 6 accumulators and 4 operands of 32 registers
#elif defined(__AVX__)
inline constexpr int kLanes = 8;
inline constexpr int kVecs = 2;
#else
inline constexpr int kLanes = 4;
inline constexpr int kVecs = 2;
#endif
inline constexpr int kPanel = kLanes * kVecs;
inline constexpr float kMinusInf = -__builtin_inff();

typedef float Vec __attribute__((vector_size(kLanes * 4)));
typedef int32_t IntVec __attribute__((vector_size(kLanes * 4)));
typedef uint32_t UintVec __attribute__((vector_size(kLanes * 4)));
typedef float UnalignedVec __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));

#define TANGRAM_INLINE static inline __attribute__((always_inline))
#define TANGRAM_MEMBER_INLINE inline __attribute__((always_inline))

TANGRAM_INLINE Vec load(const float* p) { return *reinterpret_cast<const UnalignedVec*>(p); }
TANGRAM_INLINE void store(float* p, Vec x) { *reinterpret_cast<UnalignedVec*>(p) = x; }
TANGRAM_INLINE Vec splat(float x) { return x - Vec{}; }
TANGRAM_INLINE int round_up(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }
TANGRAM_INLINE int min_of(int a, int b) { return a < b ? a : b; }
TANGRAM_INLINE int max_of(int a, int b) { return a > b ? a : b; }

TANGRAM_INLINE Vec vmax(Vec a, Vec b) {
#if defined(__AVX512F__)
  return _mm512_max_ps(a, b);
#elif defined(__AVX__)
  return _mm256_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}

/// a * b - c, the product not rounded.
TANGRAM_INLINE Vec multiply_subtract(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return _mm512_fmsub_ps(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmsub_ps(a, b, c);
#else
  Vec result;
  for (int l = 0; l < kLanes; ++l) result[l] = static_cast<float>(static_cast<double>(a[l]) * b[l] - c[l]);
  return result;
#endif
}

/// Lane l of `x` where bit l of `bits` is set, else lane l of `otherwise`. A NaN that is not taken leaves no trace.
TANGRAM_INLINE Vec select_bits(uint64_t bits, Vec x, Vec otherwise) {
#if defined(__AVX512F__)
  return _mm512_mask_mov_ps(otherwise, static_cast<__mmask16>(bits), x);
#else
  IntVec lane_bit;
  for (int l = 0; l < kLanes; ++l) lane_bit[l] = 1 << l;
  const IntVec all = static_cast<int32_t>(bits & 0xffff) - IntVec{};
  return (all & lane_bit) != 0 ? x : otherwise;
#endif
}

TANGRAM_INLINE bool any_above(Vec x, float limit) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_GT_OQ) != 0;
#else
  const IntVec above = x > limit;
  int32_t any = 0;
  for (int l = 0; l < kLanes; ++l) any |= above[l];
  return any != 0;
#endif
}

/// 2^x for x <= 127, relative error below 2e-7; -inf and what would underflow give 0, NaN gives NaN. The polynomial is
/// a minimax fit of 2^f on [-1/2, 1/2] (Remez).
TANGRAM_INLINE Vec exp2_vec(Vec x) {
  const Vec clamped = vmax(splat(-127.0f), x);  // of a number and NaN the second
  const Vec shifter = splat(12582912.0f);       // 1.5 * 2^23: adding it rounds to a whole number, kept in the low bits
  const Vec shifted = clamped + shifter;
  const Vec whole = shifted - shifter;
  const Vec f = clamped - whole;
  Vec p = splat(0.0013276472f);
  p = p * f + 0.0096755413f;
  p = p * f + 0.0555071327f;
  p = p * f + 0.2402211972f;
  p = p * f + 0.6931469671f;
  p = p * f + 1.0000000717f;
  // Both are exact, and unlike a sum of exponents they let NaN through.
#if defined(__AVX512F__)
  return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ), p, whole);
#else
  const Vec power = reinterpret_cast<Vec>((reinterpret_cast<IntVec>(shifted) << 23) + (127 << 23));
  return x < -126.0f ? Vec{} : p * power;
#endif
}

/// tanh, relative error below 1e-6: an odd polynomial near 0, where the quotient would cancel.
TANGRAM_INLINE Vec tanh_vec(Vec x) {
  const Vec x2 = x * x;
  // Taylor series of tanh; below 0.25 the first term left out is 2e-8 of the result.
  Vec p = splat(62.0f / 2835);
  p = p * x2 - 17.0f / 315;
  p = p * x2 + 2.0f / 15;
  p = p * x2 - 1.0f / 3;
  const Vec near_zero = x + x * x2 * p;
  const Vec magnitude = vmax(x, -x);
  const Vec e = exp2_vec(-2.8853900818f * magnitude);  // exp(-2 |x|)
  const Vec quotient = (1.0f - e) / (1.0f + e);
  const Vec far = x < 0.0f ? -quotient : quotient;
  return magnitude < 0.25f ? near_zero : far;
}

TANGRAM_INLINE float half_to_float(uint16_t bits) {
#if defined(__F16C__)
  return _cvtsh_ss(bits);
#else
  const uint32_t magnitude = bits & 0x7fffu;
  uint32_t result = (magnitude << 13) + 0x38000000u;
  if (magnitude >= 0x7c00u) result = 0x7f800000u | (magnitude << 13);
  float value;
  __builtin_memcpy(&value, &result, 4);
  if (magnitude < 0x0400u) value = static_cast<float>(magnitude) * 0x1p-24f;
  return (bits & 0x8000u) != 0 ? -value : value;
#endif
}

/// `n` elements of a row in any dtype to float32.
TANGRAM_INLINE void load_row(float* to, const void* from, DType dtype, int n) {
  if (dtype == DType::kFloat32) {
    __builtin_memcpy(to, from, static_cast<size_t>(n) * 4);
    return;
  }
  const auto* bits = static_cast<const uint16_t*>(from);
  if (dtype == DType::kBFloat16) {
    auto* words = reinterpret_cast<uint32_t __attribute__((may_alias))*>(to);
    for (int d = 0; d < n; ++d) words[d] = static_cast<uint32_t>(bits[d]) << 16;
    return;
  }
  int d = 0;
#if defined(__AVX512F__)
  for (; d + 16 <= n; d += 16) {
    store(to + d, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(bits + d))));
  }
#endif
  for (; d < n; ++d) to[d] = half_to_float(bits[d]);
}

/// A row of 16-bit elements as it is, followed by a zero when `n` is odd.
TANGRAM_INLINE void copy_16bit_row(float* to, const void* from, int n) {
  auto* bits = reinterpret_cast<uint16_t __attribute__((may_alias))*>(to);
  __builtin_memcpy(bits, from, static_cast<size_t>(n) * 2);
  if (n % 2 != 0) bits[n] = 0;
}

/// Two rows of 16-bit elements as one row of pairs; without `second` its half is zero.
TANGRAM_INLINE void interleave_rows(float* to, const void* first, const void* second, int n) {
  auto* pairs = reinterpret_cast<uint32_t __attribute__((may_alias))*>(to);
  const auto* low = static_cast<const uint16_t*>(first);
  const auto* high = static_cast<const uint16_t*>(second);
  if (high == nullptr) {
    for (int d = 0; d < n; ++d) pairs[d] = low[d];
  } else {
    for (int d = 0; d < n; ++d) pairs[d] = low[d] | static_cast<uint32_t>(high[d]) << 16;
  }
}

#if defined(__AVX512BF16__)
/// Lane l of the result: low[l] and high[l], rounded.
TANGRAM_INLINE Vec interleave_as_bfloat16(Vec low, Vec high) {
  const __m512i halves = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
  const __m512i order =
      _mm512_or_si512(_mm512_set1_epi32(16 << 16),
                      _mm512_mullo_epi32(_mm512_set1_epi32(0x00010001),
                                         _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)));
  return reinterpret_cast<Vec>(_mm512_permutexvar_epi16(order, halves));
}

/// The 16 lanes as bfloat16, side by side.
TANGRAM_INLINE void store_as_bfloat16(void* to, Vec x) {
  _mm256_storeu_si256(static_cast<__m256i*>(to), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
}
#endif

/// `n` float32 elements to a row in any dtype.
TANGRAM_INLINE void store_row(void* to, DType dtype, const float* from, int n) {
  if (dtype == DType::kFloat32) {
    __builtin_memcpy(to, from, static_cast<size_t>(n) * 4);
    return;
  }
  auto* bits = static_cast<uint16_t*>(to);
  for (int d = 0; d < n; ++d) {
    bits[d] = dtype == DType::kBFloat16 ? float_to_bfloat16(from[d]) : float_to_float16(from[d]);
  }
}

template <class T>
TANGRAM_INLINE const void* row_of(const T& t, int64_t row, int head) {
  return static_cast<const char*>(t.data) +
         (row * t.row_stride + head * t.head_stride) * (t.dtype == DType::kFloat32 ? 4 : 2);
}
template <class T>
TANGRAM_INLINE void* mutable_row_of(const T& t, int64_t row, int head) {
  return const_cast<void*>(row_of(t, row, head));
}

#if defined(__AVX512F__)
/// The transpose of 16 x 16 elements in registers: by pairs, by quarters of a vector, then by whole quarters.
TANGRAM_INLINE void transpose_16x16(float* __restrict to, int64_t to_stride, const float* __restrict from,
                                    int64_t from_stride) {
  __m512 a[16], b[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_ps(from + i * from_stride);
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
  }
  // a[4 j + c]: column c of every quarter, rows 4 j to 4 j + 3.
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    a[i] = _mm512_shuffle_ps(b[i], b[i + 2], 0x44);
    a[i + 1] = _mm512_shuffle_ps(b[i], b[i + 2], 0xee);
    a[i + 2] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0x44);
    a[i + 3] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512 low_even = _mm512_shuffle_f32x4(a[c], a[4 + c], 0x88),
                 low_odd = _mm512_shuffle_f32x4(a[c], a[4 + c], 0xdd);
    const __m512 high_even = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0x88);
    const __m512 high_odd = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0xdd);
    _mm512_storeu_ps(to + c * to_stride, _mm512_shuffle_f32x4(low_even, high_even, 0x88));
    _mm512_storeu_ps(to + (4 + c) * to_stride, _mm512_shuffle_f32x4(low_odd, high_odd, 0x88));
    _mm512_storeu_ps(to + (8 + c) * to_stride, _mm512_shuffle_f32x4(low_even, high_even, 0xdd));
    _mm512_storeu_ps(to + (12 + c) * to_stride, _mm512_shuffle_f32x4(low_odd, high_odd, 0xdd));
  }
}
#endif

/// to[c * to_stride + r] = from[r * from_stride + c]. Blocked, so that both sides stay in cache lines.
TANGRAM_INLINE void transpose(float* __restrict to, int64_t to_stride, const float* __restrict from,
                              int64_t from_stride, int rows, int columns) {
  int c = 0;
#if defined(__AVX512F__)
  for (; c + 16 <= columns; c += 16) {
    int r = 0;
    for (; r + 16 <= rows; r += 16) {
      transpose_16x16(to + c * to_stride + r, to_stride, from + r * from_stride + c, from_stride);
    }
    const __m512i at = _mm512_mullo_epi32(_mm512_set1_epi32(static_cast<int>(to_stride)),
                                          _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    for (; r < rows; ++r) {
      _mm512_i32scatter_ps(to + c * to_stride + r, at, _mm512_loadu_ps(from + r * from_stride + c), 4);
    }
  }
#endif
  for (; c < columns; ++c) {
    for (int r = 0; r < rows; ++r) to[c * to_stride + r] = from[r * from_stride + c];
  }
}

}  // namespace tangram::cpu::TANGRAM_ISA
