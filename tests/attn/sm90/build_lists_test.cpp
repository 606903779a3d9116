// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Lists that the GPU builds: as one thread of the host builds them, bit for bit, and in graphs whose data change. Needs
// a Hopper GPU; skipped elsewhere.

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "attn/gpu/builder/launch.hpp"
#include "attn/sm90/head_dims.hpp"
#include "attn/sm90/on_device.hpp"
#include "cuda/device_buffer.hpp"
#include "schedule/build_cases.hpp"
#include "schedule/serial_build.hpp"
#include "support/message_of.hpp"
#include "support/relative_error.hpp"
#include "tangram/error.hpp"
#include "tangram/mask_buffer.hpp"

namespace tangram {
namespace {

using namespace schedule::builder;

class Sm90BuildLists : public test::Sm90OnStream {
 protected:
  Sm90Backend backend_;
};

/// Images of a case in device memory.
class DeviceImages {
 public:
  explicit DeviceImages(const ImageCase& c)
      : layout_(c.shape, c.forward, c.backward, c.capacity),
        build_layout_(layout_, c.shape, c.forward, c.backward, c.capacity, c.gpu),
        work_(cuda::DeviceBuffer::zeros(build_layout_.bytes())),
        image_(layout_.bytes()),
        found_(layout_.bytes()),
        serial_work_(build_layout_.bytes(), std::byte{0}),
        serial_(layout_.bytes(), std::byte{0}) {}

  /// `data` in device memory, `of_host` the same in that of the host.
  template <class Data>
  void expect_as_serial(const Data& data, const Data& of_host, cudaStream_t stream) {
    cuda::check(cudaMemsetAsync(image_.as<void>(), 0, image_.bytes(), stream), "cudaMemsetAsync");
    gpu::builder::launch_build(build_layout_.at(work_.as<std::byte>(), image_.as<std::byte>()), data, stream);
    cuda::check(cudaMemcpyAsync(found_.data(), image_.as<void>(), image_.bytes(), cudaMemcpyDeviceToHost, stream),
                "cudaMemcpyAsync");
    cuda::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    std::memset(serial_.data(), 0, layout_.bytes());
    run_build(build_layout_.at(serial_work_.data(), serial_.data()), of_host);
    expect_equal_images(found_.data(), serial_.data(), layout_.bytes());
  }

 private:
  schedule::ImageLayout layout_;
  BuildLayout build_layout_;
  cuda::DeviceBuffer work_, image_;
  std::vector<std::byte> found_;
  AlignedBytes serial_work_, serial_;
};

TEST_F(Sm90BuildLists, DocumentsAreAsOneThreadOfTheHostBuildsThem) {
  std::mt19937 rng(5);
  for (const ImageCase& c : document_cases()) {
    DeviceImages images(c);
    for (int round = 0; round < test::num_rounds(125); ++round) {
      const Pack pack = random_pack(rng, c);
      const auto q = cuda::DeviceBuffer::copy_of(pack.q), k = cuda::DeviceBuffer::copy_of(pack.k);
      Documents documents = documents_of(pack);
      documents.cu_q = q.as<void>();
      documents.cu_k = k.as<void>();
      images.expect_as_serial(documents, documents_of(pack), stream_);
      ASSERT_FALSE(HasFailure()) << "round " << round;
    }
  }
}

TEST_F(Sm90BuildLists, BlocksAreAsOneThreadOfTheHostBuildsThem) {
  std::mt19937 rng(6);
  for (const ImageCase& c : block_cases()) {
    DeviceImages images(c);
    for (int round = 0; round < test::num_rounds(125); ++round) {
      const Choice choice = random_choice(rng, c);
      const auto indices = cuda::DeviceBuffer::copy_of(choice.indices);
      std::vector<std::byte> memory;
      const Blocks of_host = blocks_of(choice, c, memory);
      const cuda::DeviceBuffer bitmap(memory.size());
      Blocks blocks = of_host;
      blocks.indices = indices.as<void>();
      place_blocks(blocks, c.shape, bitmap.as<std::byte>());
      images.expect_as_serial(blocks, of_host, stream_);
      ASSERT_FALSE(HasFailure()) << "round " << round;
    }
  }
}

TEST_F(Sm90BuildLists, RangesAreAsOneThreadOfTheHostBuildsThem) {
  std::mt19937 rng(7);
  for (const ImageCase& c : range_cases()) {
    DeviceImages images(c);
    for (int round = 0; round < test::num_rounds(125); ++round) {
      const TypedRanges typed = random_ranges(rng, c);
      const auto q = cuda::DeviceBuffer::copy_of(typed.q), k = cuda::DeviceBuffer::copy_of(typed.k);
      const auto types = cuda::DeviceBuffer::copy_of(typed.types);
      Ranges ranges = ranges_of(typed);
      ranges.q_ranges = q.as<void>();
      ranges.k_ranges = k.as<void>();
      ranges.types = types.as<void>();
      images.expect_as_serial(ranges, ranges_of(typed), stream_);
      ASSERT_FALSE(HasFailure()) << "round " << round;
    }
  }
}

constexpr int64_t kRows = 4096;

test::RandomConfig config() {
  test::RandomConfig result;
  result.shape = test::shape_of(kRows, kRows, 8, 2, {128, 128});
  result.poison = false;
  return result;
}

// A graph holds the build and both passes: replays read what stands in device memory then. Forward bit for bit as with
// lists of the host; gradients, whose additions have no order here, as closely as two runs are.
TEST_F(Sm90BuildLists, ReplaysOfOneGraphBuildWhatStandsThereThen) {
  test::RandomAttention r = test::make_random(config(), {AttnSlice::causal({0, kRows}, {0, kRows})}, 1);
  test::OnDevice device(r);
  constexpr int64_t kDocuments = 64;
  const auto list = cuda::DeviceBuffer::zeros((kDocuments + 1) * sizeof(int32_t));
  const CuSeqlens documents{.q = list.as<void>(), .documents = kDocuments, .causal = true};
  const auto put = [&](const std::vector<int64_t>& ends) {
    std::vector<int32_t> padded(kDocuments + 1, static_cast<int32_t>(kRows));
    for (size_t i = 0; i < ends.size(); ++i) padded[i] = static_cast<int32_t>(ends[i]);
    cuda::upload(list.as<void>(), padded.data(), padded.size() * sizeof(int32_t));
  };
  MaskBuffer buffer(r.config.shape, {.max_documents = kDocuments}, backend_);
  put({0, kRows});
  const auto calls = [&] {
    buffer.forward(device.forward, stream_);
    buffer.backward(device.backward, stream_);
  };
  buffer.set_cu_seqlens(documents, stream_);
  calls();  // loads kernels
  test::wait_for_device();
  const cudaGraphExec_t executable = capture([&] {
    buffer.set_cu_seqlens(documents, stream_);
    calls();
  });
  const auto close = [](const HostTensor& one, const HostTensor& other) {
    return test::is_within(one, other, 2e-3);  // as in mask_buffer_test.cpp
  };
  std::mt19937 rng(9);
  for (int round = 0; round < test::num_rounds(40); ++round) {
    std::vector<int64_t> ends{0};
    const int64_t longest = std::uniform_int_distribution<int64_t>(200, kRows)(rng);
    while (ends.back() < kRows) {
      ends.push_back(std::min(kRows, ends.back() + std::uniform_int_distribution<int64_t>(70, longest)(rng)));
    }
    put(ends);
    test::wait_for_device();
    device.poison_outputs();
    cuda::check(cudaGraphLaunch(executable, stream_), "cudaGraphLaunch");
    test::wait_for_device();
    device.fetch();
    buffer.check_errors();
    const HostTensor out = r.out.clone(), dq = r.dq.clone(), dk = r.dk.clone(), dv = r.dv.clone();
    const std::vector<float> lse = r.lse;
    MaskBuffer of_host(r.config.shape, {.max_documents = kDocuments}, backend_);
    of_host.set(varlen_mask(ends, true), stream_);
    device.poison_outputs();
    of_host.forward(device.forward, stream_);
    of_host.backward(device.backward, stream_);
    test::wait_for_device();
    device.fetch();
    EXPECT_EQ(r.lse, lse);
    EXPECT_EQ(std::memcmp(r.out.view().data, out.view().data, static_cast<size_t>(out.bytes())), 0);
    EXPECT_TRUE(close(dq, r.dq) && close(dk, r.dk) && close(dv, r.dv));
    ASSERT_FALSE(HasFailure()) << "round " << round;
  }
  // A list that is none: zeros, and an error once.
  put({0, 3000, 2000, kRows});
  test::wait_for_device();
  device.poison_outputs();
  cuda::check(cudaGraphLaunch(executable, stream_), "cudaGraphLaunch");
  test::wait_for_device();
  device.fetch();
  EXPECT_EQ(r.out.at(5, 0, 0), 0);
  EXPECT_EQ(r.dk.at(kRows - 1, 1, 3), 0);
  const std::string text = support::message_of([&] { buffer.forward(device.forward, stream_); });
  EXPECT_NE(text.find("cu_seqlens_q must not decrease (got cu_seqlens_q[2]=2000 after 3000"), std::string::npos)
      << text;
  buffer.check_errors();
  cuda::check(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
}

TEST_F(Sm90BuildLists, BlocksAttendAsTheirMaskDoes) {
  test::RandomAttention r = test::make_random(config(), {AttnSlice::causal({0, kRows}, {0, kRows})}, 2);
  test::OnDevice device(r);
  std::mt19937 rng(10);
  for (const auto& [block, deterministic] : {std::pair{128, false}, {64, false}, {64, true}}) {
    const auto rows = static_cast<int32_t>(kRows / block);
    device.backward.options.deterministic = deterministic;
    MaskBuffer buffer(r.config.shape,
                      {.max_documents = 8, .max_slices = int64_t{rows} * (rows / 4), .deterministic = deterministic},
                      backend_);
    std::vector<int32_t> indices;
    std::vector<int32_t> all(static_cast<size_t>(rows));
    for (int32_t row = 0; row < rows; ++row) {
      for (int32_t i = 0; i < rows; ++i) all[static_cast<size_t>(i)] = i;
      std::shuffle(all.begin(), all.end(), rng);
      indices.insert(indices.end(), all.begin(), all.begin() + rows / 4);
    }
    const auto table = cuda::DeviceBuffer::copy_of(indices);
    buffer.set_blocks({.indices = table.as<void>(), .width = rows / 4, .block_size = block, .causal = true}, stream_);
    device.poison_outputs();
    buffer.forward(device.forward, stream_);
    buffer.backward(device.backward, stream_);
    test::wait_for_device();
    buffer.check_errors();
    device.fetch();
    const HostTensor dk = r.dk.clone();
    const std::vector<float> lse = r.lse;
    if (deterministic) {
      const HostTensor dq = r.dq.clone();
      device.poison_outputs();
      buffer.forward(device.forward, stream_);
      buffer.backward(device.backward, stream_);
      test::wait_for_device();
      device.fetch();
      EXPECT_EQ(support::relative_error(r.dq, dq), 0) << "again";
      EXPECT_EQ(support::relative_error(r.dk, dk), 0) << "again";
    }
    const Mask mask = mask_from_block_indices(
        {.seqlen_q = kRows, .seqlen_k = kRows, .block_q = block, .block_k = block, .indices = indices, .causal = true});
    MaskBuffer of_host(r.config.shape,
                       {.max_documents = 64, .max_slices = int64_t{rows} * rows, .deterministic = deterministic},
                       backend_);
    of_host.set(mask, stream_);
    device.poison_outputs();
    of_host.forward(device.forward, stream_);
    of_host.backward(device.backward, stream_);
    test::wait_for_device();
    device.fetch();
    double error = 0, norm = 0;
    for (int64_t row = 0; row < kRows; ++row) {
      for (int d = 0; d < 128; ++d) {
        const double x = dk.at(row, 0, d), y = r.dk.at(row, 0, d);
        error += (x - y) * (x - y), norm += y * y;
      }
    }
    EXPECT_LE(std::sqrt(error), 2e-3 * std::sqrt(norm));
    for (size_t i = 0; i < lse.size(); ++i) {
      const bool both_empty = lse[i] == r.lse[i];  // minus infinity
      ASSERT_LE(both_empty ? 0 : std::abs(lse[i] - r.lse[i]), 1e-4) << i << ": runs may be cut another way";
    }
  }
}

}  // namespace
}  // namespace tangram
