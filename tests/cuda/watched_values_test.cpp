// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Comparisons on a GPU that poison results: whole, parts of words, many blocks, under a graph. Needs a GPU.
#include "cuda/watched_values.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "cuda/check.hpp"
#include "cuda/device_buffer.hpp"

namespace tangram::cuda {
namespace {

constexpr int64_t kResultBytes = 1003;

std::vector<uint8_t> bytes_of(const DeviceBuffer& buffer, size_t count) {
  std::vector<uint8_t> bytes(count);
  check(cudaMemcpy(bytes.data(), buffer.as<void>(), count, cudaMemcpyDeviceToHost), "cudaMemcpy");
  return bytes;
}

void set_byte(const DeviceBuffer& buffer, int64_t at, uint8_t value) {
  check(cudaMemset(buffer.as<uint8_t>() + at, value, 1), "cudaMemset");
}

TEST(WatchedValues, ResultsBecomeNanOnceAnyByteDiffers) {
  // One word; bytes that are no words; a byte more than blocks at their fewest and at their most take.
  for (const int64_t count : {int64_t{4}, int64_t{7}, int64_t{(16 << 10) + 4}, int64_t{(4 << 20) + 1}}) {
    const DeviceBuffer now = DeviceBuffer::zeros(static_cast<size_t>(count));
    const DeviceBuffer known = DeviceBuffer::zeros(static_cast<size_t>(count));
    const WatchedValues values[] = {{now.as<void>(), known.as<void>(), count}};
    for (const int64_t at : {int64_t{0}, count / 2, count - 1}) {
      for (const int offset : {0, 1}) {  // of the result: whole vectors, and none
        const DeviceBuffer result = DeviceBuffer::zeros(kResultBytes + 1);
        const WatchedResult results[] = {{result.as<uint8_t>() + offset, kResultBytes}};
        poison_if_changed(values, results, nullptr);
        EXPECT_EQ(bytes_of(result, kResultBytes + 1), std::vector<uint8_t>(kResultBytes + 1, 0));
        EXPECT_FALSE(take_changed());
        set_byte(now, at, 1);
        poison_if_changed(values, results, nullptr);
        std::vector<uint8_t> expected(kResultBytes + 1, 0xff);
        expected[offset == 0 ? kResultBytes : 0] = 0;
        EXPECT_EQ(bytes_of(result, kResultBytes + 1), expected) << count << " bytes, " << at;
        EXPECT_TRUE(take_changed());
        EXPECT_FALSE(take_changed());
        set_byte(now, at, 0);
      }
    }
  }
}

TEST(WatchedValues, ReplaysOfAGraphCompareAnew) {
  const DeviceBuffer now = DeviceBuffer::zeros(64), known = DeviceBuffer::zeros(64), result = DeviceBuffer::zeros(64);
  const WatchedValues values[] = {{now.as<void>(), known.as<void>(), 64}};
  const WatchedResult results[] = {{result.as<void>(), 64}};
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  poison_if_changed(values, results, stream);
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  cudaGraphExec_t replayed = nullptr;
  check(cudaGraphInstantiate(&replayed, graph, 0), "cudaGraphInstantiate");
  for (const uint8_t value : {0, 5}) {
    set_byte(now, 9, value);
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    check(cudaGraphLaunch(replayed, stream), "cudaGraphLaunch");
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    EXPECT_EQ(bytes_of(result, 64), std::vector<uint8_t>(64, value == 0 ? 0 : 0xff));
    EXPECT_EQ(take_changed(), value != 0);
  }
  check(cudaGraphExecDestroy(replayed), "cudaGraphExecDestroy");
  check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  check(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

}  // namespace
}  // namespace tangram::cuda
