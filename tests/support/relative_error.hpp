// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// ||got - want|| / ||want||: infinite where something is NaN; infinite elements must agree exactly.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tangram/tensor.hpp"

namespace tangram::support {

/// Relative error of the elements added so far.
class RelativeError {
 public:
  void add(double got, double want) {
    if (std::isinf(got) || std::isinf(want)) {
      if (got != want) difference_ = std::numeric_limits<double>::infinity();
      return;
    }
    difference_ += (got - want) * (got - want);
    norm_ += want * want;
  }
  double value() const {
    if (std::isnan(difference_)) return std::numeric_limits<double>::infinity();
    return std::sqrt(difference_ / std::max(norm_, 1e-30));
  }

 private:
  double difference_ = 0, norm_ = 0;
};

inline double relative_error(const HostTensor& got, const HostTensor& want) {
  RelativeError error;
  for (int64_t row = 0; row < want.rows(); ++row) {
    for (int head = 0; head < want.heads(); ++head) {
      for (int d = 0; d < want.dim(); ++d) error.add(got.at(row, head, d), want.at(row, head, d));
    }
  }
  return error.value();
}

/// `want`: dense; `got` may have heads and columns beyond.
inline double relative_error(const HostTensor& got, const std::vector<double>& want, int heads, int dim) {
  RelativeError error;
  size_t i = 0;
  for (int64_t row = 0; row < got.rows(); ++row) {
    for (int head = 0; head < heads; ++head) {
      for (int d = 0; d < dim; ++d, ++i) error.add(got.at(row, head, d), want[i]);
    }
  }
  return error.value();
}

inline double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
  RelativeError error;
  for (size_t i = 0; i < want.size(); ++i) error.add(got[i], want[i]);
  return error.value();
}

}  // namespace tangram::support
