// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Device memory for lists that live as long as a mask, handed from one mask to the next.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cuda/device_buffer.hpp"
#include "cuda/upload_ring.hpp"

namespace tangram::cuda {

class ListMemory;

/// A block of device memory that was written once, by a copy that the host does not wait for. Used by one call at a
/// time, in stream order.
class ListBlock {
 public:
  ListBlock();
  ListBlock(ListBlock&& other) noexcept;
  ListBlock& operator=(ListBlock&& other) noexcept;
  ~ListBlock();

  /// Must precede each call on `stream` that reads the block. Makes the first one wait for the copy, on the device,
  /// unless it is captured. Throws CudaError.
  void before_call(cudaStream_t stream) const;

  void* data() const;
  size_t bytes() const;  ///< of the block, some more than were asked for

 private:
  friend class ListMemory;
  struct State;
  explicit ListBlock(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// NOTE [list memory] For a new mask, cudaMalloc, a copy from pageable memory and the wait for it are most of the
/// host's cost of a GPU. cudaFree waits for the device. So blocks are cut from a few allocations, filled from
/// page-locked memory on their own stream, and reused when no call reads them any more. Readers are known by stream.
/// The first call on that stream after the release of a block records an event there, and when this has happened the
/// block is free. (The releasing caller may not record it: the stream may no longer exist.) Calls whose blocks stay pay
/// nothing for it. A stream that waits for a copy waits for all copies before it, too. So the first block of a mask
/// that a call reads waits for the others. Blocks that are not known to be free, such as those of captured calls, are
/// reused after a wait for the device, as with cudaFree.
///
/// One for each device, thread-safe.
class ListMemory {
 public:
  /// Larger lists, of more than two million rows, are allocated by themselves, and copied by a call that waits.
  static constexpr size_t kMostBytes = size_t{32} << 20;
  /// Bytes of released blocks that may wait for their readers (or eight of the largest block), and as many again that
  /// may be free.
  static constexpr size_t kMostKeptBytes = size_t{64} << 20;

  /// List memory of the current device. Throws CudaError.
  static ListMemory& of_current_device();

  ListMemory() = default;
  ListMemory(const ListMemory&) = delete;
  ListMemory& operator=(const ListMemory&) = delete;

  /// A block of `bytes` or more, aligned to 256; `write` fills host memory of so many bytes that is copied there.
  /// Throws CudaError.
  ListBlock fill(size_t bytes, const std::function<void(std::byte*)>& write);

  /// Device memory in use, and that waits for masks.
  size_t used_bytes() const;
  size_t kept_bytes() const;

  /// Bytes of the block that serves a request: few different sizes.
  static size_t block_bytes(size_t bytes);

 private:
  friend class ListBlock;
  struct Chunk {
    DeviceBuffer memory;
    size_t cut = 0;      // bytes that blocks were cut from
    int num_in_use = 0;  // blocks that a mask has, or that may be read
  };
  struct Block {
    void* data = nullptr;
    size_t bytes = 0;
    Chunk* chunk = nullptr;
  };
  /// A stream that cannot be taken for a later one with the same handle.
  struct Reader {
    cudaStream_t stream = nullptr;
    unsigned long long id = 0;
    friend bool operator==(const Reader&, const Reader&) = default;
  };
  struct Event;
  /// A block that was given back and may still be read.
  struct Waiting {
    Block block;
    std::vector<Reader> readers;  // on whose streams no event was recorded yet
    std::vector<std::shared_ptr<Event>> events;
  };

  void release(ListBlock::State& state) noexcept;
  /// Before a call on the stream: the events that blocks wait for.
  void pass_by(const Reader& reader);

  // With the mutex held.
  Block take(size_t bytes);
  Block cut(size_t bytes);
  void make_free(const Block& block);
  void find_free();
  void free_waiting();
  void free_chunks();
  void copy(ListBlock::State& state, size_t bytes, const std::function<void(std::byte*)>& write);
  void wait_for_copy(uint64_t copy, const Reader& reader);

  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Chunk>> chunks_;
  std::vector<Block> free_;
  std::vector<Waiting> waiting_;
  std::atomic<bool> any_readers_ = false;  // of blocks that wait
  std::unique_ptr<UploadRing> ring_;
  size_t ring_bytes_ = 0;                                 // of the largest copy out of it
  uint64_t num_copies_ = 0;                               // out of all rings
  std::vector<std::pair<Reader, uint64_t>> have_waited_;  // latest readers, for so many copies
  size_t most_kept_bytes_ = kMostKeptBytes;
  size_t allocated_bytes_ = 0;
  size_t used_bytes_ = 0;
  size_t waiting_bytes_ = 0;
};

}  // namespace tangram::cuda
