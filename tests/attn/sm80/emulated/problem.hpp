// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What the problems for the forward and the backward kernels have in common. They are small: a product of a warp takes
// the emulator microseconds.
#pragma once

#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "attn/cpu/random_attention.hpp"
#include "attn/sm80/shapes.hpp"
#include "attn/sm90/emulated/awaited_keys.hpp"
#include "attn/sm90/emulated/machine.hpp"

namespace tangram::test::emulated_sm80 {

/// Where a kernel finds its keys.
enum class Keys { kThere, kLate, kLocalKv };

/// Head dimensions are those of the kernel.
inline AttnShape shape_of(int64_t rows, int64_t keys, int heads_q, int heads_kv) {
  return {rows, keys, heads_q, heads_kv, 0, 0, DType::kBFloat16};
}

/// Two that touch, one of a rectangle, fully masked rows and keys: of 270 rows and 300 keys.
inline std::vector<AttnSlice> small_documents() {
  return {AttnSlice::causal({0, 130}, {0, 130}), AttnSlice::full({130, 200}, {130, 290}),
          AttnSlice::full({230, 260}, {205, 300})};
}
/// Few rows and keys of 70 and at least 101.
inline std::vector<AttnSlice> short_slices() {
  return {AttnSlice::full({0, 5}, {3, 20}), AttnSlice::full({50, 60}, {100, 101})};
}

template <typename Element>
constexpr DType dtype_of() {
  if (std::is_same_v<Element, float>) return DType::kFloat32;
  return std::is_same_v<Element, __half> ? DType::kFloat16 : DType::kBFloat16;
}
/// Relative error (L2) of results: as of the Hopper kernels, of the rounding of P and dS and of 16-bit results, or of
/// float32.
template <typename Element>
constexpr double tolerance(double of_16_bits) {
  return std::is_same_v<Element, float> ? 2e-6 : of_16_bits;
}

/// With gaps behind each row that hold NaN.
inline RandomConfig config_of(AttnShape shape, int head_dim, int head_dim_v, float softcap) {
  shape.head_dim = head_dim;
  shape.head_dim_v = head_dim_v;
  RandomConfig config;
  config.shape = shape;
  config.softcap = softcap;
  config.strided = true;
  config.gap = 8;
  return config;
}

/// What lies behind the columns of a head, and behind the last head, is NaN as before.
inline void expect_gaps_untouched(const HostTensor& tensor, int heads, int dim) {
  for (int64_t row = 0; row < tensor.rows(); ++row) {
    for (int head = 0; head < tensor.heads(); ++head) {
      for (int d = head < heads ? dim : 0; d < tensor.dim(); ++d) {
        ASSERT_TRUE(std::isnan(tensor.at(row, head, d))) << row << " " << head << " " << d;
      }
    }
  }
}

}  // namespace tangram::test::emulated_sm80
