// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/mask_buffer.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

#include "support/message_of.hpp"
#include "tangram/backends.hpp"
#include "tangram/flex_attention.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram {
namespace {

constexpr int64_t kRows = 96;
constexpr int kHeadsQ = 16;  // eight share a K/V head, so that blocks may be of 16 rows
constexpr HeadConfig kHeads{kHeadsQ, 2, 16, 16, DType::kFloat32};
constexpr AttnShape kShape{kRows, kRows, kHeadsQ, 2, 16, 16, DType::kFloat32};

/// q, k, v, dout of small numbers, and what both passes make of them.
struct Tensors {
  HostTensor q{DType::kFloat32, kRows, kHeadsQ, 16}, k{DType::kFloat32, kRows, 2, 16}, v{DType::kFloat32, kRows, 2, 16},
      out{DType::kFloat32, kRows, kHeadsQ, 16}, dq{DType::kFloat32, kRows, kHeadsQ, 16},
      dk{DType::kFloat32, kRows, 2, 16}, dv{DType::kFloat32, kRows, 2, 16};
  std::vector<float> lse = std::vector<float>(kRows * kHeadsQ);

  Tensors() {
    int i = 0;
    for (HostTensor* tensor : {&q, &k, &v}) {
      for (int64_t row = 0; row < kRows; ++row) {
        for (int head = 0; head < tensor->view().heads; ++head) {
          for (int d = 0; d < 16; ++d) tensor->set(row, head, d, static_cast<float>(i++ * 7919 % 97) / 97 - 0.5f);
        }
      }
    }
  }
  /// The bytes of all results.
  std::vector<float> step(auto& attention) {
    AttnForwardArgs forward{q.view(), k.view(), v.view(), out.view(), lse.data()};
    attention.forward(forward);
    AttnBackwardArgs backward{q.view(), k.view(),  v.view(),  out.view(), lse.data(),
                              q.view(), dq.view(), dk.view(), dv.view()};
    attention.backward(backward);
    std::vector<float> all = lse;
    for (const HostTensor* tensor : {&out, &dq, &dk, &dv}) {
      const auto* data = static_cast<const float*>(tensor->view().data);
      all.insert(all.end(), data, data + tensor->bytes() / 4);
    }
    return all;
  }
};

TEST(MaskBufferOnTheHost, CallsTakeTheMaskThatWasSetLast) {
  const auto backend = make_attn_backend("cpu", {.num_threads = 1});
  Tensors tensors;
  MaskBuffer buffer(kShape, {}, *backend);
  for (const Mask& mask : {causal_mask(kRows, kRows), varlen_mask(std::vector<int64_t>{0, 10, 50, kRows}, true),
                           Mask(kRows, kRows, {}), full_mask(kRows, kRows)}) {
    FlexAttention own(mask, kHeads, *backend);
    const std::vector<float> expected = tensors.step(own);
    buffer.set(mask);
    EXPECT_EQ(tensors.step(buffer), expected);
  }
  EXPECT_EQ(buffer.num_masks(), 4);
  EXPECT_EQ(buffer.device_bytes(), 0);
}

TEST(MaskBufferOnTheHost, ReadsListsOfDocumentsAsAGpuDoes) {
  const auto backend = make_attn_backend("cpu", {.num_threads = 1});
  Tensors tensors;
  MaskBuffer buffer(kShape, {}, *backend);
  const std::vector<int32_t> ends{0, 10, 50, 50, kRows};
  const std::vector<int64_t> wide{0, 10, 50, 50, kRows}, keys{0, 20, 20, 70, kRows};
  const auto expect_as = [&](const CuSeqlens& documents, const Mask& mask) {
    buffer.set_cu_seqlens(documents);
    const std::vector<float> found = tensors.step(buffer);
    buffer.set(mask);
    EXPECT_EQ(found, tensors.step(buffer));
  };
  expect_as({.q = ends.data(), .documents = 4, .causal = true}, varlen_mask(wide, true));
  expect_as({.q = wide.data(), .is_int64 = true, .documents = 4}, varlen_mask(wide, false));
  expect_as({.q = wide.data(), .k = keys.data(), .is_int64 = true, .documents = 4, .causal = true},
            varlen_mask(wide, keys, true));
  expect_as({.q = ends.data(), .documents = 4, .causal = true, .window = {7, -1}},
            sliding_window_mask(wide, Window{7, 0}));
  expect_as({.q = wide.data(), .k = keys.data(), .is_int64 = true, .documents = 4, .window = {5, 3}},
            sliding_window_mask(wide, keys, {5, 3}));
  const std::vector<int32_t> wrong{0, 60, 50, kRows};
  EXPECT_EQ(support::message_of([&] { buffer.set_cu_seqlens({.q = wrong.data(), .documents = 3}); }),
            "sliding_window_mask: cu_seqlens_q must not decrease (got cu_seqlens_q[2]=50 after 60)");
  buffer.check_errors();
}

TEST(MaskBufferOnTheHost, HeadGroupsHaveBlocksOfTheirOwn) {
  const auto backend = make_attn_backend("cpu", {.num_threads = 1});
  Tensors tensors;
  MaskBuffer buffer(kShape, {.max_slices = 12, .block_size = 32, .head_groups = 2}, *backend);
  const std::vector<int32_t> indices{0, 2, 1, -1, 2, 0, 1, -1, 0, 1, 2, 1};  // of three blocks of queries, twice
  for (const bool causal : {false, true}) {
    std::vector<Mask> masks;
    for (size_t g = 0; g < 2; ++g) {
      masks.push_back(mask_from_block_indices({.seqlen_q = kRows,
                                               .seqlen_k = kRows,
                                               .block_q = 32,
                                               .block_k = 32,
                                               .indices = std::span(indices).subspan(6 * g, 6),
                                               .causal = causal}));
    }
    FlexAttention own(masks, kHeads, *backend);
    const std::vector<float> expected = tensors.step(own);
    buffer.set_blocks({.indices = indices.data(), .width = 2, .block_size = 32, .causal = causal, .head_groups = 2});
    EXPECT_EQ(tensors.step(buffer), expected);
    buffer.set(masks);
    EXPECT_EQ(tensors.step(buffer), expected);
  }
  EXPECT_EQ(support::message_of([&] { buffer.set(causal_mask(kRows, kRows)); }),
            "MaskBuffer::set: needs a mask for each of the buffer's head groups, 2 (got 1)");
  EXPECT_EQ(support::message_of([&] { buffer.set_blocks({.indices = indices.data(), .width = 2, .block_size = 32}); }),
            "MaskBuffer::set_blocks: tables must be of the buffer's head groups, 2 (got head_groups=1)");
  std::vector<int32_t> wrong = indices;
  for (const size_t place : {size_t{3}, size_t{9}}) {  // of either head group
    wrong = indices;
    wrong[place] = 3;
    EXPECT_EQ(support::message_of([&] {
                buffer.set_blocks({.indices = wrong.data(), .width = 2, .block_size = 32, .head_groups = 2});
              }),
              fmt::format("mask_from_block_indices: indices must lie in [0, 3) (got 3 in query block 1 of head group "
                          "{})",
                          place / 6));
  }
  EXPECT_EQ(support::message_of([&] { MaskBuffer(kShape, {.head_groups = 2}, *backend); }),
            "MaskBuffer: head_groups must be of a buffer made for blocks (got head_groups=2, block_size=0)");
}

TEST(MaskBufferOnTheHost, RefusesWhatItSaysItRefuses) {
  const auto backend = make_attn_backend("cpu", {.num_threads = 1});
  Tensors tensors;
  MaskBuffer buffer(kShape, {}, *backend);
  EXPECT_EQ(support::message_of([&] { tensors.step(buffer); }),
            "MaskBuffer::forward: set() must come first (got none)");
  EXPECT_EQ(support::message_of([&] { buffer.set(causal_mask(kRows, kRows + 1)); }),
            "MaskBuffer::set: the mask must have the lengths of the buffer, 96 x 96 (got 96 x 97)");
  EXPECT_EQ(buffer.num_masks(), 0);
  MaskBuffer forward(kShape, {.passes = AttnPasses::kForward}, *backend);
  forward.set(causal_mask(kRows, kRows));
  EXPECT_EQ(support::message_of([&] { tensors.step(forward); }),
            "MaskBuffer::backward: the buffer must be for this pass (got one for forward alone)");
  EXPECT_EQ(
      support::message_of([&] { MaskBuffer(kShape, {.max_documents = 0}, *backend); }),
      "MaskBuffer: max_documents must be positive and max_slices not negative (got max_documents=0, max_slices=0)");
  buffer.set(causal_mask(kRows, kRows));
  buffer.reserve({.max_documents = 7});
  EXPECT_EQ(buffer.capacity().max_documents, 7);
  EXPECT_THROW(tensors.step(buffer), InvalidArgument) << "the mask is forgotten";
}

/// A program that was written where there is no GPU was refused on one.
TEST(MaskBufferOnTheHost, RefusesMasksThatAGpuHasNoRoomFor) {
  const auto backend = make_attn_backend("cpu", {.num_threads = 1});
  const auto refusal = [&](const MaskCapacity& capacity, const auto& set) {
    MaskBuffer buffer(kShape, capacity, *backend);
    const std::string text = support::message_of([&] { set(buffer); });
    EXPECT_EQ(buffer.num_masks(), 0) << text;
    return text;
  };
  std::vector<int64_t> ends;
  for (int64_t end = 0; end <= kRows; end += 4) ends.push_back(end);
  AttnShape longer = kShape;
  longer.seqlen_q = longer.seqlen_k = 2000;
  std::vector<int64_t> documents;
  for (int64_t end = 0; end <= 2000; end += 100) documents.push_back(end);
  MaskBuffer packs(longer, {.max_documents = 1}, *backend);
  EXPECT_EQ(
      support::message_of([&] { packs.set(varlen_mask(documents, true)); }),
      "MaskBuffer::set: the mask must fit the buffer, a larger max_documents makes room (got 40 tiles of queries, room "
      "for 33, max_documents=1)");
  packs.reserve({.max_documents = 20});
  packs.set(varlen_mask(documents, true));
  EXPECT_EQ(
      refusal({.max_documents = 7},
              [&](MaskBuffer& b) { b.set_cu_seqlens({.q = ends.data(), .is_int64 = true, .documents = 24}); }),
      "MaskBuffer::set_cu_seqlens: the mask must fit the buffer, a larger max_documents makes room (got 24 documents, "
      "room for 7)");
  const std::vector<int32_t> pairs{0, 8, 8, 16, 16, 24};
  EXPECT_EQ(
      refusal({.max_slices = 2},
              [&](MaskBuffer& b) { b.set_ranges({.q_ranges = pairs.data(), .k_ranges = pairs.data(), .count = 3}); }),
      "MaskBuffer::set_ranges: the mask must fit the buffer, a larger max_slices makes room (got 3 ranges, room for "
      "2)");
  const std::vector<int32_t> indices(12, -1);
  const auto blocks = [&](int64_t width, int64_t size) {
    return
        [=, &indices](MaskBuffer& b) { b.set_blocks({.indices = indices.data(), .width = width, .block_size = size}); };
  };
  EXPECT_EQ(refusal({.max_slices = 11}, blocks(2, 16)),
            "MaskBuffer::set_blocks: the mask must fit the buffer, a larger max_slices makes room (got 6 query blocks "
            "of up to "
            "2 blocks, room for 11 blocks)");
  EXPECT_EQ(refusal({}, blocks(1, 8)), "MaskBuffer::set_blocks: block_size must be at least 16 (got block_size=8)");
  EXPECT_EQ(refusal({.allow_fully_masked_rows = false}, blocks(2, 16)),
            "MaskBuffer: device masks need allow_fully_masked_rows=true, since the host cannot rule out fully masked "
            "rows (got "
            "allow_fully_masked_rows=false)");
  EXPECT_EQ(refusal({.allow_fully_masked_rows = false}, [&](MaskBuffer& b) { b.set(Mask(kRows, kRows, {})); }),
            "MaskBuffer::set: each row must see a key, as the buffer is made for (got a mask with rows that see none, "
            "allow_fully_masked_rows=false)");
  MaskBuffer covered(kShape, {.allow_fully_masked_rows = false}, *backend);
  covered.set(causal_mask(kRows, kRows));
}

TEST(MaskBufferOnTheHost, RefusesBlocksThatAGpuDoesNotTake) {
  const auto backend = make_attn_backend("cpu", {.num_threads = 1});
  const auto made = [&](const MaskCapacity& capacity) {
    return support::message_of([&] { MaskBuffer(kShape, capacity, *backend); });
  };
  EXPECT_EQ(made({.block_size = 24}),
            "MaskBuffer: blocks must be multiples of 16 rows, the queries of a tile or 16 keys (got block_size=24)");
  EXPECT_NE(made({.deterministic = true, .block_size = 16}).find("must not be of deterministic calls"),
            std::string::npos);
  EXPECT_NE(made({.allow_fully_masked_rows = false, .block_size = 16}).find("must be allowed rows that see no key"),
            std::string::npos);
  EXPECT_EQ(made({.deterministic = true, .block_size = 128}), "nothing was thrown")
      << "kernels that do not gather take these";
  Tensors tensors;
  MaskBuffer buffer(kShape, {.max_slices = 12, .block_size = 32}, *backend);
  const std::vector<int32_t> indices{0, 1, 2, 1, 1, 0};
  EXPECT_EQ(support::message_of([&] { buffer.set_blocks({.indices = indices.data(), .width = 1, .block_size = 16}); }),
            "MaskBuffer::set_blocks: block_size must be at least that of the buffer, 32, and a multiple of 16 (got "
            "block_size=16)");
  EXPECT_EQ(support::message_of([&] { buffer.set_blocks({.indices = indices.data(), .width = 5, .block_size = 32}); }),
            "MaskBuffer::set_blocks: the mask must fit the buffer, a larger max_slices makes room (got 1 x 3 query "
            "blocks of up "
            "to 5 blocks of 32, room for 12 blocks of 32)");
  for (const auto* what : {"documents", "ranges"}) {
    const std::string text = support::message_of([&] {
      if (what[0] == 'd') {
        buffer.set_cu_seqlens({.q = indices.data(), .documents = 1});
      } else {
        buffer.set_ranges({});
      }
    });
    EXPECT_EQ(text, fmt::format("MaskBuffer: a buffer made for blocks must get them by set_blocks() or set() (got {})",
                                what));
  }
  EXPECT_NE(support::message_of([&] {
              buffer.set(Mask(kRows, kRows, {{{0, kRows}, {0, kRows}, -20, 0}}));
            }).find("tiles of 16 queries see whole groups of 16 keys"),
            std::string::npos);
  buffer.set_blocks({.indices = indices.data(), .width = 2, .block_size = 32});
  tensors.step(buffer);
  AttnBackwardArgs args{tensors.q.view(), tensors.k.view(),  tensors.v.view(),  tensors.out.view(), tensors.lse.data(),
                        tensors.q.view(), tensors.dq.view(), tensors.dk.view(), tensors.dv.view()};
  args.options.softcap = 5;
  EXPECT_EQ(support::message_of([&] { buffer.backward(args); }),
            "MaskBuffer::backward: calls with a MaskBuffer for blocks must be without softcap, dsink and "
            "accumulation, and not deterministic (got softcap=5, dsink=false, accumulate_dq=false, "
            "accumulate_dkv=false, deterministic=false)");
}

// Refused as on a GPU, whose KV-stationary kernels do not check which rows of a tile see a key, and list runs as they
// are.
TEST(MaskBuffer, BlocksOf128OnTheHostAreRefusedAsOnAGpu) {
  const auto backend = make_attn_backend("cpu", {.num_threads = 1});
  const AttnShape shape{512, 512, 2, 2, 16, 16, DType::kFloat32};
  MaskBuffer shared(shape, {.max_slices = 16, .block_size = 128}, *backend);
  EXPECT_NE(support::message_of([&] {
              shared.set(Mask(512, 512, {AttnSlice::full({0, 160}, {0, 128})}));
            }).find("all queries of a tile of 64 see something, or none"),
            std::string::npos);
  shared.set(Mask(512, 512, {AttnSlice::full({0, 256}, {0, 128})}));
  MaskBuffer of_two(shape, {.max_slices = 32, .passes = AttnPasses::kForward, .block_size = 128, .head_groups = 2},
                    *backend);
  const std::vector<int32_t> indices(2 * 3, 0);
  EXPECT_NE(support::message_of([&] {
              of_two.set_blocks({.indices = indices.data(), .width = 1, .block_size = 192, .head_groups = 2});
            }).find("a multiple of 128 (got block_size=192)"),
            std::string::npos);
}

}  // namespace
}  // namespace tangram
