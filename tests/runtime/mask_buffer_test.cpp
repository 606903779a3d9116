// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/mask_buffer.hpp"

#include <gtest/gtest.h>

#include <span>
#include <vector>

#include "support/message_of.hpp"
#include "tangram/backends.hpp"
#include "tangram/flex_attention.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram {
namespace {

constexpr int64_t kRows = 96;
constexpr HeadConfig kHeads{4, 2, 16, 16, DType::kFloat32};
constexpr AttnShape kShape{kRows, kRows, 4, 2, 16, 16, DType::kFloat32};

/// q, k, v, dout of small numbers, and what both passes make of them.
struct Tensors {
  HostTensor q{DType::kFloat32, kRows, 4, 16}, k{DType::kFloat32, kRows, 2, 16}, v{DType::kFloat32, kRows, 2, 16},
      out{DType::kFloat32, kRows, 4, 16}, dq{DType::kFloat32, kRows, 4, 16}, dk{DType::kFloat32, kRows, 2, 16},
      dv{DType::kFloat32, kRows, 2, 16};
  std::vector<float> lse = std::vector<float>(kRows * 4);

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
  MaskBuffer buffer(kShape, {.slices = 12, .block_size = 32, .head_groups = 2}, *backend);
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
  EXPECT_EQ(support::message_of([&] { MaskBuffer(kShape, {.documents = 0}, *backend); }),
            "MaskBuffer: documents must be positive and slices not negative (got documents=0, slices=0)");
  buffer.set(causal_mask(kRows, kRows));
  buffer.reserve({.documents = 7});
  EXPECT_EQ(buffer.capacity().documents, 7);
  EXPECT_THROW(tensors.step(buffer), InvalidArgument) << "the mask is forgotten";
}

}  // namespace
}  // namespace tangram
