// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What tests of the Hopper backward pass share: problems on the device, and float64's answer.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "attn/cpu/random_attention.hpp"
#include "attn/sm90/backward/params.hpp"
#include "attn/sm90/sm90_backend.hpp"
#include "cuda/device_buffer.hpp"
#include "schedule/tile_list.hpp"
#include "support/relative_error.hpp"

namespace tangram::test::sm90_backward {

using cuda::DeviceBuffer;
using support::relative_error;

inline bool have_hopper() {
  int device = 0, major = 0, minor = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess && major == 9 &&
         minor == 0;
}

inline TileList transposed_tiles(const std::vector<AttnSlice>& slices, const AttnShape& shape) {
  std::vector<AttnSlice> keys_first;
  for (const AttnSlice& slice : slices) keys_first.push_back(schedule::transposed(slice));
  return schedule::build_tile_list(keys_first, shape.seqlen_k, shape.seqlen_q, sm90::backward::kTileShape);
}

/// The tensors of a problem on the device. Outputs start as what the host tensors hold (NaN).
struct OnDevice {
  std::vector<DeviceBuffer> buffers;
  AttnBackwardArgs args;

  template <class View>
  void move(View& view, const HostTensor& host) {
    buffers.push_back(DeviceBuffer::copy_of(host.view().data, static_cast<size_t>(host.bytes())));
    view.data = buffers.back().template as<void>();
  }
  float* move(const std::vector<float>& values) {
    buffers.push_back(DeviceBuffer::copy_of(values.data(), values.size() * sizeof(float)));
    return buffers.back().as<float>();
  }

  explicit OnDevice(RandomAttention& r) : args(r.backward_args()) {
    move(args.q, r.q), move(args.k, r.k), move(args.v, r.v), move(args.out, r.out), move(args.dout, r.dout);
    move(args.dq, r.dq), move(args.dk, r.dk), move(args.dv, r.dv);
    args.lse = move(r.lse);
    if (args.dsink != nullptr) {
      args.sink.data = move(r.sink);
      args.dsink = move(r.dsink);
    }
  }
  static void fetch(void* to, const void* from, int64_t bytes) {
    ASSERT_EQ(cudaMemcpy(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost), cudaSuccess);
  }
  void fetch(RandomAttention& r) {
    fetch(r.dq.view().data, args.dq.data, r.dq.bytes());
    fetch(r.dk.view().data, args.dk.data, r.dk.bytes());
    fetch(r.dv.view().data, args.dv.data, r.dv.bytes());
    if (args.dsink != nullptr) {
      fetch(r.dsink.data(), args.dsink, static_cast<int64_t>(r.dsink.size() * sizeof(float)));
    }
  }
};

inline std::unique_ptr<MaskSlot> prepare(const Sm90Backend& backend, const std::vector<AttnSlice>& slices,
                                         const AttnShape& shape) {
  return make_mask_slot(backend, slices, shape);
}
inline std::unique_ptr<MaskSlot> prepare(const Sm90Backend& backend, const RandomAttention& r) {
  return prepare(backend, r.slices, r.config.shape);
}

/// The problem, and what float64 says; out and lse are those of the reference.
inline reference::DenseResult solve(RandomAttention& r) {
  reference::DenseResult expected = reference::dense_attention(r.problem);
  const AttnShape& s = r.config.shape;
  size_t i = 0;
  for (int64_t row = 0; row < s.seqlen_q; ++row) {
    for (int h = 0; h < s.num_heads_q; ++h) {
      for (int d = 0; d < s.head_dim_v; ++d, ++i) r.out.set(row, h, d, static_cast<float>(expected.out[i]));
    }
  }
  for (size_t j = 0; j < r.lse.size(); ++j) r.lse[j] = static_cast<float>(expected.lse[j]);
  return expected;
}

// P and dS are rounded to the 16-bit dtype before they are multiplied, and gradients on output: errors of 2^-9
// (bfloat16) or 2^-12 (float16) a factor, which the norm averages to about 2.5e-3 and 3.2e-4. Naive passes in these
// dtypes are at 1.2e-2 and 1.5e-3.
inline double tolerance(DType dtype) { return dtype == DType::kFloat16 ? 8e-4 : 5e-3; }

}  // namespace tangram::test::sm90_backward
