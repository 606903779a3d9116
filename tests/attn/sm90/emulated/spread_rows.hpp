// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Where a backward call reads or writes something else than usual: gradients of keys row by row, delta instead of out.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <iterator>
#include <limits>
#include <vector>

#include "attn/cpu/random_attention.hpp"
#include "tangram/dkv_scatter_map.hpp"

namespace tangram::test::emulated_backward {

/// rowsum(dout * out), [rows, heads]. Rows without keys have poison for dout.
inline std::vector<float> delta_of(RandomAttention& r, const reference::DenseResult& expected) {
  const auto dim = static_cast<size_t>(r.config.shape.head_dim_v);
  const std::vector<double> dout = values_of(r.dout_view(), r.dout);
  std::vector<float> delta(expected.out.size() / dim);
  for (size_t i = 0; i < expected.out.size(); ++i) {
    if (expected.out[i] != 0) delta[i / dim] += static_cast<float>(expected.out[i] * dout[i]);
  }
  return delta;
}

/// Where the rows of one gradient go that is spread over three tensors: every third one is settled, and every third one
/// another tensor's. All have as many rows as there are keys, in the opposite order.
class SpreadRows {
 public:
  SpreadRows(HostTensor& gradient, DType final_rows) : gradient_(&gradient) {
    for (size_t i = 0; i < std::size(tensors_); ++i) {
      tensors_[i] =
          HostTensor(i == 1 ? final_rows : gradient.dtype(), gradient.rows(), gradient.heads(), gradient.dim());
      tensors_[i].fill(std::numeric_limits<float>::quiet_NaN());
    }
    other_ = tensors_[2].view().data;
  }
  static std::vector<uint32_t> table(int64_t keys) {
    std::vector<uint32_t> places;
    for (int64_t key = 0; key < keys; ++key) {
      places.push_back(dkv_scatter_target(static_cast<uint32_t>(key % 3), keys - 1 - key));
    }
    return places;
  }
  void* own() { return tensors_[0].view().data; }
  void* final_rows() { return tensors_[1].view().data; }
  void* const* others() const { return &other_; }

  /// Brings the rows back; expects that nothing was written elsewhere.
  void gather() {
    const int64_t keys = gradient_->rows();
    for (int64_t key = 0; key < keys; ++key) {
      for (int head = 0; head < gradient_->heads(); ++head) {
        for (int d = 0; d < gradient_->dim(); ++d) {
          for (int64_t tensor = 0; tensor < 3; ++tensor) {
            const float value = tensors_[tensor].at(keys - 1 - key, head, d);
            if (tensor == key % 3) {
              gradient_->set(key, head, d, value);
            } else {
              ASSERT_TRUE(std::isnan(value)) << "tensor " << tensor << " key " << key;
            }
          }
        }
      }
    }
  }

 private:
  HostTensor* gradient_;
  HostTensor tensors_[3];  // that of the call, the settled one, another
  void* other_;
};
static_assert(kOwnTensor == 0 && kFinalTensor == 1 && kFirstOtherTensor == 2);

}  // namespace tangram::test::emulated_backward
