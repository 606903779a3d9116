// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// MaskBuffer on a GPU, as far as its host side goes: what it allocates, copies and waits for, and that nothing which a
// CUDA graph records depends on the mask. Counted by a runtime over host memory, on every machine.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "attn/sm90/backward/params.hpp"
#include "attn/sm90/counted_calls.hpp"
#include "attn/sm90/forward/params.hpp"
#include "attn/sm90/query_backward/params.hpp"
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

using counted::kRows;
using counted::make_pack;
using counted::since;
using sm90::ForwardParams;
using sm90::backward::EdgeParams;
using sm90::backward::Params;

constexpr AttnShape kShape{kRows, kRows, 16, 2, 128, 128, DType::kBFloat16};

/// Operands and a workspace.
struct BufferOperands : counted::Operands {
  std::vector<char> space;

  AttnBackwardArgs backward(const MaskBuffer& buffer) {
    AttnBackwardArgs args = counted::Operands::backward();
    args.options.deterministic = buffer.capacity().deterministic;
    space.resize(static_cast<size_t>(buffer.backward_workspace_bytes()) + 256);
    args.workspace = {space.data() + (256 - reinterpret_cast<uintptr_t>(space.data()) % 256),
                      buffer.backward_workspace_bytes()};
    return args;
  }
  void step(MaskBuffer& buffer) {
    buffer.forward(forward());
    buffer.backward(backward(buffer));
  }
};

TEST(MaskBuffer, ANewMaskIsOneCopyAndNothingElse) {
  const Sm90Backend backend;
  for (const bool deterministic : {false, true}) {
    MaskBuffer buffer(kShape, {.documents = 128, .deterministic = deterministic}, backend);
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
  const std::vector<size_t> three{sizeof(ForwardParams), sizeof(EdgeParams), sizeof(Params), sizeof(EdgeParams)};
  std::vector<size_t> four = three;
  four.insert(four.end() - 1, sizeof(Params));  // dv has a kernel of its own
  const auto expect_independent = [&](int head_dim, int head_dim_v, const std::vector<size_t>& sizes,
                                      bool deterministic) {
    SCOPED_TRACE(::testing::Message() << head_dim << " and " << head_dim_v);
    BufferOperands operands;
    AttnShape shape = kShape;
    operands.head_dim = shape.head_dim = head_dim;
    operands.head_dim_v = shape.head_dim_v = head_dim_v;
    MaskBuffer buffer(shape, {.documents = 128, .deterministic = deterministic}, backend);
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
    expect_independent(80, 96, three, deterministic);
    expect_independent(192, 128, three, deterministic);
    expect_independent(256, 256, four, deterministic);
  }
}

// What is looked up in each step of the backward kernel slows it down.
TEST(MaskBuffer, NoTableOfRowsIsReadWhereEachSeesAKey) {
  const Sm90Backend backend;
  BufferOperands operands;
  for (const bool rows_without_keys : {true, false}) {
    MaskBuffer buffer(kShape, {.documents = 128, .rows_without_keys = rows_without_keys}, backend);
    buffer.set(make_pack(0));
    testing::record_launches({sizeof(ForwardParams), sizeof(EdgeParams), sizeof(Params), sizeof(EdgeParams)});
    operands.step(buffer);
    const std::vector<Launch> launches = testing::recorded_launches();
    EdgeParams edge;
    Params params;
    std::memcpy(static_cast<void*>(&edge), launches.at(1).parameter.data(), sizeof(edge));
    std::memcpy(static_cast<void*>(&params), launches.at(2).parameter.data(), sizeof(params));
    EXPECT_EQ(params.covered_queries != nullptr, rows_without_keys);
    EXPECT_EQ(edge.covered_queries, params.covered_queries);
    if (rows_without_keys) continue;
    const std::string refused = support::message_of([&] { buffer.set(Mask(kRows, kRows, {})); });
    EXPECT_NE(refused.find("each row must see a key"), std::string::npos) << refused;
    const std::vector<int32_t> ends{0, static_cast<int32_t>(kRows)};
    EXPECT_THROW(buffer.set_cu_seqlens({.q = ends.data(), .documents = 1}), InvalidArgument) << "nobody has looked";
  }
}

TEST(MaskBuffer, TheMainKernelOfABackwardCallWaitsForKeys) {
  const Sm90Backend backend;
  MaskBuffer buffer(kShape, {.documents = 128}, backend);
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
  const std::vector<KeyStretch> stretches = {{{0, 300}, 1000}, {{2000, 3000}, 0}};
  const std::vector<sm90::GranuleStretch> expected = sm90::stretches_of_granules(stretches, kRows);
  std::vector<sm90::GranuleStretch> table(expected.size());
  ASSERT_EQ(backend.stretch_table_bytes(kRows), static_cast<int64_t>(table.size() * sizeof(table[0])));
  backend.write_stretch_table(stretches, kRows, reinterpret_cast<std::byte*>(table.data()));
  EXPECT_EQ(table, expected);

  MaskBuffer buffer(kShape, {.documents = 128}, backend);
  buffer.set(make_pack(0));
  BufferOperands operands;
  AttnForwardArgs args = operands.forward();
  args.stretch_table = table.data();
  EXPECT_THROW(buffer.forward(args), InvalidArgument) << "of no other tensors";
  args.k_elsewhere = args.k;
  args.v_elsewhere = args.v;
  testing::record_launches({sizeof(ForwardParams)});
  buffer.forward(args);
  ForwardParams params;
  std::memcpy(static_cast<void*>(&params), testing::recorded_launches().at(0).parameter.data(), sizeof(params));
  EXPECT_EQ(params.stretches.of_granule, table.data());
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

// A section that is short beside its longest items ends unevenly. Masks of their own ask their lists how long they are.
TEST(MaskBuffer, SectionsOfTheForwardPassAreThoseOfPacks) {
  const Sm90Backend backend;
  for (const int64_t rows : {int64_t{8192}, int64_t{16384}, int64_t{65536}}) {
    const AttnShape shape{rows, rows, 64, 8, 128, 128, DType::kBFloat16};
    const auto view = [&](int heads) {  // that nobody looks at
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
    MaskBuffer buffer(shape, {.documents = 128}, backend);
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
  MaskBuffer buffer(kShape, {.documents = 128}, backend);
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
  MaskBuffer buffer(kShape, {.documents = 4}, backend);
  buffer.set(causal_mask(kRows, kRows));
  const RuntimeCounts before = runtime_counts();
  std::vector<int64_t> ends{0};
  while (ends.back() < kRows) ends.push_back(std::min(kRows, ends.back() + 65));
  const std::string tiles = support::message_of([&] { buffer.set(varlen_mask(ends, true)); });
  EXPECT_NE(tiles.find("more documents make room"), std::string::npos) << tiles;
  EXPECT_NE(tiles.find("documents=4"), std::string::npos) << tiles;
  std::vector<AttnSlice> blocks;
  for (int64_t row = 0; row < kRows; row += 128) {
    for (int64_t key = row % 256; key < kRows; key += 256) {
      blocks.push_back(AttnSlice::full({row, row + 128}, {key, key + 128}));
    }
  }
  const std::string runs = support::message_of([&] { buffer.set(Mask(kRows, kRows, blocks)); });
  EXPECT_NE(runs.find("more slices make room"), std::string::npos) << runs;
  EXPECT_NE(runs.find("slices=4"), std::string::npos) << runs;
  EXPECT_NE(support::message_of([&] {
              buffer.set(causal_mask(kRows / 2, kRows));
            }).find("lengths of the buffer, 4096 x 4096"),
            std::string::npos);
  EXPECT_EQ(runtime_counts().copies, before.copies);
  EXPECT_EQ(buffer.num_masks(), 1);
  MaskBuffer larger(kShape, {.documents = 4, .slices = 1024}, backend);
  larger.set(Mask(kRows, kRows, blocks));
}

TEST(MaskBuffer, DocumentsInDeviceMemoryAreBuiltByKernelsAlone) {
  const Sm90Backend backend;
  BufferOperands operands;
  MaskBuffer buffer(kShape, {.documents = 128}, backend);
  const std::vector<int32_t> ends{0, 100, static_cast<int32_t>(kRows)};
  const CuSeqlens documents{.q = ends.data(), .documents = 2, .causal = true};
  testing::set_captured(true);
  const std::string first = support::message_of([&] { buffer.set_cu_seqlens(documents); });
  EXPECT_NE(first.find("must be set before a stream is captured"), std::string::npos) << first;
  testing::set_captured(false);
  const int64_t bytes = buffer.device_bytes();
  buffer.set_cu_seqlens(documents);
  EXPECT_GT(buffer.device_bytes(), bytes);
  for (const bool captured : {false, true}) {
    testing::set_captured(captured);
    const RuntimeCounts before = runtime_counts();
    buffer.set_cu_seqlens(documents);
    const RuntimeCounts made = since(before);
    EXPECT_EQ(made.launches, 4);
    EXPECT_EQ(made.copies, 1) << "what was refused";
    EXPECT_EQ(made.allocations + made.host_allocations + made.frees + made.waits + made.device_queries, 0);
    operands.step(buffer);
  }
  testing::set_captured(false);
  EXPECT_EQ(buffer.num_masks(), 3);
  buffer.check_errors();
  const std::string many = support::message_of([&] { buffer.set_cu_seqlens({.q = ends.data(), .documents = 129}); });
  EXPECT_NE(many.find("more documents make room (got 129 documents, room for 128)"), std::string::npos) << many;
  EXPECT_THROW(buffer.set_cu_seqlens({.documents = 1}), InvalidArgument) << "no list";
  EXPECT_THROW(buffer.set_cu_seqlens({.q = ends.data(), .documents = 2, .window = {-2, 0}}), InvalidArgument);
}

TEST(MaskBuffer, TurnsOfDeterministicCallsAreBuiltByKernelsAlone) {
  const Sm90Backend backend;
  BufferOperands operands;
  MaskBuffer buffer(kShape, {.documents = 128, .deterministic = true}, backend);
  const std::vector<int32_t> ends{0, 100, static_cast<int32_t>(kRows)};
  const CuSeqlens documents{.q = ends.data(), .documents = 2, .causal = true};
  buffer.set_cu_seqlens(documents);
  for (const bool captured : {false, true}) {
    testing::set_captured(captured);
    const RuntimeCounts before = runtime_counts();
    buffer.set_cu_seqlens(documents);
    const RuntimeCounts made = since(before);
    EXPECT_EQ(made.launches, 4 + 5);
    EXPECT_EQ(made.copies, 1) << "what was refused";
    EXPECT_EQ(made.allocations + made.host_allocations + made.frees + made.waits + made.device_queries, 0);
    operands.step(buffer);
  }
  testing::set_captured(false);
  MaskBuffer forward_alone(kShape, {.documents = 128, .deterministic = true, .passes = AttnPasses::kForward}, backend);
  forward_alone.set_cu_seqlens(documents);
  const RuntimeCounts before = runtime_counts();
  forward_alone.set_cu_seqlens(documents);
  EXPECT_EQ(since(before).launches, 4) << "no turns";
}

TEST(MaskBuffer, BlocksInDeviceMemoryAreBuiltByKernelsAlone) {
  const Sm90Backend backend;
  BufferOperands operands;
  MaskBuffer buffer(kShape, {.documents = 1, .slices = 64}, backend);
  const std::vector<int64_t> indices(64, -1);
  const BlockTable table{.indices = indices.data(), .is_int64 = true, .width = 2, .block_size = 128};
  buffer.set_blocks(table);
  for (const bool captured : {false, true}) {
    testing::set_captured(captured);
    const RuntimeCounts before = runtime_counts();
    buffer.set_blocks(table);
    const RuntimeCounts made = since(before);
    EXPECT_EQ(made.launches, 8);
    EXPECT_EQ(made.copies, 1) << "what was refused";
    EXPECT_EQ(made.allocations + made.host_allocations + made.frees + made.waits + made.device_queries, 0);
    operands.step(buffer);
  }
  const auto message = [&](const BlockTable& other) { return support::message_of([&] { buffer.set_blocks(other); }); };
  BlockTable other = table;
  other.block_size = 64;
  other.width = 1;
  EXPECT_NE(message(other).find("must be set before a stream is captured"), std::string::npos) << message(other);
  testing::set_captured(false);
  buffer.set_blocks(other);
  other.width = 2;
  EXPECT_NE(message(other).find("got 64 query blocks of up to 2 blocks, room for 64 blocks"), std::string::npos);
  other.block_size = 15;
  EXPECT_NE(message(other).find("block_size must be at least 16"), std::string::npos);
  other = table;
  other.indices = nullptr;
  EXPECT_NE(message(other).find("needs block indices"), std::string::npos);
}

/// Blocks of 32 of a table for each of two head groups.
constexpr MaskCapacity kBlocksOfTwo{.slices = 2 * 128 * 8, .block_size = 32, .head_groups = 2};

TEST(MaskBuffer, SmallBlocksAreBuiltByKernelsAlone) {
  const Sm90Backend backend;
  BufferOperands operands;
  MaskBuffer buffer(kShape, kBlocksOfTwo, backend);
  EXPECT_NE(support::message_of([&] { buffer.forward(operands.forward()); }).find("set() must come first"),
            std::string::npos);
  const std::vector<int32_t> indices(2 * 128 * 8, -1);
  const BlockTable table{.indices = indices.data(), .width = 8, .block_size = 32, .head_groups = 2};
  for (const bool captured : {true, false}) {  // the first time too
    testing::set_captured(captured);
    RuntimeCounts before = runtime_counts();
    buffer.set_blocks(table);
    RuntimeCounts made = since(before);
    EXPECT_EQ(made.launches, 5);
    EXPECT_EQ(made.copies, 1) << "what was refused";
    EXPECT_EQ(made.allocations + made.host_allocations + made.frees + made.waits + made.device_queries, 0);
    before = runtime_counts();
    operands.step(buffer);
    made = since(before);
    EXPECT_EQ(made.launches, 4) << "one of the forward pass, and three of the backward pass";
    EXPECT_EQ(made.copies + made.allocations + made.host_allocations + made.frees + made.waits, 0);
  }
  testing::set_captured(false);
  buffer.check_errors();
  const auto message = [&](auto call) { return support::message_of(call); };
  BlockTable other = table;
  other.head_groups = 1;
  EXPECT_NE(message([&] { buffer.set_blocks(other); }).find("of the buffer's head groups, 2"), std::string::npos);
  EXPECT_NE(message([&] { buffer.set(causal_mask(kRows, kRows)); }).find("head groups, 2 (got 1)"), std::string::npos);
  EXPECT_NE(message([&] { buffer.set_cu_seqlens({.q = indices.data(), .documents = 2}); }).find("made for blocks"),
            std::string::npos);
  MaskBuffer plain(kShape, {.slices = 4096}, backend);
  EXPECT_NE(message([&] { plain.set_blocks(table); }).find("must be of a buffer made for blocks"), std::string::npos);
}

Mask random_blocks(unsigned seed, int64_t block, int64_t one_in = 16) {
  std::vector<AttnSlice> slices;
  for (int64_t row = 0; row < kRows; row += block) {
    for (int64_t key = (seed * 7 + row) % (4 * block) / block * block; key < kRows; key += one_in * block) {
      slices.push_back(AttnSlice::full({row, std::min(row + block, kRows)}, {key, std::min(key + block, kRows)}));
    }
  }
  return Mask(kRows, kRows, slices);
}

TEST(MaskBuffer, NothingThatAGraphRecordsDependsOnTheBlocks) {
  const Sm90Backend backend;
  using Edge = sm90::query_backward::EdgeParams;
  const std::vector<size_t> sizes{sizeof(sm90::GatheredParams), sizeof(Edge), sizeof(sm90::query_backward::Params),
                                  sizeof(Edge)};
  for (const int head_dim : {64, 128}) {
    for (const int head_groups : {1, 2}) {
      BufferOperands operands;
      AttnShape shape = kShape;
      operands.head_dim = operands.head_dim_v = shape.head_dim = shape.head_dim_v = head_dim;
      MaskCapacity capacity = kBlocksOfTwo;
      capacity.head_groups = head_groups;
      MaskBuffer buffer(shape, capacity, backend);
      const auto launches = [&] {
        testing::record_launches(sizes);
        operands.step(buffer);
        return testing::recorded_launches();
      };
      const std::vector<int32_t> indices(2 * 128 * 8, 0);
      buffer.set_blocks({.indices = indices.data(), .width = 8, .block_size = 32, .head_groups = head_groups});
      const std::vector<Launch> expected = launches();
      ASSERT_EQ(expected.size(), sizes.size());
      buffer.set_blocks({.indices = indices.data(), .width = 2, .block_size = 64, .head_groups = head_groups});
      EXPECT_TRUE(launches() == expected);
      for (unsigned seed = 0; seed < 4; ++seed) {
        std::vector<Mask> masks;
        for (int g = 0; g < head_groups; ++g) {
          masks.push_back(seed == 0 ? Mask(kRows, kRows, {})
                                    : random_blocks(seed + static_cast<unsigned>(g), 32 * seed));
        }
        const RuntimeCounts before = runtime_counts();
        buffer.set(masks);
        EXPECT_EQ(since(before).copies, 1);
        EXPECT_EQ(since(before).launches + since(before).allocations, 0);
        EXPECT_TRUE(launches() == expected);
      }
    }
  }
}

// Blocks of 128 for all heads: other kernels, of which a graph records as little.
TEST(MaskBuffer, BlocksThatFillStepsTakeKernelsThatDoNotGather) {
  const Sm90Backend backend;
  for (const int head_dim : {64, 128}) {
    BufferOperands operands;
    AttnShape shape = kShape;
    operands.head_dim = operands.head_dim_v = shape.head_dim = shape.head_dim_v = head_dim;
    MaskBuffer buffer(shape, {.slices = 32 * 8, .block_size = 128}, backend);
    const int64_t host_bytes = buffer.host_bytes();
    const std::vector<int32_t> indices(32 * 8, -1);
    BlockTable table{.indices = indices.data(), .width = 8, .block_size = 128};
    testing::set_captured(true);  // the first time too
    RuntimeCounts before = runtime_counts();
    buffer.set_blocks(table);
    EXPECT_EQ(since(before).launches, 8);
    EXPECT_EQ(since(before).copies, 1) << "what was refused";
    EXPECT_EQ(since(before).allocations + since(before).host_allocations + since(before).waits, 0);
    testing::set_captured(false);
    const size_t forward = head_dim == 64 ? sizeof(sm90::GatheredParams) : sizeof(ForwardParams);
    const auto launches = [&] {
      testing::record_launches({forward, sizeof(EdgeParams), sizeof(Params), sizeof(EdgeParams)});
      operands.step(buffer);
      return testing::recorded_launches();
    };
    const std::vector<Launch> expected = launches();
    ASSERT_EQ(expected.size(), 4u);
    Params params;
    std::memcpy(static_cast<void*>(&params), expected[2].parameter.data(), sizeof(params));
    EXPECT_EQ(params.covered_queries, nullptr) << "blocks are seen by whole tiles";
    table.block_size = 256;
    table.width = 4;
    buffer.set_blocks(table);
    EXPECT_TRUE(launches() == expected);
    EXPECT_EQ(buffer.host_bytes(), host_bytes);
    for (unsigned seed = 0; seed < 3; ++seed) {
      before = runtime_counts();
      buffer.set(seed == 0 ? causal_mask(kRows, kRows) : random_blocks(seed, 128 * seed));
      EXPECT_EQ(since(before).copies, 1);
      EXPECT_EQ(since(before).launches + since(before).allocations, 0);
      EXPECT_TRUE(launches() == expected);
    }
    EXPECT_GT(buffer.host_bytes(), host_bytes) << "for masks of the host";
    const auto message = [&](auto call) { return support::message_of(call); };
    const Mask of_few(kRows, kRows, {AttnSlice::full({0, 160}, {0, 128})});
    EXPECT_NE(message([&] { buffer.set(of_few); }).find("all queries of a tile of 64 see something, or none"),
              std::string::npos);
    table.block_size = 192;
    EXPECT_NE(message([&] { buffer.set_blocks(table); }).find("at least 128, and a multiple of 128"),
              std::string::npos);
    EXPECT_NE(message([&] { buffer.set_cu_seqlens({.q = indices.data(), .documents = 2}); }).find("made for blocks"),
              std::string::npos);
    AttnBackwardArgs args = operands.backward(buffer);
    args.options.softcap = 5;
    buffer.backward(args);
    MaskBuffer deterministic(shape, {.slices = 32 * 8, .deterministic = true, .block_size = 128}, backend);
    deterministic.set(random_blocks(1, 128));
    operands.step(deterministic);
  }
}

TEST(MaskBuffer, BlocksOfHeadGroupsThatFillStepsTakeKernelsThatDoNotGather) {
  const Sm90Backend backend;
  for (const int head_dim : {64, 128}) {
    BufferOperands operands;
    AttnShape shape = kShape;
    operands.head_dim = operands.head_dim_v = shape.head_dim = shape.head_dim_v = head_dim;
    operands.heads_kv = shape.num_heads_kv = 16;  // fewer tiles of keys are gathered
    MaskBuffer buffer(shape, {.slices = 2 * 32 * 8, .block_size = 128, .head_groups = 2}, backend);
    const size_t forward = head_dim == 64 ? sizeof(sm90::GatheredParams) : sizeof(ForwardParams);
    const auto launches = [&] {
      testing::record_launches({forward, sizeof(EdgeParams), sizeof(Params), sizeof(EdgeParams)});
      operands.step(buffer);
      return testing::recorded_launches();
    };
    const std::vector<int32_t> tables(2 * 32 * 8, -1);
    const RuntimeCounts before = runtime_counts();
    buffer.set_blocks({.indices = tables.data(), .width = 8, .block_size = 128, .head_groups = 2});
    EXPECT_EQ(since(before).launches, 5);
    const std::vector<Launch> expected = launches();
    ASSERT_EQ(expected.size(), 4u);
    Params params;
    std::memcpy(static_cast<void*>(&params), expected[2].parameter.data(), sizeof(params));
    EXPECT_EQ(params.covered_queries, nullptr) << "blocks are seen by whole tiles";
    EXPECT_EQ(params.facts, nullptr) << "the number of items does not follow the mask";
    buffer.set_blocks({.indices = tables.data(), .width = 4, .block_size = 256, .head_groups = 2});
    EXPECT_TRUE(launches() == expected);
    buffer.set(std::vector{random_blocks(1, 128), random_blocks(2, 128)});
    EXPECT_TRUE(launches() == expected);
    const auto refused = [&](const Mask& mask) {
      return support::message_of([&] { buffer.set(std::vector{mask, random_blocks(2, 128)}); });
    };
    EXPECT_NE(refused(random_blocks(1, 128, 2)).find("more slices make room"), std::string::npos);
    const Mask of_few(kRows, kRows, {AttnSlice::full({0, 160}, {0, 128})});
    EXPECT_NE(refused(of_few).find("all queries of a tile of 64 see something, or none"), std::string::npos);
    AttnBackwardArgs args = operands.backward(buffer);
    args.options.softcap = 5;  // as of blocks that are gathered
    EXPECT_THROW(buffer.backward(args), InvalidArgument);
    shape.num_heads_kv = operands.heads_kv = 2;
    MaskBuffer of_few_tiles(shape, {.slices = 2 * 32 * 8, .block_size = 128, .head_groups = 2}, backend);
    of_few_tiles.set(std::vector{random_blocks(1, 128), random_blocks(2, 128)});
    using Edge = sm90::query_backward::EdgeParams;
    testing::record_launches({forward, sizeof(Edge), sizeof(sm90::query_backward::Params), sizeof(Edge)});
    operands.step(of_few_tiles);
    EXPECT_EQ(testing::recorded_launches().size(), 4u);
  }
}

TEST(MaskBuffer, CallsThatBlocksAreNotForAreRefused) {
  const Sm90Backend backend;
  BufferOperands operands;
  MaskCapacity capacity = kBlocksOfTwo;
  capacity.head_groups = 1;
  MaskBuffer buffer(kShape, capacity, backend);
  buffer.set(random_blocks(1, 32));
  AttnBackwardArgs args = operands.backward(buffer);
  args.options.softcap = 5;
  const std::string softcap = support::message_of([&] { buffer.backward(args); });
  EXPECT_NE(softcap.find("must be without softcap, dsink and accumulation"), std::string::npos) << softcap;
  const std::string window =
      support::message_of([&] { buffer.set(Mask(kRows, kRows, {{{0, kRows}, {0, kRows}, -100, 0}})); });
  EXPECT_NE(window.find("tiles of 16 queries see whole groups of 16 keys"), std::string::npos) << window;
  buffer.set(full_mask(kRows, kRows));  // of one list of groups
  const std::string full = support::message_of([&] { buffer.set(random_blocks(1, 16, 8)); });
  EXPECT_NE(full.find("more slices make room"), std::string::npos) << full;
  AttnShape small = kShape;
  small.head_dim = 96;
  const std::string dim = support::message_of([&] { MaskBuffer(small, capacity, backend); });
  EXPECT_NE(dim.find("heads that gather them, of 64 or 128 (got head_dim=96"), std::string::npos) << dim;
  capacity.deterministic = true;
  EXPECT_THROW(MaskBuffer(kShape, capacity, backend), InvalidArgument);
  EXPECT_THROW(MaskBuffer(kShape, {.head_groups = 2}, backend), InvalidArgument) << "not made for blocks";
}

TEST(MaskBuffer, RangesInDeviceMemoryAreBuiltByKernelsAlone) {
  const Sm90Backend backend;
  BufferOperands operands;
  MaskBuffer buffer(kShape, {.documents = 16}, backend);
  const std::vector<int32_t> pairs(32, 0);
  const RangeList ranges{.q_ranges = pairs.data(), .k_ranges = pairs.data(), .types = pairs.data(), .count = 16};
  buffer.set_ranges(ranges);
  const RuntimeCounts before = runtime_counts();
  testing::set_captured(true);
  buffer.set_ranges(ranges);
  testing::set_captured(false);
  const RuntimeCounts made = since(before);
  EXPECT_EQ(made.launches, 10) << "three of them put ranges in order";
  EXPECT_EQ(made.copies, 1) << "what was refused";
  EXPECT_EQ(made.allocations + made.host_allocations + made.frees + made.waits + made.device_queries, 0);
  operands.step(buffer);
  RangeList other = ranges;
  other.count = 17;
  const std::string many = support::message_of([&] { buffer.set_ranges(other); });
  EXPECT_NE(many.find("more slices make room (got 17 ranges, room for 16)"), std::string::npos) << many;
  other = {.count = 1};
  EXPECT_THROW(buffer.set_ranges(other), InvalidArgument);
}

TEST(MaskBuffer, CallsThatItIsNotForAreRefused) {
  const Sm90Backend backend;
  BufferOperands operands;
  MaskBuffer buffer(kShape, {.documents = 128}, backend);
  EXPECT_THROW(buffer.forward(operands.forward()), InvalidArgument) << "no mask yet";
  buffer.set(make_pack(1));
  AttnBackwardArgs deterministic = operands.backward(buffer);
  deterministic.options.deterministic = true;
  EXPECT_THROW(buffer.backward(deterministic), InvalidArgument);
  MaskBuffer forward(kShape, {.documents = 128, .passes = AttnPasses::kForward}, backend);
  forward.set(make_pack(1));
  forward.forward(operands.forward());
  EXPECT_EQ(forward.backward_workspace_bytes(), 0);
  EXPECT_THROW(forward.backward(operands.backward(buffer)), InvalidArgument);
  EXPECT_LT(forward.device_bytes(), buffer.device_bytes());
  EXPECT_THROW(MaskBuffer(kShape, {.documents = 0}, backend), InvalidArgument);
  EXPECT_THROW(MaskBuffer(kShape, {.slices = -1}, backend), InvalidArgument);
}

// Python collects garbage at any time: a buffer that went while another's graph was captured spoiled the capture.
TEST(MaskBuffer, MayGoWhileAGraphIsCaptured) {
  const Sm90Backend backend;
  auto buffer = std::make_unique<MaskBuffer>(kShape, MaskCapacity{.documents = 128}, backend);
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
  MaskBuffer buffer(kShape, {.documents = 128}, backend);
  buffer.set(make_pack(1));
  operands.step(buffer);
  buffer.reserve({.documents = 64});
  EXPECT_THROW(buffer.forward(operands.forward()), InvalidArgument) << "the mask is gone";
  buffer.set(make_pack(1));
  testing::set_captured(true);
  const std::string captured = support::message_of([&] { buffer.set(make_pack(2)); });
  EXPECT_NE(captured.find("must not be being captured"), std::string::npos) << captured;
  buffer.forward(operands.forward());
  testing::set_captured(false);
  buffer.set(make_pack(2));
  const std::string held = support::message_of([&] { buffer.reserve({.documents = 128}); });
  EXPECT_NE(held.find("captured with the buffer must be gone"), std::string::npos) << held;
}

}  // namespace
}  // namespace tangram
