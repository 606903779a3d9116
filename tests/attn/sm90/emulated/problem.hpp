// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What the problems for the forward and the backward kernels have in common.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "attn/cpu/random_attention.hpp"
#include "attn/sm90/common/shapes.hpp"

namespace tangram::test::emulated_problem {

/// Head dimensions are those of the kernel.
inline AttnShape shape_of(int64_t rows, int64_t keys, int heads_q, int heads_kv) {
  return {rows, keys, heads_q, heads_kv, 0, 0, DType::kBFloat16};
}

/// Two that touch, one shorter than a tile, fully masked rows and keys, one of a rectangle.
inline std::vector<AttnSlice> documents() {
  return {AttnSlice::causal({0, 130}, {0, 130}), AttnSlice::full({130, 300}, {130, 300}),
          AttnSlice::causal({300, 333}, {300, 333}), AttnSlice::full({400, 640}, {340, 660})};
}
/// Documents of 270 rows and 300 keys.
inline std::vector<AttnSlice> small_documents() {
  return {AttnSlice::causal({0, 130}, {0, 130}), AttnSlice::full({130, 200}, {130, 290}),
          AttnSlice::full({230, 260}, {205, 300})};
}
/// Few rows and keys of 70 and at least 101.
inline std::vector<AttnSlice> short_slices() {
  return {AttnSlice::full({0, 5}, {3, 20}), AttnSlice::full({50, 60}, {100, 101})};
}

inline RandomConfig config_of(AttnShape shape, int head_dim, int head_dim_v, float softcap, bool strided) {
  shape.head_dim = head_dim;
  shape.head_dim_v = head_dim_v;
  RandomConfig config;
  config.shape = shape;
  config.softcap = softcap;
  config.strided = strided;
  config.gap = 8;
  return config;
}

inline bool has_class(int head_dim, int head_dim_v, int class_dim, int class_dim_v) {
  const sm90::ShapeClass* const found = sm90::find_shape_class(head_dim, head_dim_v);
  return found != nullptr && found->head_dim == class_dim && found->head_dim_v == class_dim_v;
}

/// Memory for an image of lists, of any content before, and where it begins.
struct ImageMemory {
  std::vector<std::byte> bytes;
  std::byte* allocate(size_t num_bytes) {
    bytes.assign(num_bytes + 256, std::byte{0x5a});
    return bytes.data() + (256 - reinterpret_cast<uintptr_t>(bytes.data()) % 256);
  }
};

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

}  // namespace tangram::test::emulated_problem
