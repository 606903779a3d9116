// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Attention calls on the current GPU, timed, on random tensors in its memory.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "cli/measure/timed_call.hpp"
#include "cuda/device_buffer.hpp"
#include "tangram/flex_attention.hpp"

namespace tangram::cli {

/// A device tensor of random values: a block drawn on the host, repeated.
class RandomDeviceTensor {
 public:
  RandomDeviceTensor(DType dtype, int64_t rows, int heads, int dim, unsigned seed);
  /// Contiguous view of the first `rows` rows with `heads` heads.
  TensorView first_rows(int64_t rows, int heads) const;

 private:
  cuda::DeviceBuffer buffer_;
  TensorView view_;
};

/// Tensors for the largest mask, of which smaller ones take the first rows.
struct MaskTensors {
  MaskTensors(const HeadConfig& heads, int64_t seqlen_q, int64_t seqlen_k);

  RandomDeviceTensor q, k, v, dout, out, dq, dk, dv;
  cuda::DeviceBuffer lse;
};

/// One mask, and the times of its turns. What it is made of must outlive it.
class MeasuredMask {
 public:
  MeasuredMask(std::span<const AttnSlice> slices, const AttnShape& shape, const MaskTensors& tensors,
               const AttnBackend& backend, const AttnOptions& options, AttnPasses passes = AttnPasses::kBoth);
  MeasuredMask(const MeasuredMask&) = delete;  // its calls refer to it
  MeasuredMask& operator=(const MeasuredMask&) = delete;

  /// Backward works on what forward left: out and lse are this mask's.
  void ping_pong_wait();

  AttnPasses passes() const { return passes_; }
  int64_t visible_area() const { return area_; }
  /// Medians; 0 for a pass that is not this mask's.
  double forward_s() const { return forward_calls_.median_s(); }
  double backward_s() const { return backward_calls_.median_s(); }

 private:
  FlexAttention attention_;
  const AttnPasses passes_;
  AttnForwardArgs forward_;
  AttnBackwardArgs backward_;
  int64_t area_ = 0;
  TimedCall forward_calls_, backward_calls_;
};

}  // namespace tangram::cli
