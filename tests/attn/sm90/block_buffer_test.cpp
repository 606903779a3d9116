// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// MaskBuffers that are made for small blocks: lists that the GPU builds, as one thread of the host builds them, bit for
// bit; both passes against float64, and against masks of their own. Needs a Hopper GPU; skipped elsewhere.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "attn/cpu/random_heads.hpp"
#include "attn/gpu/builder/launch.hpp"
#include "attn/sm90/head_dims.hpp"
#include "attn/sm90/on_device.hpp"
#include "cuda/device_buffer.hpp"
#include "schedule/block_lists_cases.hpp"
#include "support/message_of.hpp"
#include "support/relative_error.hpp"
#include "tangram/flex_attention.hpp"
#include "tangram/mask_buffer.hpp"

namespace tangram {
namespace {

using schedule::builder::BlockCase;
using schedule::builder::BlockChoice;
using schedule::builder::Choice;

class Sm90BlockBuffer : public test::Sm90OnStream {
 protected:
  Sm90Backend backend_;
};

TEST_F(Sm90BlockBuffer, ListsAreAsOneThreadOfTheHostBuildsThem) {
  std::mt19937 rng(31);
  for (const BlockCase& c : schedule::builder::gathered_cases()) {
    schedule::builder::BuiltBlocks serial(c);
    const schedule::BlockImageLayout& layout = serial.layout();
    const auto work = cuda::DeviceBuffer::zeros(schedule::builder::block_build_bytes(layout));
    const cuda::DeviceBuffer image(layout.bytes());
    const auto build = schedule::builder::block_build_at(layout, work.as<std::byte>(), image.as<std::byte>());
    std::vector<std::byte> found(layout.bytes());
    for (int round = 0; round < test::num_rounds(100); ++round) {
      const BlockChoice choice = schedule::builder::random_block_choice(rng, c);
      const auto indices = cuda::DeviceBuffer::copy_of(choice.indices);
      BlockTable table = choice.table();
      table.indices = indices.as<void>();
      cuda::check(cudaMemsetAsync(image.as<void>(), 0, image.bytes(), stream_), "cudaMemsetAsync");
      gpu::builder::launch_build(build, schedule::builder::block_lists_of(layout, table), stream_);
      cuda::check(cudaMemcpyAsync(found.data(), image.as<void>(), image.bytes(), cudaMemcpyDeviceToHost, stream_),
                  "cudaMemcpyAsync");
      cuda::check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
      serial.build(choice.table());
      ASSERT_EQ(std::memcmp(found.data(), serial.image(), layout.bytes()), 0) << "round " << round;
    }
  }
}

void expect_close(const test::RandomHeads& r) {
  const AttnShape& s = r.all.config.shape;
  const auto check = [&](const char* name, const HostTensor& got, const std::vector<double>& want, int heads,
                         double bound) {
    EXPECT_LT(support::relative_error(got, want, heads, s.head_dim), bound) << name;  // as in head_masks_test.cpp
  };
  check("out", r.all.out, r.expected.out, s.num_heads_q, 4.0 / 512);
  check("dq", r.all.dq, r.expected.dq, s.num_heads_q, 8e-3);
  check("dk", r.all.dk, r.expected.dk, s.num_heads_kv, 8e-3);
  check("dv", r.all.dv, r.expected.dv, s.num_heads_kv, 8e-3);
  test::expect_logits(r.all, r.expected);
}

// Masks of the GPU, then of the host, with NaN in values that must not be read.
TEST_F(Sm90BlockBuffer, BothPassesAgreeWithFloat64) {
  std::mt19937 rng(32);
  for (const BlockCase& of : {schedule::builder::block_case(500, 512, 16, 2, 16, 16, 2),
                              schedule::builder::block_case(512, 512, 16, 2, 16, 32, 1),
                              schedule::builder::block_case(512, 512, 8, 4, 64, 64, 4),
                              schedule::builder::block_case(200, 208, 16, 2, 16, 48, 2),
                              schedule::builder::block_case(256, 256, 8, 1, 16, 64, 1),
                              schedule::builder::block_case(256, 256, 2, 2, 128, 128, 2),
                              schedule::builder::block_case(256, 256, 64, 2, 4, 16, 2),
                              schedule::builder::block_case(300, 300, 8, 1, 16, 128, 1),
                              schedule::builder::block_case(272, 272, 16, 2, 16, 128, 2),
                              schedule::builder::block_case(256, 300, 2, 2, 128, 128, 1)}) {
    for (const int head_dim : {128, 64}) {
      BlockCase c = of;
      if (c.capacity.block_size == 128) c.capacity.max_slices = 200;
      c.shape.head_dim = c.shape.head_dim_v = head_dim;
      MaskBuffer buffer(c.shape, c.capacity, backend_);
      for (int round = 0; round < 4; ++round) {
        BlockChoice choice = schedule::builder::random_block_choice(rng, c);
        const bool square = c.shape.seqlen_q == c.shape.seqlen_k;
        std::vector<std::vector<AttnSlice>> slices;
        std::vector<Mask> masks;
        for (Choice& of_group : choice.of_groups) {
          of_group.causal = square && round % 2 == 1;
          slices.push_back(schedule::builder::slices_apart(of_group, c.shape));
          masks.emplace_back(c.shape.seqlen_q, c.shape.seqlen_k, slices.back());
        }
        SCOPED_TRACE(testing::Message() << "head dim " << head_dim << ", blocks of " << choice.of_groups[0].block
                                        << ", round " << round);
        test::RandomConfig config;
        config.shape = c.shape;
        config.out_dtype = config.grad_dtype = c.shape.dtype;
        test::RandomHeads r = test::make_random_heads(config, slices, static_cast<unsigned>(round) + 1);
        test::OnDevice device(r.all);
        const auto indices = cuda::DeviceBuffer::copy_of(choice.indices);
        BlockTable table = choice.table();
        table.indices = indices.as<void>();
        for (const bool of_host : {false, true}) {
          if (of_host) {
            buffer.set(masks, stream_);
          } else {
            buffer.set_blocks(table, stream_);
          }
          device.poison_outputs();
          buffer.forward(device.forward, stream_);
          buffer.backward(device.backward, stream_);
          test::wait_for_device();
          buffer.check_errors();
          device.fetch();
          expect_close(r);
        }
      }
    }
  }
}

/// Tolerance of mask_buffer_test.cpp, or for two kernels, which round their products in different places, that against
/// float64.
bool close(const HostTensor& one, const HostTensor& other, bool same_kernels) {
  return test::is_within(one, other, same_kernels ? 2e-3 : 8e-3);
}

bool same(const HostTensor& one, const HostTensor& other) {
  return std::memcmp(one.view().data, other.view().data, static_cast<size_t>(one.bytes())) == 0;
}

// One graph builds the lists of each head group and runs both passes; masks of their own give the same bits, but for
// what is added in any order: dk and dv, and of blocks of 128, which take the KV-stationary kernel, dq.
TEST_F(Sm90BlockBuffer, ReplaysGiveTheBitsOfMasksOfTheirOwn) {
  constexpr int64_t kRows = 4096;
  struct Case {
    int64_t block;
    int head_groups, heads_kv;
    bool kv_stationary;
  };
  std::mt19937 rng(33);
  // The last but one has few tiles of keys, and gathers.
  for (const auto& [block, head_groups, heads_kv, kv_stationary] :
       {Case{32, 1, 2, false}, {32, 2, 2, false}, {128, 1, 2, true}, {128, 2, 2, false}, {128, 2, 16, true}}) {
    test::RandomConfig config;
    config.shape = test::shape_of(kRows, kRows, 16, heads_kv, {128, 128});
    config.poison = false;
    test::RandomAttention r = test::make_random(config, {AttnSlice::causal({0, kRows}, {0, kRows})}, 1);
    test::OnDevice device(r);
    const int64_t blocks = kRows / block, width = blocks / 8, entries = blocks * width;
    MaskBuffer buffer(config.shape,
                      {.max_slices = head_groups * entries, .block_size = block, .head_groups = head_groups}, backend_);
    std::vector<int32_t> indices(static_cast<size_t>(head_groups * entries));
    std::vector<Mask> masks;
    const auto choose = [&] {
      std::vector<int32_t> all(static_cast<size_t>(blocks));
      masks.clear();
      for (int g = 0; g < head_groups; ++g) {
        int32_t* const of_group = indices.data() + g * entries;
        for (int64_t row = 0; row < blocks; ++row) {
          std::iota(all.begin(), all.end(), 0);
          std::shuffle(all.begin(), all.end(), rng);
          std::copy_n(all.begin(), width, of_group + row * width);
        }
        masks.push_back(mask_from_block_indices({.seqlen_q = kRows,
                                                 .seqlen_k = kRows,
                                                 .block_q = block,
                                                 .block_k = block,
                                                 .indices = {of_group, static_cast<size_t>(entries)}}));
      }
    };
    choose();
    const auto on_device = cuda::DeviceBuffer::copy_of(indices);
    const BlockTable table{
        .indices = on_device.as<void>(), .width = width, .block_size = block, .head_groups = head_groups};
    const auto calls = [&] {
      buffer.set_blocks(table, stream_);
      buffer.forward(device.forward, stream_);
      buffer.backward(device.backward, stream_);
    };
    calls();  // loads kernels
    test::wait_for_device();
    cudaGraphExec_t graph = capture(calls);
    for (int round = 0; round < test::num_rounds(20); ++round) {
      choose();
      cuda::upload(on_device.as<void>(), indices.data(), indices.size() * sizeof(int32_t));
      test::wait_for_device();
      device.poison_outputs();
      cuda::check(cudaGraphLaunch(graph, stream_), "cudaGraphLaunch");
      test::wait_for_device();
      device.fetch();
      buffer.check_errors();
      const HostTensor out = r.out.clone(), dq = r.dq.clone(), dk = r.dk.clone(), dv = r.dv.clone();
      const std::vector<float> lse = r.lse;
      const HeadConfig heads{16, heads_kv, 128, 128, DType::kBFloat16};
      FlexAttention own =
          head_groups == 1 ? FlexAttention(masks[0], heads, backend_) : FlexAttention(masks, heads, backend_);
      device.poison_outputs();
      own.forward(device.forward, stream_);
      own.backward(device.backward, stream_);
      test::wait_for_device();
      device.fetch();
      EXPECT_EQ(r.lse, lse);
      EXPECT_TRUE(same(r.out, out));
      // A mask of its own gathers no blocks of 128 backward.
      const bool same_kernels = block == 32 || kv_stationary;
      EXPECT_TRUE(block == 32 ? same(r.dq, dq) : close(dq, r.dq, same_kernels));
      EXPECT_TRUE(close(dk, r.dk, same_kernels) && close(dv, r.dv, same_kernels));
      ASSERT_FALSE(HasFailure()) << "round " << round << ", blocks of " << block << ", head groups " << head_groups;
    }
    // A table that is wrong: zeros, and an error once.
    indices.back() = 4096;
    cuda::upload(on_device.as<void>(), indices.data(), indices.size() * sizeof(int32_t));
    test::wait_for_device();
    device.poison_outputs();
    cuda::check(cudaGraphLaunch(graph, stream_), "cudaGraphLaunch");
    test::wait_for_device();
    device.fetch();
    EXPECT_EQ(r.out.at(5, 0, 0), 0);
    EXPECT_EQ(r.dq.at(5, 0, 0), 0);
    EXPECT_EQ(r.dk.at(kRows - 1, 1, 3), 0);
    const std::string text = support::message_of([&] { buffer.forward(device.forward, stream_); });
    const std::string wanted = "indices must lie in [0, " + std::to_string(blocks) + ") (got 4096 in query block " +
                               std::to_string(blocks - 1);
    EXPECT_NE(text.find(wanted), std::string::npos) << text;
    EXPECT_EQ(text.find("of head group 1") != std::string::npos, head_groups == 2) << text;
    buffer.check_errors();
    cuda::check(cudaGraphExecDestroy(graph), "cudaGraphExecDestroy");
  }
}

}  // namespace
}  // namespace tangram
