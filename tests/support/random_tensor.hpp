// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <random>

#include "tangram/tensor.hpp"

namespace tangram::support {

/// Tensor of normally distributed elements.
inline HostTensor random_tensor(DType dtype, int64_t rows, int heads, int dim, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  HostTensor tensor(dtype, rows, heads, dim);
  for (int64_t row = 0; row < rows; ++row) {
    for (int head = 0; head < heads; ++head) {
      for (int d = 0; d < dim; ++d) tensor.set(row, head, d, normal(rng));
    }
  }
  return tensor;
}

}  // namespace tangram::support
