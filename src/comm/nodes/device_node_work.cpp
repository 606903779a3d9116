// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/nodes/device_node_work.hpp"

#include "comm/device/kernels.hpp"
#include "cuda/check.hpp"
#include "cuda/device_buffer.hpp"
#include "cuda/stream.hpp"

namespace tangram::comm {

namespace {

constexpr int kMoveBlocks = 64;  // bound by memory, and short beside what came over the network

class DeviceMoves final : public NodeWork::Moves {
 public:
  DeviceMoves(const std::vector<Chunk>& chunks, const std::vector<std::vector<char*>>& bases)
      : count_(static_cast<int>(chunks.size())), num_bases_(bases[0].size()) {
    std::vector<char*> flat;
    for (const std::vector<char*>& set : bases) flat.insert(flat.end(), set.begin(), set.end());
    chunks_ = cuda::DeviceBuffer::copy_of(chunks.data(), chunks.size() * sizeof(Chunk));
    bases_ = cuda::DeviceBuffer::copy_of(flat.data(), flat.size() * sizeof(char*));
  }
  void run(std::span<const ConstTensorView> sources, size_t set, void* stream) override {
    MoveParams params;
    params.chunks = chunks_.as<Chunk>();
    params.count = count_;
    for (size_t t = 0; t < sources.size(); ++t) params.sources[t] = sources[t].data;
    params.bases = bases_.as<char*>() + set * num_bases_;
    launch_move(params, kMoveBlocks, cuda::as_stream(stream));
  }

 private:
  cuda::DeviceBuffer chunks_, bases_;
  const int count_;
  const size_t num_bases_;
};

class DeviceMark final : public NodeWork::Mark {
 public:
  void set(void* stream) override {
    cuda::check(cudaEventRecord(event_.get(), cuda::as_stream(stream)), "cudaEventRecord");
  }
  void wait(void* stream) override {
    cuda::check(cudaStreamWaitEvent(cuda::as_stream(stream), event_.get(), 0), "cudaStreamWaitEvent");
  }

 private:
  OwnedEvent event_;
};

}  // namespace

std::shared_ptr<void> DeviceNodeWork::zeros(size_t num_bytes) {
  auto buffer = std::make_shared<cuda::DeviceBuffer>(cuda::DeviceBuffer::zeros(num_bytes));
  return {buffer, buffer->as<void>()};
}

std::unique_ptr<NodeWork::Moves> DeviceNodeWork::make_moves(const std::vector<Chunk>& chunks,
                                                            const std::vector<std::vector<char*>>& bases) {
  return std::make_unique<DeviceMoves>(chunks, bases);
}

std::unique_ptr<NodeWork::Mark> DeviceNodeWork::make_mark() { return std::make_unique<DeviceMark>(); }

}  // namespace tangram::comm
