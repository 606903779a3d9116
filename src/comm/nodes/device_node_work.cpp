// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/nodes/device_node_work.hpp"

#include "comm/device/kernels.hpp"
#include "cuda/check.hpp"
#include "cuda/device_buffer.hpp"
#include "cuda/graph_lifetime.hpp"
#include "cuda/packed_arrays.hpp"
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
    chunks_ = tables_.add(chunks);
    bases_ = tables_.add(flat);
    tables_.upload();
  }
  void run(std::span<const ConstTensorView> sources, size_t set, void* stream) override {
    tables_.before_call(cuda::as_stream(stream));
    MoveParams params;
    params.chunks = tables_.at<Chunk>(chunks_);
    params.count = count_;
    for (size_t t = 0; t < sources.size(); ++t) params.sources[t] = sources[t].data;
    params.bases = tables_.at<char*>(bases_) + set * num_bases_;
    launch_move(params, kMoveBlocks, cuda::as_stream(stream));
  }

 private:
  cuda::PackedArrays tables_;
  cuda::PackedArray chunks_, bases_;
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

std::shared_ptr<void> DeviceNodeWork::shared(size_t which, size_t num_bytes) {
  std::optional<SharedBuffer>& of = shared_.at(which);
  if (!of) of.emplace(is_exact_);
  const std::shared_ptr<cuda::DeviceBuffer> buffer = of->get(num_bytes);
  return {buffer, buffer->as<void>()};
}

int64_t DeviceNodeWork::shared_bytes() const {
  int64_t bytes = 0;
  for (const std::optional<SharedBuffer>& of : shared_) bytes += of ? of->bytes() : 0;
  return bytes;
}

int64_t DeviceNodeWork::free_bytes() const {
  size_t free = 0, total = 0;
  cuda::check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<int64_t>(free);
}

bool DeviceNodeWork::is_captured(void* stream) { return cuda::is_captured(cuda::as_stream(stream)); }

std::unique_ptr<NodeWork::Moves> DeviceNodeWork::make_moves(const std::vector<Chunk>& chunks,
                                                            const std::vector<std::vector<char*>>& bases) {
  return std::make_unique<DeviceMoves>(chunks, bases);
}

std::unique_ptr<NodeWork::Mark> DeviceNodeWork::make_mark() { return std::make_unique<DeviceMark>(); }

}  // namespace tangram::comm
