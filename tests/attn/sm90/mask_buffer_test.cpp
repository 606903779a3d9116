// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// One captured graph over masks that change: replays give what eager calls give, bit for bit, and what a mask of its
// own gives. Needs a Hopper GPU; skipped elsewhere.

#include "tangram/mask_buffer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "attn/gpu/slot.hpp"
#include "attn/sm90/head_dims.hpp"
#include "attn/sm90/on_device.hpp"
#include "cuda/graph_lifetime.hpp"
#include "tangram/error.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram {
namespace {

using test::make_random;
using test::OnDevice;
using test::RandomAttention;
using test::RandomConfig;

struct Case {
  const char* name;
  test::HeadDims dims;
  int heads_kv;
  float softcap;
  bool deterministic;
  int64_t seqlen_sink = 0;
};

constexpr int64_t kRows = 4096;  // enough for tiles to stay whole in nearly all masks of their own

RandomConfig config_of(const Case& c) {
  RandomConfig config;
  config.shape = test::shape_of(kRows, kRows, 8, c.heads_kv, c.dims);
  config.softcap = c.softcap;
  config.seqlen_sink = c.seqlen_sink;
  config.poison = false;
  return config;
}

/// Packs of causal documents, and masks of other kinds among them: of no slice, of one, with rows that see nothing,
/// with several slices a row.
std::vector<Mask> masks(int count) {
  std::vector<Mask> result{
      Mask(kRows, kRows, {}),
      full_mask(kRows, kRows),
      causal_mask(kRows, kRows),
      Mask(kRows, kRows, {{{0, kRows}, {0, kRows}, -300, 0}}),
      Mask(kRows, kRows, {{{0, kRows}, {0, kRows}, 0, kOpenMaxDiag}}),
      Mask(kRows, kRows, {AttnSlice::full({70, 900}, {3, 1090})}),
      Mask(kRows, kRows,
           {AttnSlice::causal({0, 1500}, {0, 1500}), AttnSlice::full({1500, 2000}, {100, 190}),
            AttnSlice::causal({1500, 2000}, {1500, 2000}), AttnSlice::full({2000, 2100}, {2000, kRows})})};
  std::mt19937 rng(7);
  while (static_cast<int>(result.size()) < count) {
    std::vector<int64_t> ends{0};
    const int64_t longest = std::uniform_int_distribution<int64_t>(100, kRows)(rng);
    while (ends.back() < kRows) {
      ends.push_back(std::min(kRows, ends.back() + std::uniform_int_distribution<int64_t>(40, longest)(rng)));
    }
    result.push_back(varlen_mask(ends, rng() % 4 != 0));
  }
  std::shuffle(result.begin(), result.end(), rng);
  return result;
}

MaskCapacity capacity_of(const Case& c) { return {.max_documents = 128, .deterministic = c.deterministic}; }

class Sm90MaskBuffer : public test::Sm90OnStream {
 protected:
  test::TestedBackend backend_;
};

class Sm90MaskBufferCases : public Sm90MaskBuffer, public testing::WithParamInterface<Case> {};

TEST_P(Sm90MaskBufferCases, ReplaysOfOneGraphAreEagerCallsWithMasksOfTheirOwn) {
  const Case& c = GetParam();
  const std::vector<Mask> all = masks(test::num_rounds(40));
  RandomAttention r = make_random(config_of(c), {AttnSlice::causal({0, kRows}, {0, kRows})}, 1);
  OnDevice device(r);
  device.forward.options.deterministic = device.backward.options.deterministic = c.deterministic;
  MaskBuffer buffer(r.config.shape, capacity_of(c), backend_);
  buffer.set(all.front(), stream_);
  buffer.forward(device.forward, stream_);  // loads kernels
  buffer.backward(device.backward, stream_);
  const cudaGraphExec_t graph = capture([&] {
    buffer.forward(device.forward, stream_);
    buffer.backward(device.backward, stream_);
  });
  const auto results = [&](const auto& calls) {
    test::wait_for_device();
    device.poison_outputs();
    calls();
    test::wait_for_device();
    return device.output_bytes();
  };
  size_t num_compared = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(i);
    const auto own = test::prepare_sm90(backend_, all[i].slices(), r.config.shape);
    // Buffers compute no query tiles in parts, and gather no keys: sums of these are rounded otherwise.
    const gpu::GpuSlot& lists = gpu::as_gpu_slot(*own);
    const bool comparable = lists.forward_view().num_part_tiles == 0 && !lists.forward_view().choice.gathers;
    num_compared += comparable ? 1 : 0;
    test::poison_workspace(*own);
    const auto expected = results([&] {
      backend_.forward(*own, device.forward, stream_);
      backend_.backward(*own, device.backward, stream_);
    });
    device.fetch();
    const HostTensor out = r.out.clone(), dq = r.dq.clone(), dk = r.dk.clone(), dv = r.dv.clone();
    const std::vector<float> lse = r.lse;
    test::poison_workspace(*own);
    const auto eager = results([&] {
      buffer.set(all[i], stream_);
      buffer.forward(device.forward, stream_);
      buffer.backward(device.backward, stream_);
    });
    const auto replayed = results([&] {
      buffer.set(all[(i + 1) % all.size()], stream_);
      buffer.set(all[i], stream_);
      cuda::check(cudaGraphLaunch(graph, stream_), "cudaGraphLaunch");
    });
    if (c.deterministic) {
      EXPECT_TRUE(replayed == eager) << "replayed";
      EXPECT_TRUE(!comparable || eager == expected) << "eager";
    }
    if (c.deterministic || !comparable) continue;
    device.fetch();
    const auto compare = [&](const HostTensor& one, const HostTensor& other, double tolerance) {
      EXPECT_TRUE(test::is_within(one, other, tolerance));
    };
    compare(r.out, out, 0);
    EXPECT_EQ(r.lse, lse);
    // Additions in another order, then rounded to 8 bits.
    compare(r.dq, dq, 2e-3);
    compare(r.dk, dk, 2e-3);
    compare(r.dv, dv, 2e-3);
  }
  EXPECT_GE(num_compared + 2, all.size());
  cuda::check(cudaGraphExecDestroy(graph), "cudaGraphExecDestroy");
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, Sm90MaskBufferCases,
    testing::Values(Case{"head_dim_128", {128, 128}, 2, 0, true}, Case{"head_dim_64", {64, 64}, 2, 0, true},
                    Case{"a_head_a_key_head", {64, 64}, 8, 0, true}, Case{"softcap", {128, 128}, 1, 5, true},
                    Case{"softcap_64", {64, 64}, 1, 5, true}, Case{"sink", {128, 128}, 2, 0, true, 3},
                    Case{"any_order_128", {128, 128}, 2, 0, false}, Case{"any_order_64", {64, 64}, 1, 0, false},
                    Case{"any_order_softcap", {64, 64}, 2, 5, false}, Case{"head_dim_80", {80, 80}, 2, 0, true},
                    Case{"head_dim_32", {32, 32}, 2, 0, true}, Case{"head_dim_256", {256, 256}, 2, 0, true},
                    Case{"head_dim_192", {192, 192}, 8, 5, true}, Case{"head_dim_96", {96, 96}, 2, 0, true},
                    Case{"head_dims_192_and_128", {192, 128}, 2, 0, true},
                    Case{"head_dims_72_and_40", {72, 40}, 2, 5, true, 1},
                    Case{"any_order_192_and_128", {192, 128}, 1, 0, false}, Case{"any_order_32", {32, 32}, 2, 0, false},
                    Case{"any_order_80", {80, 80}, 2, 0, false}, Case{"any_order_256", {256, 256}, 2, 0, false}),
    [](const auto& of) { return of.param.name; });

// The copy of a mask must not overtake calls with the one before, nor they it.
TEST_F(Sm90MaskBuffer, MasksAndCallsOneBehindTheOtherWithoutAWait) {
  const std::vector<Mask> all = masks(20);
  const Case c{"", {64, 64}, 2, 0, true};
  std::vector<std::vector<char>> expected, found;
  RandomAttention r = make_random(config_of(c), {AttnSlice::causal({0, kRows}, {0, kRows})}, 2);
  OnDevice device(r);
  device.backward.options.deterministic = true;
  MaskBuffer buffer(r.config.shape, capacity_of(c), backend_);
  const auto bytes = static_cast<size_t>(r.dk.bytes());
  std::vector<cuda::DeviceBuffer> kept;
  for (size_t i = 0; i < all.size(); ++i) kept.emplace_back(bytes);
  for (const bool waits : {true, false}) {
    for (size_t i = 0; i < all.size(); ++i) {
      buffer.set(all[i], stream_);
      buffer.forward(device.forward, stream_);
      buffer.backward(device.backward, stream_);
      cuda::check(
          cudaMemcpyAsync(kept[i].as<void>(), device.backward.dk.data, bytes, cudaMemcpyDeviceToDevice, stream_),
          "cudaMemcpyAsync");
      if (waits) test::wait_for_device();
    }
    test::wait_for_device();
    for (const cuda::DeviceBuffer& buffer_of_one : kept) {
      std::vector<char>& values = (waits ? expected : found).emplace_back(bytes);
      cuda::check(cudaMemcpy(values.data(), buffer_of_one.as<void>(), bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
    }
  }
  EXPECT_TRUE(found == expected);
}

TEST_F(Sm90MaskBuffer, AGraphKeepsItsListsAndForbidsOtherRoom) {
  const Case c{"", {64, 64}, 2, 0, true};
  RandomAttention r = make_random(config_of(c), {AttnSlice::causal({0, kRows}, {0, kRows})}, 3);
  OnDevice device(r);
  auto buffer = std::make_unique<MaskBuffer>(r.config.shape, capacity_of(c), backend_);
  buffer->set(causal_mask(kRows, kRows), stream_);
  buffer->forward(device.forward, stream_);
  test::wait_for_device();
  const std::vector<char> expected = device.output_bytes();
  const cudaGraphExec_t graph = capture([&] { buffer->forward(device.forward, stream_); });
  EXPECT_THROW(buffer->reserve({.max_documents = 256}), InvalidArgument);
  buffer = nullptr;
  const cuda::DeviceBuffer taken(size_t{64} << 20);  // would lie where the lists were
  cuda::check(cudaMemset(taken.as<void>(), 0xff, taken.bytes()), "cudaMemset");
  device.poison_outputs();
  cuda::check(cudaGraphLaunch(graph, stream_), "cudaGraphLaunch");
  test::wait_for_device();
  EXPECT_TRUE(std::equal(expected.begin(), expected.begin() + r.out.bytes(), device.output_bytes().begin()));
  cuda::check(cudaGraphExecDestroy(graph), "cudaGraphExecDestroy");
  test::wait_for_device();
  cuda::release_objects_of_ended_graphs();
}

}  // namespace
}  // namespace tangram
