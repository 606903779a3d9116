// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The Hopper forward kernel against the float64 backend. Inputs are poisoned with NaN wherever no slice looks, outputs
// before each run. Bounds: the kernel rounds probabilities and outputs to the input's type, 2^-9 relative in bfloat16
// and 2^-12 in float16, at random signs; four and eight times that bounds the relative L2 error of whole tensors. lse
// is float32 with approximate exponentials: 1e-3 absolute.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "attn/gpu/slot.hpp"
#include "attn/reference/reference_backend.hpp"
#include "attn/sm90/common/shapes.hpp"
#include "attn/sm90/head_dims.hpp"
#include "attn/sm90/on_device.hpp"
#include "attn/sm90/sm90_backend.hpp"
#include "cuda/check.hpp"
#include "cuda/device_buffer.hpp"
#include "schedule/tile_list.hpp"
#include "tangram/error.hpp"

namespace tangram {
namespace {

using test::HeadDims;
using test::upload;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Case {
  AttnShape shape;
  std::vector<AttnSlice> slices;
  AttnOptions options;
  int num_sinks = 0;
  SinkLayout sink_layout = SinkLayout::kSh;
  bool max_logits = false;
  bool float_out = false;
  bool in_two_parts = false;  // accumulate the second half of the slices onto the first
  float growth = 0;           // keys grow along the sequence: references must follow the scores
  unsigned seed = 1;
};

struct Result {
  HostTensor out;
  std::vector<float> lse, max_logits;
};

struct Inputs {
  HostTensor q, k, v;
  std::vector<float> sink;
};

Inputs make_inputs(const Case& c, bool poisoned) {
  std::mt19937 rng(c.seed);
  std::normal_distribution<float> normal;
  std::vector<bool> seen_q(static_cast<size_t>(c.shape.seqlen_q)), seen_k(static_cast<size_t>(c.shape.seqlen_k));
  for (const AttnSlice& slice : c.slices) {
    const AttnSlice trimmed = canonical(slice);
    for (int64_t i = trimmed.q_range.begin; i < trimmed.q_range.end; ++i) seen_q[static_cast<size_t>(i)] = true;
    for (int64_t j = trimmed.k_range.begin; j < trimmed.k_range.end; ++j) seen_k[static_cast<size_t>(j)] = true;
  }
  const auto fill = [&](int64_t rows, int heads, int dim, const std::vector<bool>& seen, float growth) {
    HostTensor tensor(c.shape.dtype, rows, heads, dim);
    for (int64_t row = 0; row < rows; ++row) {
      const float scale = 1.0f + growth * static_cast<float>(row) / static_cast<float>(rows);
      for (int head = 0; head < heads; ++head) {
        for (int d = 0; d < dim; ++d) {
          const float value = scale * normal(rng);
          tensor.set(row, head, d, poisoned && !seen[static_cast<size_t>(row)] ? kNaN : value);
        }
      }
    }
    return tensor;
  };
  Inputs inputs;
  inputs.q = fill(c.shape.seqlen_q, c.shape.num_heads_q, c.shape.head_dim, seen_q, 0);
  inputs.k = fill(c.shape.seqlen_k, c.shape.num_heads_kv, c.shape.head_dim, seen_k, c.growth);
  inputs.v = fill(c.shape.seqlen_k, c.shape.num_heads_kv, c.shape.head_dim_v, seen_k, 0);
  const int64_t sink_rows = c.sink_layout == SinkLayout::kSsh ? c.shape.seqlen_q : 1;
  inputs.sink.resize(static_cast<size_t>(sink_rows * c.num_sinks * c.shape.num_heads_q));
  for (float& value : inputs.sink) value = normal(rng);
  return inputs;
}

Result run_reference(const Case& c) {
  Inputs inputs = make_inputs(c, false);
  Result result{HostTensor(DType::kFloat32, c.shape.seqlen_q, c.shape.num_heads_q, c.shape.head_dim_v),
                std::vector<float>(static_cast<size_t>(c.shape.seqlen_q * c.shape.num_heads_q)),
                std::vector<float>(static_cast<size_t>(c.shape.num_heads_q))};
  const ReferenceBackend backend;
  const auto mask = make_mask_slot(backend, c.slices, c.shape);
  AttnForwardArgs args{inputs.q, inputs.k, inputs.v, result.out, result.lse.data()};
  args.max_logits = result.max_logits.data();
  args.sink = {inputs.sink.data(), c.num_sinks, c.sink_layout};
  args.options = c.options;
  backend.forward(*mask, args, nullptr);
  return result;
}

ConstTensorView on_device(const HostTensor& host, const cuda::DeviceBuffer& buffer) {
  ConstTensorView view = host.view();
  view.data = buffer.as<void>();
  return view;
}

Result run_sm90(const Case& c) {
  const Inputs inputs = make_inputs(c, true);
  Result result{HostTensor(c.float_out || c.in_two_parts ? DType::kFloat32 : c.shape.dtype, c.shape.seqlen_q,
                           c.shape.num_heads_q, c.shape.head_dim_v),
                std::vector<float>(static_cast<size_t>(c.shape.seqlen_q * c.shape.num_heads_q), kNaN),
                std::vector<float>(static_cast<size_t>(c.shape.num_heads_q), kNaN)};
  result.out.fill(kNaN);
  const cuda::DeviceBuffer q = upload(inputs.q), k = upload(inputs.k), v = upload(inputs.v), out = upload(result.out);
  const cuda::DeviceBuffer lse = upload(result.lse), logits = upload(result.max_logits), sink = upload(inputs.sink);
  AttnForwardArgs args{on_device(inputs.q, q), on_device(inputs.k, k), on_device(inputs.v, v), result.out.view(),
                       lse.as<float>()};
  args.out.data = out.as<void>();
  if (c.max_logits) args.max_logits = logits.as<float>();
  args.options = c.options;
  const Sm90Backend backend;
  const auto run = [&](std::span<const AttnSlice> slices) {
    const auto mask = make_mask_slot(backend, slices, c.shape, {.passes = AttnPasses::kForward});
    backend.forward(*mask, args, nullptr);
    cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  };
  const size_t half = c.in_two_parts ? c.slices.size() / 2 : 0;
  if (c.in_two_parts) {
    run(std::span(c.slices).first(half));
    args.accumulate = true;
  }
  args.sink = {sink.as<float>(), c.num_sinks, c.sink_layout};
  run(std::span(c.slices).subspan(half));
  const auto download = [](void* host, const cuda::DeviceBuffer& buffer) {
    if (buffer.bytes() == 0) return;
    cuda::check(cudaMemcpy(host, buffer.as<void>(), buffer.bytes(), cudaMemcpyDeviceToHost), "cudaMemcpy");
  };
  download(result.out.view().data, out);
  download(result.lse.data(), lse);
  download(result.max_logits.data(), logits);
  return result;
}

void expect_close(const Case& c) {
  SCOPED_TRACE(testing::Message() << "head dims " << c.shape.head_dim << " and " << c.shape.head_dim_v);
  const Result expected = run_reference(c), actual = run_sm90(c);
  double error = 0, norm = 0;
  for (int64_t row = 0; row < c.shape.seqlen_q; ++row) {
    for (int head = 0; head < c.shape.num_heads_q; ++head) {
      const auto i = static_cast<size_t>(row * c.shape.num_heads_q + head);
      if (std::isinf(expected.lse[i])) {
        ASSERT_EQ(actual.lse[i], expected.lse[i]) << "row " << row << " head " << head;
      } else {
        ASSERT_NEAR(actual.lse[i], expected.lse[i], 1e-3 + 1e-6 * std::abs(expected.lse[i])) << "row " << row;
      }
      for (int d = 0; d < c.shape.head_dim_v; ++d) {
        const double a = actual.out.at(row, head, d), e = expected.out.at(row, head, d);
        ASSERT_FALSE(std::isnan(a)) << "row " << row << " head " << head << " column " << d;
        error += (a - e) * (a - e);
        norm += e * e;
      }
    }
  }
  const double bound = c.shape.dtype == DType::kBFloat16 ? 4.0 / 512 : 8.0 / 4096;
  EXPECT_LE(std::sqrt(error), bound * std::sqrt(norm));
  if (c.max_logits) {
    for (size_t h = 0; h < expected.max_logits.size(); ++h) {
      if (std::isinf(expected.max_logits[h])) {
        EXPECT_EQ(actual.max_logits[h], expected.max_logits[h]);
      } else {
        EXPECT_NEAR(actual.max_logits[h], expected.max_logits[h], 1e-3 + 1e-6 * std::abs(expected.max_logits[h]));
      }
    }
  }
}

Case simple(int64_t rows, int64_t keys, int heads_q, int heads_kv, HeadDims dims, std::vector<AttnSlice> slices) {
  Case c;
  c.shape = test::shape_of(rows, keys, heads_q, heads_kv, dims);
  c.slices = std::move(slices);
  return c;
}

AttnSlice causal(int64_t rows, int64_t keys) { return AttnSlice::causal({0, rows}, {0, keys}); }

// Tiles of classes of head dims differ: rows, warpgroups, keys of a step, stages.
using test::kHeadDims;

TEST(Sm90Forward, Full) {
  for (const HeadDims dim : kHeadDims) expect_close(simple(130, 300, 8, 1, dim, {AttnSlice::full({0, 130}, {0, 300})}));
}
TEST(Sm90Forward, Causal) {
  for (const HeadDims dim : kHeadDims) expect_close(simple(333, 517, 4, 2, dim, {causal(333, 517)}));
}
TEST(Sm90Forward, LongRuns) {
  for (const HeadDims dim : kHeadDims)
    expect_close(simple(200, 3000, 2, 1, dim, {AttnSlice::full({0, 200}, {0, 2900})}));
}
TEST(Sm90Forward, ManyHeadsOnOneKeyHead) {
  for (const HeadDims dim : kHeadDims) expect_close(simple(70, 200, 64, 1, dim, {causal(70, 200)}));
}
TEST(Sm90Forward, GroupsOfThree) {
  for (const HeadDims dim : kHeadDims) expect_close(simple(200, 200, 6, 2, dim, {causal(200, 200)}));
}
TEST(Sm90Forward, OneRowOneKey) {
  for (const HeadDims dim : kHeadDims) expect_close(simple(1, 1, 2, 2, dim, {AttnSlice::full({0, 1}, {0, 1})}));
}
TEST(Sm90Forward, NothingVisible) {
  for (const HeadDims dim : kHeadDims) expect_close(simple(100, 50, 4, 4, dim, {}));
}
TEST(Sm90Forward, NoKeys) {
  for (const HeadDims dim : kHeadDims) expect_close(simple(100, 0, 4, 4, dim, {}));
}

TEST(Sm90Forward, RowsWithoutKeysBecomeZero) {
  for (const HeadDims dim : kHeadDims) expect_close(simple(150, 150, 4, 4, dim, {AttnSlice::full({20, 61}, {30, 77})}));
}

TEST(Sm90Forward, ShortDocumentsAndAWindow) {
  for (const HeadDims dim : kHeadDims) {
    Case c = simple(600, 600, 8, 1, dim, {});
    for (int64_t begin = 0; begin < 200; begin += 13) {
      const Range rows{begin, std::min<int64_t>(begin + 13, 200)};
      c.slices.push_back(AttnSlice::causal(rows, rows));
    }
    c.slices.push_back({{200, 600}, {200, 600}, -90, 0});
    expect_close(c);
  }
}

TEST(Sm90Forward, RunsWhoseFirstTilesAreWholeAndLaterOnesAreNot) {
  // Row intervals are read with the first step that masks something: the second, the third or none of a run, and not
  // the same one in all warpgroups.
  for (const HeadDims dim : kHeadDims) {
    Case c = simple(300, 2000, 4, 1, dim, {});
    c.slices.push_back(AttnSlice::full({0, 150}, {0, 300}));
    c.slices.push_back(AttnSlice::causal({0, 150}, {512, 900}));
    c.slices.push_back(AttnSlice::full({0, 150}, {1024, 1280}));
    c.slices.push_back(AttnSlice::from_type(MaskType::kInvCausal, {0, 150}, {1300, 1700}));
    c.slices.push_back(AttnSlice::full({150, 300}, {128, 384}));
    c.slices.push_back(AttnSlice::from_type(MaskType::kBiCausal, {150, 300}, {600, 1400}));
    c.slices.push_back(AttnSlice::full({200, 300}, {1664, 1920}));
    expect_close(c);
  }
}

TEST(Sm90Forward, ManyRowsOf192And128TakeLargerWorkTiles) {
  for (const float softcap : {0.0f, 5.0f}) {
    Case c = simple(2400, 2400, 64, 4, {192, 128}, {AttnSlice::full({1000, 1030}, {0, 2400})});
    c.options.softcap = softcap;
    ASSERT_GE(c.shape.seqlen_q * c.shape.num_heads_q, sm90::kManyRows);
    for (int64_t begin = 0; begin < 1000; begin += 40) {
      c.slices.push_back(AttnSlice::causal({begin, begin + 40}, {begin, begin + 40}));
    }
    c.slices.push_back({{1030, 2400}, {0, 1300}, -50, 0});
    expect_close(c);
  }
}

TEST(Sm90Forward, Float16) {
  for (const HeadDims dim : kHeadDims) {
    Case c = simple(200, 400, 4, 1, dim, {causal(200, 400)});
    c.shape.dtype = DType::kFloat16;
    expect_close(c);
  }
}

TEST(Sm90Forward, SoftcapWithMaxLogits) {
  for (const HeadDims dim : kHeadDims) {
    Case c = simple(300, 300, 4, 2, dim, {causal(300, 300)});
    c.options.softcap = 5.0f;
    c.max_logits = true;
    expect_close(c);
  }
}

// Blocks that leave steps half empty unless they are gathered (schedule/gather_runs.hpp), beside a slice that is not.
TEST(Sm90Forward, GathersBlocks) {
  if (!check_hopper().found) GTEST_SKIP() << check_hopper().text;
  for (const HeadDims head_dim : kHeadDims) {
    for (const int64_t block : {64, 48, 16}) {
      SCOPED_TRACE(testing::Message() << head_dim << ", blocks of " << block);
      std::vector<AttnSlice> slices;
      // Rows that see the same: with head_dim 64 work tiles of 24 queries, or 24, 24 and 16.
      const int64_t rows = block == 64 ? 64 : 192;
      for (int64_t q = 0; q < 900; q += rows) {
        for (int64_t k = q % 5; k + block <= 2000; k += 3 * block) {
          slices.push_back(AttnSlice::full({q, std::min<int64_t>(q + rows, 900)}, {k, k + block}));
        }
      }
      slices.push_back({{0, 900}, {2000, 2500}, -2500, 1616});  // rows that see none of these end at a tile
      Case c = simple(900, 2500, 16, 2, head_dim, slices);
      const Sm90Backend backend;
      const auto mask = make_mask_slot(backend, c.slices, c.shape, {.passes = AttnPasses::kForward});
      const schedule::ForwardChoice choice = gpu::as_gpu_slot(*mask).forward_view().choice;
      ASSERT_EQ(choice.gathers, sm90::gathers_runs(head_dim.qk, head_dim.v));
      ASSERT_EQ(choice.work_tiles == sm90::ForwardWorkTiles::kAligned,
                sm90::aligns_work_tiles(head_dim.qk, head_dim.v));
      expect_close(c);
      c.options.softcap = 20;
      c.num_sinks = 1;
      c.float_out = true;
      expect_close(c);
      c.options.softcap = 0;
      c.shape.dtype = DType::kFloat16;
      c.max_logits = true;
      expect_close(c);
    }
  }
}

// Blocks of a whole step, many runs a work tile: fetched ahead by kernels of two warpgroups, and with head_dim 64 in
// work tiles that begin with the blocks and gather nothing.
TEST(Sm90Forward, TakesManyRuns) {
  if (!check_hopper().found) GTEST_SKIP() << check_hopper().text;
  for (const HeadDims head_dim : kHeadDims) {
    SCOPED_TRACE(testing::Message() << head_dim);
    std::vector<AttnSlice> slices;
    for (int64_t q = 0; q < 500; q += 128) {
      for (int64_t k = q; k + 128 <= 4000; k += 512) {
        slices.push_back(AttnSlice::full({q, std::min<int64_t>(q + 128, 500)}, {k, k + 128}));
      }
    }
    Case c = simple(500, 4000, 16, 2, head_dim, slices);
    const Sm90Backend backend;
    const auto mask = make_mask_slot(backend, c.slices, c.shape, {.passes = AttnPasses::kForward});
    const schedule::ForwardChoice choice = gpu::as_gpu_slot(*mask).forward_view().choice;
    ASSERT_EQ(choice.work_tiles == sm90::ForwardWorkTiles::kAligned, sm90::aligns_work_tiles(head_dim.qk, head_dim.v));
    if (sm90::fetches_runs(head_dim.qk, head_dim.v)) {
      ASSERT_TRUE(choice.many_runs);
    }
    expect_close(c);
    c.num_sinks = 1;
    c.options.softcap = 20;
    expect_close(c);
    c.options.softcap = 0;
    c.shape.dtype = DType::kFloat16;
    c.max_logits = true;
    expect_close(c);
  }
}

TEST(Sm90Forward, SinksOfBothLayouts) {
  for (const HeadDims dim : kHeadDims) {
    Case c = simple(150, 220, 4, 2, dim, {AttnSlice::full({0, 100}, {0, 220})});
    c.num_sinks = 3;
    expect_close(c);
    c.sink_layout = SinkLayout::kSsh;
    expect_close(c);
  }
}

TEST(Sm90Forward, TwoCallsAddUp) {
  for (const HeadDims dim : kHeadDims) {
    Case c = simple(200, 300, 4, 2, dim, {AttnSlice::full({0, 150}, {0, 120}), {{0, 200}, {120, 300}, -40, 260}});
    c.in_two_parts = true;
    c.num_sinks = 1;
    expect_close(c);
  }
}

TEST(Sm90Forward, ScoresThatOutgrowTheirReference) {
  // Unmasked steps do not look for maxima; these must be caught by their sums, infinite ones included.
  for (const HeadDims dim : kHeadDims) {
    for (const float growth : {10.0f, 60.0f, 300.0f}) {
      Case c = simple(100, 1500, 8, 1, dim, {AttnSlice::full({0, 100}, {0, 1500})});
      c.growth = growth;
      expect_close(c);
      c.max_logits = true;
      c.options.softmax_scale = 0.02f;
      expect_close(c);
    }
  }
}

TEST(Sm90Forward, RandomSliceSets) {
  std::mt19937 rng(7);
  const auto draw = [&rng](int lo, int hi) { return std::uniform_int_distribution<int>(lo, hi)(rng); };
  for (int round = 0; round < 100; ++round) {
    const int64_t rows = draw(1, 260), keys = draw(1, 400);
    const int heads_kv = draw(1, 2),
              heads_q = heads_kv * std::vector<int>{1, 2, 3, 5, 6, 7, 8, 12}[static_cast<size_t>(draw(0, 7))];
    Case c = simple(rows, keys, heads_q, heads_kv, kHeadDims[draw(0, 1) * draw(0, 7)], {});
    c.seed = static_cast<unsigned>(round);
    // Disjoint by construction: a random grid with a random band in some of its fields.
    for (int64_t q0 = 0; q0 < rows;) {
      const int64_t q1 = std::min<int64_t>(rows, q0 + draw(1, 120));
      for (int64_t k0 = 0; k0 < keys;) {
        const int64_t k1 = std::min<int64_t>(keys, k0 + draw(1, 250));
        if (draw(0, 2) > 0)
          c.slices.push_back(AttnSlice::from_type(static_cast<MaskType>(draw(0, 3)), {q0, q1}, {k0, k1}));
        k0 = k1;
      }
      q0 = q1;
    }
    if (draw(0, 2) == 0) c.shape.dtype = DType::kFloat16;
    if (draw(0, 3) == 0) c.options.softcap = 10.0f;
    if (draw(0, 3) == 0) c.num_sinks = 2;
    c.max_logits = draw(0, 2) == 0;
    c.float_out = draw(0, 3) == 0;
    c.in_two_parts = draw(0, 3) == 0;
    SCOPED_TRACE(testing::Message() << "round " << round);
    expect_close(c);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

TEST(Sm90Forward, RepeatedLaunchesAreBitwiseEqual) {
  for (const HeadDims dim : kHeadDims) {
    Case c = simple(500, 700, 8, 2, dim, {causal(500, 700)});
    const Result first = run_sm90(c);
    for (int i = 0; i < 20; ++i) {
      const Result again = run_sm90(c);
      ASSERT_EQ(std::memcmp(first.out.view().data, again.out.view().data, static_cast<size_t>(first.out.bytes())), 0);
      ASSERT_EQ(first.lse, again.lse);
    }
  }
}

TEST(Sm90Forward, RefusesWhatItCannotCompute) {
  const Sm90Backend backend;
  AttnShape shape{16, 16, 2, 2, 100, 100, DType::kBFloat16};
  EXPECT_THROW(backend.check(shape), InvalidArgument);
  shape.head_dim = shape.head_dim_v = 264;
  EXPECT_THROW(backend.check(shape), InvalidArgument);
  shape.head_dim = shape.head_dim_v = 128;
  shape.dtype = DType::kFloat32;
  EXPECT_THROW(backend.check(shape), InvalidArgument);
  shape.dtype = DType::kBFloat16;
  const auto mask = make_mask_slot(backend, {}, shape);
  const cuda::DeviceBuffer memory(1 << 16);
  const ConstTensorView view{memory.as<void>(), DType::kBFloat16, 16, 2, 128, 256 + 4, 128};
  TensorView out;
  static_cast<BasicTensorView<void*>&>(out) = {memory.as<void>(), DType::kBFloat16, 16, 2, 128, 256, 128};
  EXPECT_THROW(backend.forward(*mask, {view, view, view, out, memory.as<float>()}, nullptr), InvalidArgument);
  const auto without = make_mask_slot(backend, {}, shape, {.passes = AttnPasses::kBackward});
  EXPECT_THROW(backend.forward(*without, {out, out, out, out, memory.as<float>()}, nullptr), InvalidArgument);
}

}  // namespace
}  // namespace tangram
