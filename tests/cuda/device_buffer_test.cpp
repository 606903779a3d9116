// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// DeviceBuffer: what uploads and fills promise to streams that do not wait for the default one. Needs a GPU.

#include "cuda/device_buffer.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "cuda/check.hpp"

namespace tangram::cuda {
namespace {

constexpr size_t kBytes = 4096;

class Stream {
 public:
  explicit Stream(unsigned flags) { check(cudaStreamCreateWithFlags(&stream_, flags), "cudaStreamCreateWithFlags"); }
  ~Stream() { static_cast<void>(cudaStreamDestroy(stream_)); }
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

void sleep_100ms(void*) { std::this_thread::sleep_for(std::chrono::milliseconds(100)); }

/// Reads on a stream that does not wait for the default one. All that may wait for the device is done by the
/// constructor.
class Reader {
 public:
  Reader() : stream_(cudaStreamNonBlocking) {
    check(cudaMallocHost(&pinned_, kBytes), "cudaMallocHost");
    static_cast<void>(read(DeviceBuffer::zeros(kBytes).as<void>()));
  }
  ~Reader() { static_cast<void>(cudaFreeHost(pinned_)); }
  std::vector<unsigned char> read(const void* device) const {
    check(cudaMemcpyAsync(pinned_, device, kBytes, cudaMemcpyDeviceToHost, stream_), "cudaMemcpyAsync");
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    const auto* bytes = static_cast<unsigned char*>(pinned_);
    return {bytes, bytes + kBytes};
  }

 private:
  Stream stream_;
  void* pinned_ = nullptr;
};

class DeviceBuffers : public ::testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "needs a GPU";
  }
};

/// Copies to the device that keep its copy engine busy for a while.
class Traffic {
 public:
  Traffic() : stream_(cudaStreamNonBlocking), device_(kTrafficBytes) {
    check(cudaMallocHost(&pinned_, kTrafficBytes), "cudaMallocHost");
  }
  ~Traffic() {
    static_cast<void>(cudaStreamSynchronize(stream_));
    static_cast<void>(cudaFreeHost(pinned_));
  }
  void enqueue(int copies) const {
    for (int i = 0; i < copies; ++i) {
      check(cudaMemcpyAsync(device_.as<void>(), pinned_, kTrafficBytes, cudaMemcpyHostToDevice, stream_),
            "cudaMemcpyAsync");
    }
  }
  void synchronize() const { check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  static constexpr size_t kTrafficBytes = size_t{64} << 20;
  Stream stream_;
  DeviceBuffer device_;
  void* pinned_ = nullptr;
};

TEST_F(DeviceBuffers, UploadsAreThereForStreamsThatDoNotWaitForTheDefaultOne) {
  const Reader reader;
  const Traffic traffic;
  for (const size_t bytes : {kBytes, size_t{1} << 15, size_t{1} << 18, size_t{1} << 22}) {
    const DeviceBuffer buffer = DeviceBuffer::zeros(bytes);
    for (int value = 1; value <= 20; ++value) {
      const std::vector<unsigned char> host(bytes, static_cast<unsigned char>(value));
      traffic.enqueue(4);
      upload(buffer.as<void>(), host.data(), bytes);
      EXPECT_EQ(reader.read(buffer.as<char>() + bytes - kBytes),
                std::vector<unsigned char>(host.end() - kBytes, host.end()))
          << bytes << " bytes, value " << value;
      traffic.synchronize();
    }
  }
}

TEST_F(DeviceBuffers, FillsWaitForNoOtherStream) {
  const Reader reader;
  const Stream busy(cudaStreamNonBlocking);
  // Ranks that share a GPU: one allocates while the kernels of another wait for it.
  check(cudaLaunchHostFunc(busy, sleep_100ms, nullptr), "cudaLaunchHostFunc");
  const DeviceBuffer buffer = DeviceBuffer::zeros(kBytes);
  EXPECT_EQ(cudaStreamQuery(busy), cudaErrorNotReady);
  EXPECT_EQ(reader.read(buffer.as<void>()), std::vector<unsigned char>(kBytes, 0));
  check(cudaStreamSynchronize(busy), "cudaStreamSynchronize");
}

}  // namespace
}  // namespace tangram::cuda
