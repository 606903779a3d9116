// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cuda/list_memory.hpp"

#include <algorithm>
#include <bit>
#include <map>
#include <utility>

#include "core/rounding.hpp"
#include "cuda/check.hpp"
#include "cuda/event.hpp"
#include "cuda/graph_lifetime.hpp"

namespace tangram::cuda {

namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kSmallestChunk = size_t{2} << 20, kLargestChunk = size_t{32} << 20;
constexpr size_t kSmallestCopy = size_t{512} << 10;

/// The default stream, which is always there and never captured.
bool is_permanent(cudaStream_t stream) { return stream == nullptr || stream == cudaStreamLegacy; }

/// Waits for all that was put on the device of `memory`. Does not throw: where it fails, so does what follows.
void wait_for_device_of(const void* memory) {
  const AllowAllocationDuringCapture allow;
  int current = 0;
  cudaPointerAttributes attributes{};
  static_cast<void>(cudaGetDevice(&current));
  static_cast<void>(cudaPointerGetAttributes(&attributes, memory));
  if (attributes.device != current) static_cast<void>(cudaSetDevice(attributes.device));
  static_cast<void>(cudaDeviceSynchronize());
  if (attributes.device != current) static_cast<void>(cudaSetDevice(current));
}

}  // namespace

struct ListBlock::State {
  ListMemory* memory = nullptr;
  ListMemory::Block block;
  std::vector<ListMemory::Reader> readers;  // the last one is at the end
  uint64_t copy = 0;                        // its number
  bool is_there = false;                    // for what comes next in stream order
  bool in_graph = false;                    // replays are on unknown streams
};

/// Recorded once.
struct ListMemory::Event {
  explicit Event(cudaStream_t stream) {
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    check(cudaEventRecord(event, stream), "cudaEventRecord");
  }
  ~Event() { static_cast<void>(cudaEventDestroy(event)); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  /// Asks CUDA at most once in a round, and never again once it has: many blocks share an event.
  bool has_happened(uint64_t round) {
    if (happened || asked == round) return happened;
    asked = round;
    return happened = cuda::has_happened(event);
  }

  cudaEvent_t event = nullptr;
  uint64_t asked = 0;
  bool happened = false;
};

ListBlock::ListBlock() = default;
ListBlock::ListBlock(std::unique_ptr<State> state) : state_(std::move(state)) {}
ListBlock::ListBlock(ListBlock&& other) noexcept = default;
ListBlock& ListBlock::operator=(ListBlock&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}
ListBlock::~ListBlock() {
  if (state_ != nullptr) state_->memory->release(*state_);
}

void* ListBlock::data() const { return state_ == nullptr ? nullptr : state_->block.data; }
size_t ListBlock::bytes() const { return state_ == nullptr ? 0 : state_->block.bytes; }

void ListBlock::before_call(cudaStream_t stream) const {
  if (state_ == nullptr) return;
  ListMemory& memory = *state_->memory;
  if (!is_permanent(stream) && is_captured(stream)) {
    state_->in_graph = true;
    const AllowAllocationDuringCapture allow;
    const std::lock_guard lock(memory.mutex_);
    if (!std::exchange(state_->is_there, true) && memory.ring_ != nullptr) memory.ring_->wait();
    return;
  }
  ListMemory::Reader reader{is_permanent(stream) ? nullptr : stream, 0};
  if (reader.stream != nullptr) check(cudaStreamGetId(stream, &reader.id), "cudaStreamGetId");
  if (!state_->is_there) {
    const AllowAllocationDuringCapture allow;
    const std::lock_guard lock(memory.mutex_);
    memory.wait_for_copy(state_->copy, reader);
    state_->is_there = true;
  }
  if (state_->readers.empty() || state_->readers.back() != reader) {
    std::erase(state_->readers, reader);
    state_->readers.push_back(reader);
  }
  if (memory.any_readers_) memory.pass_by(reader);
}

ListMemory& ListMemory::of_current_device() {
  static std::mutex mutex;
  static auto* const memories = new std::map<int, ListMemory>;  // CUDA may be gone before static objects
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  const std::lock_guard lock(mutex);
  return (*memories)[device];
}

size_t ListMemory::block_bytes(size_t bytes) {
  const size_t eighth = std::max(std::bit_floor(std::max(bytes, size_t{1})) / 8, kAlignment);
  return round_up(std::max(bytes, size_t{1}), eighth);
}

ListBlock ListMemory::fill(size_t bytes, const std::function<void(std::byte*)>& write) {
  if (bytes == 0) return {};
  const AllowAllocationDuringCapture allow;  // the first call of a mask may be a captured one
  auto state = std::make_unique<ListBlock::State>();
  state->readers.reserve(2);
  const std::lock_guard lock(mutex_);
  state->memory = this;
  state->block = take(block_bytes(bytes));
  if (bytes <= kMostBytes) most_kept_bytes_ = std::max(most_kept_bytes_, 8 * state->block.bytes);
  try {
    copy(*state, bytes, write);
  } catch (...) {
    make_free(state->block);
    throw;
  }
  used_bytes_ += state->block.bytes;
  return ListBlock(std::move(state));
}

void ListMemory::copy(ListBlock::State& state, size_t bytes, const std::function<void(std::byte*)>& write) {
  if (bytes > kMostBytes) {
    std::vector<std::byte> host(bytes);
    write(host.data());
    upload(state.block.data, host.data(), bytes);
    state.is_there = true;
    return;
  }
  if (bytes > ring_bytes_) {
    ring_.reset();  // waits for its copies
    ring_bytes_ = 0;
    const size_t wanted = std::max(std::bit_ceil(bytes), kSmallestCopy);
    ring_ = std::make_unique<UploadRing>(wanted, upload_stream());
    ring_bytes_ = wanted;
  }
  write(ring_->next(bytes));
  ring_->copy_to(state.block.data, bytes);
  state.copy = ++num_copies_;
}

void ListMemory::wait_for_copy(uint64_t copy, const Reader& reader) {
  const auto known = std::find_if(have_waited_.begin(), have_waited_.end(),
                                  [&](const auto& waited) { return waited.first == reader; });
  if (known != have_waited_.end() && known->second >= copy) return;
  if (ring_ != nullptr) ring_->make_wait(reader.stream);
  if (known != have_waited_.end()) {
    known->second = num_copies_;
    return;
  }
  constexpr size_t kMostReaders = 8;
  if (have_waited_.size() == kMostReaders) have_waited_.erase(have_waited_.begin());
  have_waited_.push_back({reader, num_copies_});
}

ListMemory::Block ListMemory::take(size_t bytes) {
  find_free();
  // The smallest one that is large enough, but not too large: those of unlike masks serve each other.
  auto best = free_.end();
  for (auto one = free_.begin(); one != free_.end(); ++one) {
    if (one->bytes < bytes || one->bytes > bytes + bytes / 2) continue;
    if (best == free_.end() || one->bytes < best->bytes) best = one;
  }
  if (best == free_.end()) return cut(bytes);
  const Block block = *best;
  free_.erase(best);
  ++block.chunk->num_in_use;
  return block;
}

ListMemory::Block ListMemory::cut(size_t bytes) {
  auto chunk = std::find_if(chunks_.rbegin(), chunks_.rend(),
                            [&](const auto& c) { return c->memory.bytes() - c->cut >= bytes; });
  if (chunk == chunks_.rend()) {
    const size_t wanted = std::clamp(allocated_bytes_, kSmallestChunk, kLargestChunk);
    auto more = std::make_unique<Chunk>();
    more->memory = DeviceBuffer(bytes > kMostBytes ? bytes : std::max(wanted, bytes));
    allocated_bytes_ += more->memory.bytes();
    chunks_.push_back(std::move(more));
    chunk = chunks_.rbegin();
  }
  const Block block{(*chunk)->memory.as<char>() + (*chunk)->cut, bytes, chunk->get()};
  (*chunk)->cut += bytes;
  ++(*chunk)->num_in_use;
  return block;
}

void ListMemory::release(ListBlock::State& state) noexcept {
  if (state.in_graph) wait_for_device_of(state.block.data);
  const std::lock_guard lock(mutex_);
  used_bytes_ -= state.block.bytes;
  if (state.in_graph || state.readers.empty()) {  // who writes next comes behind the copy
    make_free(state.block);
  } else {
    waiting_bytes_ += state.block.bytes;
    waiting_.push_back({state.block, std::move(state.readers), {}});
    any_readers_ = true;
    if (waiting_bytes_ > most_kept_bytes_) free_waiting();
  }
  if (allocated_bytes_ - used_bytes_ - waiting_bytes_ > most_kept_bytes_) free_chunks();
}

void ListMemory::pass_by(const Reader& reader) {
  const AllowAllocationDuringCapture allow;
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Event> event;
  bool any_left = false;
  for (Waiting& waiting : waiting_) {
    if (std::erase(waiting.readers, reader) > 0) {
      if (event == nullptr) event = std::make_shared<Event>(reader.stream);
      waiting.events.push_back(event);
    }
    any_left = any_left || !waiting.readers.empty();
  }
  any_readers_ = any_left;
}

void ListMemory::make_free(const Block& block) {
  if (--block.chunk->num_in_use > 0) {
    free_.push_back(block);
    return;
  }
  block.chunk->cut = 0;  // to be cut anew, in other sizes
  std::erase_if(free_, [&](const Block& other) { return other.chunk == block.chunk; });
}

void ListMemory::find_free() {
  static std::atomic<uint64_t> rounds = 0;
  const uint64_t round = ++rounds;
  std::erase_if(waiting_, [&](Waiting& waiting) {
    std::erase_if(waiting.events, [&](const auto& event) { return event->has_happened(round); });
    if (!waiting.readers.empty() || !waiting.events.empty()) return false;
    waiting_bytes_ -= waiting.block.bytes;
    make_free(waiting.block);
    return true;
  });
}

/// Streams that read may never be used again.
void ListMemory::free_waiting() {
  wait_for_device_of(waiting_.front().block.data);
  for (const Waiting& waiting : waiting_) make_free(waiting.block);
  waiting_.clear();
  waiting_bytes_ = 0;
  any_readers_ = false;
}

void ListMemory::free_chunks() {
  std::erase_if(chunks_, [&](const auto& chunk) {
    if (chunk->num_in_use > 0) return false;
    allocated_bytes_ -= chunk->memory.bytes();
    return true;
  });
}

size_t ListMemory::used_bytes() const {
  const std::lock_guard lock(mutex_);
  return used_bytes_;
}

size_t ListMemory::kept_bytes() const {
  const std::lock_guard lock(mutex_);
  return allocated_bytes_ - used_bytes_;
}

}  // namespace tangram::cuda
