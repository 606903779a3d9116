// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/measure/measured_mask.hpp"

#include <algorithm>
#include <random>

#include "tangram/tensor.hpp"

namespace tangram::cli {

RandomDeviceTensor::RandomDeviceTensor(DType dtype, int64_t rows, int heads, int dim, unsigned seed)
    : buffer_(static_cast<size_t>(std::max<int64_t>(rows, 1) * heads * dim) * size_of(dtype)), view_{} {
  view_.data = buffer_.as<void>();
  view_.dtype = dtype;
  view_.rows = rows;
  view_.heads = heads;
  view_.dim = dim;
  view_.row_stride = int64_t{heads} * dim;
  view_.head_stride = dim;
  constexpr int kBlock = 1 << 20;
  HostTensor block(DType::kFloat32, 1, 1, kBlock);
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::generate_n(block.data<float>(), kBlock, [&] { return normal(rng); });
  const HostTensor values = block.to(dtype);
  const auto block_bytes = static_cast<size_t>(values.bytes());
  for (size_t at = 0; at < buffer_.bytes(); at += block_bytes) {
    cuda::upload(buffer_.as<char>() + at, values.data<char>(), std::min(block_bytes, buffer_.bytes() - at));
  }
}

TensorView RandomDeviceTensor::first_rows(int64_t rows, int heads) const {
  TensorView view = view_;
  view.rows = rows;
  view.heads = heads;
  view.row_stride = int64_t{heads} * view.dim;
  return view;
}

MaskTensors::MaskTensors(const HeadConfig& heads, int64_t seqlen_q, int64_t seqlen_k)
    : q(heads.dtype, seqlen_q, heads.num_heads_q, heads.head_dim, 1),
      k(heads.dtype, seqlen_k, heads.num_heads_kv, heads.head_dim, 2),
      v(heads.dtype, seqlen_k, heads.num_heads_kv, heads.head_dim_v, 3),
      dout(heads.dtype, seqlen_q, heads.num_heads_q, heads.head_dim_v, 4),
      out(heads.dtype, seqlen_q, heads.num_heads_q, heads.head_dim_v, 5),
      dq(heads.dtype, seqlen_q, heads.num_heads_q, heads.head_dim, 6),
      dk(heads.dtype, seqlen_k, heads.num_heads_kv, heads.head_dim, 7),
      dv(heads.dtype, seqlen_k, heads.num_heads_kv, heads.head_dim_v, 8),
      lse(static_cast<size_t>(seqlen_q * heads.num_heads_q) * sizeof(float)) {}

MeasuredMask::MeasuredMask(std::span<const AttnSlice> slices, const AttnShape& shape, const MaskTensors& tensors,
                           const AttnBackend& backend, const AttnOptions& options, AttnPasses passes)
    : attention_(slices, shape, backend),
      passes_(passes),
      forward_calls_([this] { attention_.forward(forward_); }),
      backward_calls_([this] { attention_.backward(backward_); }) {
  for (const AttnSlice& slice : slices) area_ += area(slice);
  auto* lse = tensors.lse.as<float>();
  const int64_t rows = shape.seqlen_q, keys = shape.seqlen_k;
  const int heads = shape.num_heads_q, key_heads = shape.num_heads_kv;
  forward_.q = backward_.q = tensors.q.first_rows(rows, heads);
  forward_.k = backward_.k = tensors.k.first_rows(keys, key_heads);
  forward_.v = backward_.v = tensors.v.first_rows(keys, key_heads);
  forward_.out = tensors.out.first_rows(rows, heads);
  backward_.out = forward_.out;
  forward_.lse = lse;
  backward_.lse = lse;
  backward_.dout = tensors.dout.first_rows(rows, heads);
  backward_.dq = tensors.dq.first_rows(rows, heads);
  backward_.dk = tensors.dk.first_rows(keys, key_heads);
  backward_.dv = tensors.dv.first_rows(keys, key_heads);
  forward_.options = backward_.options = options;
}

void MeasuredMask::ping_pong_wait() {
  if (passes_ == AttnPasses::kBackward) {
    attention_.forward(forward_);
  } else {
    forward_calls_.ping_pong_wait();
  }
  if (passes_ != AttnPasses::kForward) backward_calls_.ping_pong_wait();
}

}  // namespace tangram::cli
