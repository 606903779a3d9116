// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The Hopper forward pass on masks with fewer tiles than multiprocessors, whose tiles are cut along their keys, against
// float64. Bounds as in forward_test.cpp; merging is done in float32 and adds nothing to them. Needs a Hopper GPU;
// skipped elsewhere.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <span>
#include <vector>

#include "attn/sm90/common/shapes.hpp"
#include "attn/sm90/head_dims.hpp"
#include "attn/sm90/on_device.hpp"
#include "schedule/kv_splits.hpp"
#include "support/sample.hpp"

namespace tangram {
namespace {

using test::HeadDims;
using test::kHeadDims;
using test::make_random;
using test::OnDevice;
using test::RandomAttention;
using test::RandomConfig;

class Sm90Parts : public test::Sm90OnStream {
 protected:
  /// The mask made ready, which must be one in parts.
  std::unique_ptr<MaskSlot> prepare(const std::vector<AttnSlice>& slices, const AttnShape& shape) const {
    std::unique_ptr<MaskSlot> slot = make_mask_slot(backend_, slices, shape, {.passes = AttnPasses::kForward});
    EXPECT_GT(backend_.workspace_bytes(*slot, AttnPass::kForward), 0) << "the test must be of a mask in parts";
    return slot;
  }

  Sm90Backend backend_;
};

RandomConfig config_of(int64_t rows, int64_t keys, int heads_q, int heads_kv, HeadDims dims,
                       DType dtype = DType::kBFloat16) {
  RandomConfig config;
  config.shape = test::shape_of(rows, keys, heads_q, heads_kv, dims, dtype);
  config.out_dtype = config.grad_dtype = dtype;
  return config;
}

void expect_right(RandomAttention& r) {
  const reference::DenseResult wanted = reference::dense_attention(r.problem);
  const double bound = r.config.shape.dtype == DType::kBFloat16 ? 4.0 / 512 : 8.0 / 4096;
  const test::Distance out = test::distance(test::values_of(r.out_view(), r.out), wanted.out);
  EXPECT_LE(out.error, bound * out.norm);
  test::expect_logits(r, wanted);
}

/// Every third row sees the first keys, the others the rest: intervals of their own for each row.
std::vector<AttnSlice> row_by_row(int64_t rows, int64_t keys) {
  std::vector<AttnSlice> slices;
  for (int64_t row = 0; row < rows; ++row) {
    const Range seen = row % 3 == 0 ? Range{0, keys / 3} : Range{keys / 3, keys - row};
    slices.push_back(AttnSlice::full({row, row + 1}, seen));
  }
  return slices;
}

TEST_F(Sm90Parts, AgreeWithFloat64ForAllMasksTypesAndOptions) {
  unsigned seed = 0;
  size_t turn = 0;
  for (const HeadDims head_dim : kHeadDims) {
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      for (const float softcap : {0.0f, 5.0f}) {
        RandomConfig config = config_of(21, 6001, 8, 2, head_dim, dtype);
        config.softcap = softcap;
        config.seqlen_sink = seed % 3;
        config.sink_layout = seed % 2 == 0 ? SinkLayout::kSh : SinkLayout::kSsh;
        config.strided = seed % 2 == 1;
        config.gap = 8;
        if (seed % 4 == 3) config.out_dtype = DType::kFloat32;
        const int64_t rows = config.shape.seqlen_q, keys = config.shape.seqlen_k;
        const std::vector<AttnSlice> masks[] = {{AttnSlice::full({0, rows}, {0, keys})},
                                                {AttnSlice::causal({2, rows}, {7, keys})},
                                                {{{0, rows}, {0, keys}, 500, 5500}},
                                                row_by_row(rows, keys)};
        // The reference takes a second a mask: one in turn for the kernels that take any head dimension.
        const bool all = sm90::has_exact_kernels(head_dim.qk, head_dim.v) || support::is_long_run();
        const size_t first = all ? 0 : turn++ % std::size(masks);
        for (const std::vector<AttnSlice>& slices : std::span(masks).subspan(first, all ? std::size(masks) : 1)) {
          SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << head_dim << ", softcap " << softcap);
          RandomAttention r = make_random(config, slices, seed++);
          const auto mask = prepare(slices, config.shape);
          OnDevice device(r);
          if (seed % 2 == 0) device.forward.max_logits = nullptr;
          test::poison_workspace(*mask);
          backend_.forward(*mask, device.forward);
          device.fetch();
          if (device.forward.max_logits == nullptr) r.max_logits.clear();
          expect_right(r);
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST_F(Sm90Parts, ContinueFromAnEarlierCall) {
  for (const HeadDims dims : kHeadDims) {
    SCOPED_TRACE(dims);
    const int64_t cut = dims.qk % 64 == 0 ? 5000 : 600;  // both calls in parts, and only the second
    RandomConfig config = config_of(33, 9000, 8, 1, dims);
    config.out_dtype = DType::kFloat32;
    config.seqlen_sink = 2;
    const std::vector<AttnSlice> first{AttnSlice::full({0, 20}, {0, cut})},
        second{AttnSlice::full({0, 30}, {cut, 9000})};
    RandomAttention r = make_random(config, {first[0], second[0]}, 11);
    OnDevice device(r);
    AttnForwardArgs args = device.forward;
    args.sink = {};
    const auto mask = make_mask_slot(backend_, first, config.shape, {.passes = AttnPasses::kForward});
    backend_.forward(*mask, args, stream_);
    device.forward.accumulate = true;
    const auto rest = prepare(second, config.shape);
    backend_.forward(*rest, device.forward, stream_);
    cuda::check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    device.fetch();
    expect_right(r);
  }
}

TEST_F(Sm90Parts, OneRowOf131072Keys) {
  for (const HeadDims dims : kHeadDims) {
    SCOPED_TRACE(dims);
    RandomConfig config = config_of(1, 1 << 17, 8, 1, dims);
    RandomAttention r = make_random(config, {AttnSlice::full({0, 1}, {0, 1 << 17})}, 12);
    const auto mask = prepare(r.slices, config.shape);
    OnDevice device(r);
    backend_.forward(*mask, device.forward);
    device.fetch();
    expect_right(r);
  }
}

TEST_F(Sm90Parts, AHundredLaunchesAreBitwiseEqualOnAnyNumberOfMultiprocessors) {
  for (const HeadDims dims : kHeadDims) {
    SCOPED_TRACE(dims);
    RandomConfig config = config_of(40, 8000, 8, 2, dims);
    config.seqlen_sink = 1;
    RandomAttention r = make_random(config, {AttnSlice::causal({0, 40}, {0, 8000})}, 13);
    const auto mask = prepare(r.slices, config.shape);
    OnDevice device(r);
    std::vector<char> first;
    for (int launch = 0; launch < 100; ++launch) {
      device.poison_outputs();
      device.forward.options.sm_margin = launch % 4 * 43;  // 132 to 3 CTAs
      test::poison_workspace(*mask);
      for (int again = 0; again <= launch % 3; ++again) backend_.forward(*mask, device.forward, stream_);
      cuda::check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
      if (launch == 0) first = device.output_bytes();
      ASSERT_TRUE(device.output_bytes() == first) << "launch " << launch;
    }
  }
}

TEST_F(Sm90Parts, TheVeryFirstCallCanBeCaptured) {
  for (const HeadDims dims : kHeadDims) {
    SCOPED_TRACE(dims);
    RandomConfig config = config_of(16, 5000, 4, 1, dims);
    RandomAttention r = make_random(config, {AttnSlice::full({0, 16}, {0, 5000})}, 14);
    const auto mask = prepare(r.slices, config.shape);
    OnDevice device(r);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    // In global mode capturing fails on anything that allocates or waits.
    cuda::check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
    for (int i = 0; i < 3; ++i) backend_.forward(*mask, device.forward, stream_);
    cuda::check(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
    cuda::check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
    for (int i = 0; i < 3; ++i) cuda::check(cudaGraphLaunch(executable, stream_), "cudaGraphLaunch");
    cuda::check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    device.fetch();
    expect_right(r);
    EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
}

}  // namespace
}  // namespace tangram
