// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The head dimensions that suites of the Hopper backend go through: each class, and smaller dimensions in its kernels.
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>

#include "tangram/attn_shape.hpp"

namespace tangram::test {

struct HeadDims {
  int qk, v;

  bool is_128() const { return qk == 128 && v == 128; }
  /// For names of tests: 96, or 192_and_128.
  std::string name() const { return qk == v ? std::to_string(qk) : std::to_string(qk) + "_and_" + std::to_string(v); }
  friend std::ostream& operator<<(std::ostream& out, const HeadDims& dims) {
    return out << "head dims " << dims.name();
  }
};

inline constexpr HeadDims kHeadDims[] = {{128, 128}, {64, 64},   {32, 32}, {96, 96},
                                         {192, 128}, {256, 256}, {80, 80}, {72, 40}};

inline AttnShape shape_of(int64_t rows, int64_t keys, int heads_q, int heads_kv, HeadDims dims,
                          DType dtype = DType::kBFloat16) {
  return {rows, keys, heads_q, heads_kv, dims.qk, dims.v, dtype};
}

/// A parameter of a suite: INSTANTIATE_TEST_SUITE_P(Dims, Suite, test::every_head_dim(), test::name_of_dims).
inline auto every_head_dim() { return testing::ValuesIn(kHeadDims); }
inline std::string name_of_dims(const testing::TestParamInfo<HeadDims>& of) { return of.param.name(); }

}  // namespace tangram::test
