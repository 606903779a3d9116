// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What a mask keeps on a GPU, and what calls take: counted by a runtime over host memory, on every machine.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "attn/sm90/counted_calls.hpp"
#include "attn/sm90/forward/params.hpp"
#include "attn/sm90/sm90_backend.hpp"
#include "cuda/counting_runtime.hpp"
#include "cuda/list_memory.hpp"
#include "tangram/error.hpp"
#include "tangram/flex_attention.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram {
namespace {

using testing::runtime_counts;
using testing::RuntimeCounts;

constexpr HeadConfig kHeads{.num_heads_q = 16, .num_heads_kv = 2, .head_dim = 128, .head_dim_v = 128};
using counted::kRows;
using counted::make_pack;
using counted::Operands;
using counted::since;

TEST(MaskMemory, AMaskKeepsItsListsAndNothingElse) {
  const Sm90Backend backend;
  Operands operands;
  const auto step = [&](FlexAttention& attention) {
    attention.forward(operands.forward());
    attention.backward(operands.backward());
  };
  FlexAttention first(make_pack(1), kHeads, backend);
  step(first);
  const cuda::ListMemory& lists = cuda::ListMemory::of_current_device();
  for (unsigned seed = 2; seed < 20; ++seed) {
    RuntimeCounts before = runtime_counts();
    const auto used = static_cast<int64_t>(lists.used_bytes());
    {
      FlexAttention attention(make_pack(seed), kHeads, backend);
      step(attention);
      const RuntimeCounts made = since(before);
      EXPECT_EQ(made.allocations + made.host_allocations + made.frees + made.waits, 0);
      EXPECT_EQ(made.copies, 2) << "one of lists for each pass";
      EXPECT_EQ(made.device_queries, 0) << "facts of the device are read once";
      EXPECT_EQ(static_cast<int64_t>(lists.used_bytes()) - used, attention.device_bytes());
      EXPECT_LT(attention.device_bytes(), 1 << 20);
      before = runtime_counts();
      step(attention);
      const RuntimeCounts again = since(before);
      EXPECT_EQ(again.allocations + again.frees + again.copies + again.waits + again.device_queries, 0);
      EXPECT_GT(again.launches, 0);
      before = runtime_counts();
    }
    EXPECT_EQ(since(before).frees + since(before).waits, 0);
    EXPECT_EQ(static_cast<int64_t>(lists.used_bytes()), used) << "a mask that goes leaves nothing";
  }
}

// Most programs make calls of one kind, and paid for the lists of both.
TEST(MaskMemory, ListsOfUnusedCallKindsAreNotMade) {
  const Sm90Backend backend;
  for (const bool first : {false, true}) {
    Operands operands;
    AttnBackwardArgs args = operands.backward();
    const auto call = [&](FlexAttention& attention, bool deterministic) {
      const RuntimeCounts before = runtime_counts();
      args.options.deterministic = deterministic;
      attention.backward(args);
      return since(before).copies;
    };
    FlexAttention attention(make_pack(6), kHeads, backend);
    EXPECT_GT(attention.backward_workspace_bytes(!first), 0) << "makes those of the other kind";
    FlexAttention one(make_pack(6), kHeads, backend);
    EXPECT_EQ(call(one, first), 1);
    EXPECT_EQ(call(one, first), 0);
    const int64_t bytes = one.device_bytes();
    EXPECT_EQ(call(one, !first), 1) << "lists of the other kind come with its first call";
    EXPECT_GT(one.device_bytes(), bytes);
    EXPECT_EQ(call(one, first) + call(one, !first), 0);
    EXPECT_EQ(call(attention, !first), 0);
    EXPECT_EQ(call(attention, first), 1);
  }
}

/// Small blocks at random, whose default calls gather keys.
Mask small_blocks(int64_t block, unsigned seed) {
  std::mt19937 random(seed);
  std::bernoulli_distribution sees(0.1);
  std::vector<AttnSlice> slices;
  for (int64_t q = 0; q < kRows; q += block) {
    for (int64_t k = 0; k < kRows; k += block) {
      if (sees(random)) slices.push_back(AttnSlice::full({q, q + block}, {k, k + block}));
    }
  }
  return Mask(kRows, kRows, slices);
}

// For block-sparse masks, key lists took most of the host's time, and default calls do not read them.
TEST(MaskMemory, ListsOfKeysAreMadeForCallsThatDoNotGatherAlone) {
  const Sm90Backend backend;
  for (const bool ahead : {false, true}) {
    Operands operands;
    FlexAttention attention(small_blocks(16, 1), kHeads, backend);
    if (ahead) attention.prepare_backward_async(false, true);
    const RuntimeCounts before = runtime_counts();
    const int64_t plain_bytes = attention.backward_workspace_bytes(false, true);
    AttnBackwardArgs args = operands.backward();
    attention.backward(args);
    attention.backward(args);
    if (!ahead) {
      EXPECT_EQ(since(before).copies, 1) << "of groups";
    }
    const int64_t bytes = attention.device_bytes();
    RuntimeCounts later = runtime_counts();
    args.options.softcap = 5;
    attention.backward(args);
    attention.backward(args);
    EXPECT_EQ(since(later).copies, 1) << "of keys, with the first call that reads them";
    EXPECT_GT(attention.device_bytes(), bytes);
    EXPECT_EQ(attention.backward_workspace_bytes(false, true), attention.backward_workspace_bytes());
    EXPECT_GE(attention.backward_workspace_bytes(), plain_bytes);
    later = runtime_counts();
    args.options = {};
    attention.backward(args);
    EXPECT_EQ(since(later).copies, 0);
    args.options.deterministic = true;
    attention.backward(args);
    EXPECT_EQ(since(later).copies, 1);
  }
}

// They read lists before the copy had run, now and then: gradients were zeros, or those of an earlier mask.
TEST(MaskMemory, CallsThatGatherWaitForTheirLists) {
  const Sm90Backend backend;
  Operands operands;
  FlexAttention attention(small_blocks(16, 4), kHeads, backend);
  attention.forward(operands.forward());
  static_cast<void>(attention.backward_workspace_bytes(false, true));
  const RuntimeCounts before = runtime_counts();
  attention.backward(operands.backward());
  EXPECT_EQ(since(before).stream_waits, 1);
  attention.backward(operands.backward());
  EXPECT_EQ(since(before).stream_waits, 1) << "the first time";
}

// Blocks of 128 keys are whole steps, which nothing gathers: between two the producer waited for the next run.
TEST(MaskMemory, MasksOfManyRunsTakeTheKernelThatFetchesThemAhead) {
  const Sm90Backend backend;
  Operands operands;
  std::vector<AttnSlice> slices;
  for (int64_t q = 0; q < kRows; q += 128) {
    for (int64_t k = q / 128 % 2 * 128; k < kRows; k += 256)
      slices.push_back(AttnSlice::full({q, q + 128}, {k, k + 128}));
  }
  const auto kernel_of = [&](const Mask& mask, float softcap) {
    FlexAttention attention(mask, kHeads, backend);
    AttnForwardArgs args = operands.forward();
    args.options.softcap = softcap;
    testing::record_launches({sizeof(sm90::ForwardParams)});
    attention.forward(args);
    const std::vector<testing::Launch> launches = testing::recorded_launches();
    return launches.empty() ? nullptr : launches[0].kernel;
  };
  const Mask many(kRows, kRows, slices), one(kRows, kRows, {AttnSlice::full({0, kRows}, {0, kRows})});
  ASSERT_NE(kernel_of(one, 0), nullptr);
  EXPECT_NE(kernel_of(many, 0), kernel_of(one, 0));
  EXPECT_EQ(kernel_of(make_pack(1), 0), kernel_of(one, 0));
  EXPECT_EQ(kernel_of(many, 5), kernel_of(one, 5)) << "there is one without softcap alone";
}

// Masks for which the choice is not clear are prepared as ever, and plain calls of these do not differ.
TEST(MaskMemory, ListsOfKeysAreMadeWhereTheyMayBeTheBetterOnes) {
  const Sm90Backend backend;
  for (const Mask& mask : {make_pack(1), small_blocks(128, 2), small_blocks(64, 3)}) {
    Operands operands;
    FlexAttention plain(mask, kHeads, backend), other(mask, kHeads, backend);
    RuntimeCounts before = runtime_counts();
    const int64_t bytes = plain.backward_workspace_bytes(false, true);
    const int64_t copies = since(before).copies;
    before = runtime_counts();
    EXPECT_EQ(bytes, other.backward_workspace_bytes());
    EXPECT_EQ(since(before).copies, copies);
    AttnBackwardArgs args = operands.backward();
    args.options.softcap = 5;
    before = runtime_counts();
    plain.backward(args);
    EXPECT_EQ(since(before).copies, 0) << "all is there";
  }
}

TEST(MaskMemory, APassThatIsNotCalledIsNotPrepared) {
  const Sm90Backend backend;
  Operands operands;
  const RuntimeCounts before = runtime_counts();
  FlexAttention attention(make_pack(3), kHeads, backend);
  attention.forward(operands.forward());
  EXPECT_EQ(since(before).copies, 1);
  EXPECT_GT(attention.backward_workspace_bytes(), 0);
  EXPECT_EQ(since(before).copies, 2);
  const auto alone =
      make_mask_slot(backend, make_pack(4).slices(), attention.shape(), {.passes = AttnPasses::kBackward});
  EXPECT_EQ(since(before).copies, 3);
  EXPECT_THROW(backend.forward(*alone, operands.forward()), InvalidArgument);
}

// Training has another mask at each step, and keeps the last few hundred.
TEST(MaskMemory, ManyMasksTakeFewAllocationsAndTheirMemoryIsBounded) {
  const Sm90Backend backend;
  Operands operands;
  const RuntimeCounts before = runtime_counts();
  std::vector<std::unique_ptr<FlexAttention>> kept(16);
  int64_t most = 0;
  for (unsigned seed = 0; seed < 400; ++seed) {
    std::unique_ptr<FlexAttention>& attention = kept[seed % kept.size()];
    attention = std::make_unique<FlexAttention>(make_pack(seed), kHeads, backend);
    attention->forward(operands.forward());
    attention->backward(operands.backward());
    most = std::max(most, since(before).live_bytes);
  }
  EXPECT_LE(since(before).allocations, 2);
  EXPECT_EQ(since(before).waits, 0);
  EXPECT_LE(most, 8 << 20);
}

// By another thread, with the same lists and as many copies.
TEST(MaskMemory, ListsOfTheBackwardPassAreMadeAhead) {
  const Sm90Backend backend;
  Operands operands;
  AttnBackwardArgs args = operands.backward();
  for (unsigned seed = 0; seed < 60; ++seed) {
    const bool deterministic = seed % 2 == 1;
    args.options.deterministic = deterministic;
    FlexAttention plain(make_pack(seed), kHeads, backend);
    plain.backward(args);
    RuntimeCounts before = runtime_counts();
    FlexAttention begun(make_pack(seed), kHeads, backend);
    begun.prepare_backward_async(deterministic);
    begun.prepare_backward_async(!deterministic);
    FlexAttention attention = std::move(begun);
    attention.forward(operands.forward());
    attention.backward(args);
    EXPECT_EQ(since(before).copies, 2);
    EXPECT_EQ(since(before).waits + since(before).frees, 0);
    EXPECT_GT(attention.device_bytes(), 0) << "those that are made ahead included";
    EXPECT_EQ(attention.backward_workspace_bytes(deterministic), plain.backward_workspace_bytes(deterministic));
    attention.prepare_backward_async(deterministic);
    attention.prepare_backward_async(!deterministic);
    before = runtime_counts();
    attention.backward(args);
    EXPECT_LE(since(before).copies, 1) << "of the other kind, whose lists are made beside";
    args.options.deterministic = !deterministic;
    attention.backward(args);
  }
}

TEST(MaskMemory, AMaskMayGoBeforeItsListsAreMade) {
  const Sm90Backend backend;
  const cuda::ListMemory& lists = cuda::ListMemory::of_current_device();
  const size_t used = lists.used_bytes();
  for (unsigned seed = 0; seed < 200; ++seed) {
    FlexAttention attention(make_pack(seed % 10), kHeads, backend);
    attention.prepare_backward_async(seed % 2 == 0);
    if (seed % 3 == 0) std::this_thread::yield();
  }
  EXPECT_EQ(lists.used_bytes(), used);
}

TEST(MaskMemory, MasksOfOneShapeWantWorkspacesOfOneSize) {
  const Sm90Backend backend;
  const int64_t expected = FlexAttention(make_pack(0), kHeads, backend).backward_workspace_bytes();
  for (unsigned seed = 1; seed < 30; ++seed) {
    EXPECT_EQ(FlexAttention(make_pack(seed), kHeads, backend).backward_workspace_bytes(), expected) << "seed " << seed;
  }
}

// It had room for every tile of keys in pieces, 0.35 GB, of which a pack needs a twentieth.
TEST(MaskMemory, FewWorkTilesInPiecesWantFewAccumTiles) {
  const Sm90Backend backend;
  const HeadConfig heads{.num_heads_q = 64, .num_heads_kv = 8, .head_dim = 128, .head_dim_v = 128};
  std::vector<int64_t> ends{0};
  for (const int64_t length : {651, 1675, 2235, 485, 608, 1491, 16693, 610, 451, 1586, 942, 1083, 1996, 481, 1781})
    ends.push_back(ends.back() + length);
  FlexAttention attention(varlen_mask(ends, true), heads, backend);
  EXPECT_LT(attention.backward_workspace_bytes(), 1'330'000'000) << "1,280 MB are sums of dq and statistics";
}

TEST(MaskMemory, CallsWithAWorkspaceAllocateNone) {
  const Sm90Backend backend;
  Operands operands;
  const HeadConfig wide{.num_heads_q = 64, .num_heads_kv = 2, .head_dim = 128, .head_dim_v = 128};
  FlexAttention attention(make_pack(5), wide, backend);
  std::vector<char> memory(static_cast<size_t>(attention.backward_workspace_bytes()) + 256);
  void* const aligned = memory.data() + (256 - reinterpret_cast<uintptr_t>(memory.data()) % 256);
  std::vector<float> wide_memory(static_cast<size_t>(kRows) * 64 * 128 + 64);
  const auto view = [&](int heads) {
    const auto address = (reinterpret_cast<uintptr_t>(wide_memory.data()) + 255) / 256 * 256;
    return TensorView{{reinterpret_cast<void*>(address), DType::kBFloat16, kRows, heads, 128, heads * 128, 128}};
  };
  AttnBackwardArgs args{view(64), view(2), view(2), view(64), wide_memory.data(), view(64), view(64), view(2), view(2)};
  args.workspace = {aligned, attention.backward_workspace_bytes()};
  const RuntimeCounts before = runtime_counts();
  attention.backward(args);
  EXPECT_EQ(since(before).allocations, 0);
  args.workspace.bytes -= 1;
  EXPECT_THROW(attention.backward(args), InvalidArgument) << "too small";
  args.workspace = {static_cast<char*>(aligned) + 16, attention.backward_workspace_bytes()};
  EXPECT_THROW(attention.backward(args), InvalidArgument) << "not aligned";
}

}  // namespace
}  // namespace tangram
