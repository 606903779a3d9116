// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// MaskBuffer on a GPU, as far as its host side goes: what it allocates, copies and waits for, and that nothing which a
// CUDA graph records depends on the mask. Counted by a runtime over host memory, on every machine.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "attn/sm90/backward/params.hpp"
#include "attn/sm90/common/launch_kernel.hpp"
#include "attn/sm90/counted_buffers.hpp"
#include "attn/sm90/forward/params.hpp"
#include "attn/sm90/sm90_backend.hpp"
#include "cuda/counting_runtime.hpp"
#include "cuda/pinned_ring.hpp"
#include "support/message_of.hpp"
#include "tangram/error.hpp"
#include "tangram/flex_attention.hpp"
#include "tangram/mask_buffer.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram {
namespace {

using testing::Launch;
using testing::runtime_counts;
using testing::RuntimeCounts;

using counted::BufferOperands;
using counted::kRows;
using counted::kShape;
using counted::make_pack;
using counted::since;
using sm90::ForwardParams;
using sm90::backward::Params;
using sm90::backward::PrePostParams;

TEST(MaskBuffer, ANewMaskIsOneCopyAndNothingElse) {
  const Sm90Backend backend;
  for (const bool deterministic : {false, true}) {
    MaskBuffer buffer(kShape, {.max_documents = 128, .deterministic = deterministic}, backend);
    BufferOperands operands;
    buffer.set(make_pack(0));
    operands.step(buffer);
    for (unsigned seed = 1; seed < 50; ++seed) {
      const Mask mask = make_pack(seed);
      RuntimeCounts before = runtime_counts();
      buffer.set(mask);
      RuntimeCounts made = since(before);
      EXPECT_EQ(made.copies, 1);
      EXPECT_EQ(made.allocations + made.host_allocations + made.frees + made.waits + made.launches, 0);
      EXPECT_EQ(made.device_queries, 0);
      before = runtime_counts();
      operands.step(buffer);
      made = since(before);
      EXPECT_EQ(made.launches, 4) << "forward, and three of the backward pass";
      EXPECT_EQ(made.copies + made.allocations + made.host_allocations + made.frees + made.waits, 0);
    }
    EXPECT_EQ(buffer.num_masks(), 50);
  }
}

TEST(MaskBuffer, NothingThatAGraphRecordsDependsOnTheMask) {
  const Sm90Backend backend;
  const std::vector<size_t> three{sizeof(ForwardParams), sizeof(PrePostParams), sizeof(Params), sizeof(PrePostParams)};
  std::vector<size_t> four = three;
  four.insert(four.end() - 1, sizeof(Params));  // dv has a kernel of its own
  const auto expect_independent = [&](int head_dim, int head_dim_v, const std::vector<size_t>& sizes,
                                      bool deterministic) {
    SCOPED_TRACE(::testing::Message() << head_dim << " and " << head_dim_v);
    BufferOperands operands;
    AttnShape shape = kShape;
    operands.head_dim = shape.head_dim = head_dim;
    operands.head_dim_v = shape.head_dim_v = head_dim_v;
    MaskBuffer buffer(shape, {.max_documents = 128, .deterministic = deterministic}, backend);
    const auto launches_of = [&](const Mask& mask) {
      buffer.set(mask);
      testing::record_launches(sizes);
      operands.step(buffer);
      return testing::recorded_launches();
    };
    const std::vector<Launch> expected = launches_of(make_pack(0));
    ASSERT_EQ(expected.size(), sizes.size());
    for (const Mask& mask : {make_pack(1), make_pack(2), full_mask(kRows, kRows), causal_mask(kRows, kRows),
                             Mask(kRows, kRows, {}), varlen_mask(std::vector<int64_t>{0, 100, kRows}, false),
                             Mask(kRows, kRows, {{{0, kRows}, {0, kRows}, -512, 0}}),
                             Mask(kRows, kRows, {AttnSlice::full({70, 200}, {3, 90})})}) {
      EXPECT_TRUE(launches_of(mask) == expected);
    }
  };
  for (const bool deterministic : {false, true}) {
    expect_independent(128, 128, three, deterministic);
    expect_independent(64, 64, three, deterministic);
    expect_independent(112, 128, three, deterministic);
    if (sm90::kAllKernels) expect_independent(192, 128, three, deterministic);
    expect_independent(256, 256, four, deterministic);
  }
}

// What is looked up in each step of the backward kernel slows it down.
TEST(MaskBuffer, NoTableOfRowsIsReadWhereEachSeesAKey) {
  const Sm90Backend backend;
  BufferOperands operands;
  for (const bool allow_fully_masked_rows : {true, false}) {
    MaskBuffer buffer(kShape, {.max_documents = 128, .allow_fully_masked_rows = allow_fully_masked_rows}, backend);
    buffer.set(make_pack(0));
    testing::record_launches({sizeof(ForwardParams), sizeof(PrePostParams), sizeof(Params), sizeof(PrePostParams)});
    operands.step(buffer);
    const std::vector<Launch> launches = testing::recorded_launches();
    PrePostParams pre_post;
    Params params;
    std::memcpy(static_cast<void*>(&pre_post), launches.at(1).parameter.data(), sizeof(pre_post));
    std::memcpy(static_cast<void*>(&params), launches.at(2).parameter.data(), sizeof(params));
    EXPECT_EQ(params.covered_queries != nullptr, allow_fully_masked_rows);
    EXPECT_EQ(pre_post.covered_queries, params.covered_queries);
    if (allow_fully_masked_rows) continue;
    const std::string refused = support::message_of([&] { buffer.set(Mask(kRows, kRows, {})); });
    EXPECT_NE(refused.find("each row must see a key"), std::string::npos) << refused;
    const std::vector<int32_t> ends{0, static_cast<int32_t>(kRows)};
    EXPECT_THROW(buffer.set_cu_seqlens({.q = ends.data(), .documents = 1}), InvalidArgument)
        << "the device list has not been checked";
  }
}

TEST(MaskBuffer, TheMainKernelOfABackwardCallWaitsForKeys) {
  const Sm90Backend backend;
  MaskBuffer buffer(kShape, {.max_documents = 128}, backend);
  buffer.set(make_pack(0));
  BufferOperands operands;
  operands.step(buffer);
  AttnBackwardArgs args = operands.backward(buffer);
  RuntimeCounts before = runtime_counts();
  buffer.backward(args);
  EXPECT_EQ(since(before).stream_waits, 0);
  cudaEvent_t event = nullptr;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  args.keys_ready = event;
  before = runtime_counts();
  buffer.backward(args);
  EXPECT_EQ(since(before).stream_waits, 1);
  EXPECT_EQ(since(before).launches, 3);
  // The main kernel loads keys before it waits for the kernel in front of it: with keys_ready it begins behind the
  // event.
  testing::record_launches({1, 1, 1});
  buffer.backward(args);
  EXPECT_EQ(testing::recorded_order(), "lwld");
  args.keys_ready = nullptr;
  testing::record_launches({1, 1, 1});
  buffer.backward(args);
  EXPECT_EQ(testing::recorded_order(), "ldd");
  testing::record_launches({});
  cudaEventDestroy(event);
}

TEST(MaskBuffer, CallsReadKeysElsewhereByATableOfTheirOwn) {
  const Sm90Backend backend;
  const std::vector<LocalKvRange> local_ranges = {{{0, 300}, 1000}, {{2000, 3000}, 0}};
  const std::vector<GranuleRange> expected = local_ranges_of_granules(local_ranges, kRows);
  std::vector<GranuleRange> table(expected.size());
  ASSERT_EQ(local_kv_table_bytes(kRows), static_cast<int64_t>(table.size() * sizeof(table[0])));
  write_local_kv_table(local_ranges, kRows, reinterpret_cast<std::byte*>(table.data()));
  EXPECT_EQ(table, expected);

  MaskBuffer buffer(kShape, {.max_documents = 128}, backend);
  buffer.set(make_pack(0));
  BufferOperands operands;
  AttnForwardArgs args = operands.forward();
  args.local_kv_table = table.data();
  EXPECT_THROW(buffer.forward(args), InvalidArgument) << "of no other tensors";
  args.k_local = args.k;
  args.v_local = args.v;
  testing::record_launches({sizeof(ForwardParams)});
  buffer.forward(args);
  ForwardParams params;
  std::memcpy(static_cast<void*>(&params), testing::recorded_launches().at(0).parameter.data(), sizeof(params));
  EXPECT_EQ(params.local_ranges.of_granule, table.data());
}

/// 64 causal documents of log-normal lengths.
Mask make_log_normal_pack(unsigned seed, int64_t rows) {
  std::mt19937 rng(seed);
  std::lognormal_distribution<double> length(0, 1);
  std::vector<double> ends;
  for (double end = 0; ends.size() < 64;) ends.push_back(end += length(rng));
  std::vector<int64_t> borders = {0};
  for (const double end : ends) {
    borders.push_back(static_cast<int64_t>(end / ends.back() * static_cast<double>(rows)));
  }
  borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
  return varlen_mask(borders, true);
}

// A section that is short beside its longest work tiles ends unevenly. Masks of their own ask their lists how long they
// are.
TEST(MaskBuffer, SectionsOfTheForwardPassAreThoseOfPacks) {
  const Sm90Backend backend;
  for (const int64_t rows : {int64_t{8192}, int64_t{16384}, int64_t{65536}}) {
    const AttnShape shape{rows, rows, 64, 8, 128, 128, DType::kBFloat16};
    const auto view = [&](int heads) {  // whose values are not read
      return TensorView{
          {reinterpret_cast<void*>(uintptr_t{256}), DType::kBFloat16, rows, heads, 128, heads * int64_t{128}, 128}};
    };
    const AttnForwardArgs args{view(64), view(8), view(8), view(64), static_cast<float*>(view(1).data)};
    const auto groups_of = [&](auto& attention) {
      testing::record_launches({sizeof(ForwardParams)});
      attention.forward(args);
      ForwardParams params;
      std::memcpy(static_cast<void*>(&params), testing::recorded_launches().at(0).parameter.data(), sizeof(params));
      return params.groups_per_section;
    };
    MaskBuffer buffer(shape, {.max_documents = 128}, backend);
    std::vector<int32_t> of_packs;
    for (unsigned seed = 1; seed <= 10; ++seed) {
      const Mask mask = make_log_normal_pack(seed, rows);
      buffer.set(mask);
      FlexAttention own(mask, {64, 8, 128, 128, DType::kBFloat16}, backend);
      of_packs.push_back(groups_of(own));
    }
    const auto [least, most] = std::minmax_element(of_packs.begin(), of_packs.end());
    const int32_t groups = groups_of(buffer);
    EXPECT_GE(groups, *least) << rows;
    EXPECT_LE(groups, *most) << rows;
  }
}

TEST(MaskBuffer, SetWaitsOnlyForCopiesOfManyMasksAgo) {
  const Sm90Backend backend;
  MaskBuffer buffer(kShape, {.max_documents = 128}, backend);
  testing::set_events_ready(false);
  const RuntimeCounts before = runtime_counts();
  for (unsigned seed = 0; seed < cuda::PinnedRing::kBlocks; ++seed) buffer.set(make_pack(seed));
  EXPECT_EQ(runtime_counts().waits, before.waits);
  buffer.set(make_pack(9));
  EXPECT_EQ(runtime_counts().waits, before.waits + 1) << "or it would overwrite what has not been copied";
  testing::set_events_ready(true);
}

TEST(MaskBuffer, AMaskThatDoesNotFitIsRefusedBeforeAnythingIsSent) {
  const Sm90Backend backend;
  MaskBuffer buffer(kShape, {.max_documents = 4}, backend);
  buffer.set(causal_mask(kRows, kRows));
  const RuntimeCounts before = runtime_counts();
  std::vector<int64_t> ends{0};
  while (ends.back() < kRows) ends.push_back(std::min(kRows, ends.back() + 65));
  const std::string tiles = support::message_of([&] { buffer.set(varlen_mask(ends, true)); });
  EXPECT_NE(tiles.find("a larger max_documents makes room"), std::string::npos) << tiles;
  EXPECT_NE(tiles.find("max_documents=4"), std::string::npos) << tiles;
  std::vector<AttnSlice> blocks;
  for (int64_t row = 0; row < kRows; row += 128) {
    for (int64_t key = row % 256; key < kRows; key += 256) {
      blocks.push_back(AttnSlice::full({row, row + 128}, {key, key + 128}));
    }
  }
  const std::string runs = support::message_of([&] { buffer.set(Mask(kRows, kRows, blocks)); });
  EXPECT_NE(runs.find("a larger max_slices makes room"), std::string::npos) << runs;
  EXPECT_NE(runs.find("max_slices=4"), std::string::npos) << runs;
  EXPECT_NE(support::message_of([&] {
              buffer.set(causal_mask(kRows / 2, kRows));
            }).find("lengths of the buffer, 4096 x 4096"),
            std::string::npos);
  EXPECT_EQ(runtime_counts().copies, before.copies);
  EXPECT_EQ(buffer.num_masks(), 1);
  MaskBuffer larger(kShape, {.max_documents = 4, .max_slices = 1024}, backend);
  larger.set(Mask(kRows, kRows, blocks));
}

TEST(MaskBuffer, CallsThatItIsNotForAreRefused) {
  const Sm90Backend backend;
  BufferOperands operands;
  MaskBuffer buffer(kShape, {.max_documents = 128}, backend);
  EXPECT_THROW(buffer.forward(operands.forward()), InvalidArgument) << "no mask yet";
  buffer.set(make_pack(1));
  AttnBackwardArgs deterministic = operands.backward(buffer);
  deterministic.options.deterministic = true;
  EXPECT_THROW(buffer.backward(deterministic), InvalidArgument);
  MaskBuffer forward(kShape, {.max_documents = 128, .passes = AttnPasses::kForward}, backend);
  forward.set(make_pack(1));
  forward.forward(operands.forward());
  EXPECT_EQ(forward.backward_workspace_bytes(), 0);
  EXPECT_THROW(forward.backward(operands.backward(buffer)), InvalidArgument);
  EXPECT_LT(forward.device_bytes(), buffer.device_bytes());
  EXPECT_THROW(MaskBuffer(kShape, {.max_documents = 0}, backend), InvalidArgument);
  EXPECT_THROW(MaskBuffer(kShape, {.max_slices = -1}, backend), InvalidArgument);
}

// Python collects garbage at any time: a buffer that went while another's graph was captured spoiled the capture.
TEST(MaskBuffer, MayGoWhileAGraphIsCaptured) {
  const Sm90Backend backend;
  auto buffer = std::make_unique<MaskBuffer>(kShape, MaskCapacity{.max_documents = 128}, backend);
  buffer->set(make_pack(1));
  const RuntimeCounts before = runtime_counts();
  testing::set_captured(true);
  buffer = nullptr;
  testing::set_captured(false);
  EXPECT_GT(runtime_counts().frees, before.frees);
  EXPECT_EQ(runtime_counts().spoiled_captures, before.spoiled_captures);
}

TEST(MaskBuffer, GraphsHoldItsMemoryAndForbidAnother) {
  const Sm90Backend backend;
  BufferOperands operands;
  MaskBuffer buffer(kShape, {.max_documents = 128}, backend);
  buffer.set(make_pack(1));
  operands.step(buffer);
  buffer.reserve({.max_documents = 64});
  EXPECT_THROW(buffer.forward(operands.forward()), InvalidArgument) << "the mask is gone";
  buffer.set(make_pack(1));
  testing::set_captured(true);
  const std::string captured = support::message_of([&] { buffer.set(make_pack(2)); });
  EXPECT_NE(captured.find("must not be being captured"), std::string::npos) << captured;
  buffer.forward(operands.forward());
  testing::set_captured(false);
  buffer.set(make_pack(2));
  const std::string held = support::message_of([&] { buffer.reserve({.max_documents = 128}); });
  EXPECT_NE(held.find("captured with the buffer must be gone"), std::string::npos) << held;
}

}  // namespace
}  // namespace tangram
