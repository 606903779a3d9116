// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/tokens/check.hpp"

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>

#include "attn/sm90/gpu_model.hpp"
#include "attn/sm90/tokens/launch.hpp"
#include "core/require.hpp"
#include "cuda/check.hpp"
#include "cuda/device_buffer.hpp"
#include "cuda/graph_lifetime.hpp"

namespace tangram::sm90::tokens {
namespace {

/// Where a device counts and tells what it refuses. Never ends: graphs hold it.
struct DeviceBoard {
  int32_t* num_refused = nullptr;  // in device memory
  Board* told = nullptr;           // in page-locked memory
  int32_t known = 0;
  std::mutex mutex;  // of known
};

DeviceBoard& board_of_current_device() {
  static std::mutex mutex;
  static auto& boards = *new std::map<int, DeviceBoard>();
  int device = 0;
  cuda::check(cudaGetDevice(&device), "cudaGetDevice");
  const std::lock_guard lock(mutex);
  DeviceBoard& board = boards[device];
  if (board.told == nullptr) {
    const cuda::AllowAllocationDuringCapture allow;
    if (board.num_refused == nullptr) {
      board.num_refused = (new cuda::DeviceBuffer(cuda::DeviceBuffer::zeros(sizeof(int32_t))))->as<int32_t>();
    }
    void* page = nullptr;
    cuda::check(cudaHostAlloc(&page, sizeof(Board), cudaHostAllocDefault), "cudaHostAlloc");
    board.told = new (page) Board();
  }
  return board;
}

}  // namespace

void enqueue_check(const AttnShape& shape, const TokenIndices& indices, int32_t* counts, cudaStream_t stream) {
  if (shape.seqlen_q == 0) return;
  const DeviceBoard& board = board_of_current_device();
  CheckParams params{};
  params.indices = indices.indices;
  params.counts = counts;
  params.num_refused = board.num_refused;
  params.board = board.told;
  params.topk = indices.topk;
  params.seqlen_k = shape.seqlen_k;
  params.seqlen_q = static_cast<int32_t>(shape.seqlen_q);
  params.num_heads_kv = shape.num_heads_kv;
  params.window = static_cast<int32_t>(std::clamp<int64_t>((shape.seqlen_k + 127) / 128 * 128, 128, kMostWindow));
  launch_check(params, gpu_of_current_device().multiprocessors, stream);
}

void throw_refused(const char* function) {
  DeviceBoard& board = board_of_current_device();
  const std::lock_guard lock(board.mutex);
  const int32_t count = std::atomic_ref(board.told->count).load(std::memory_order_acquire);
  if (count == board.known) return;
  const int32_t num_refused = count - board.known;
  board.known = count;
  const volatile Board::Refused& last = board.told->last;
  const bool repeated = last.is_repeated != 0;
  const int32_t row = last.row, head = last.kv_head, key = last.key;
  require(false,
          "{}: lists of an earlier call must name {} (got key {} {}for query {}, K/V head {}; {} lists were refused)",
          function, repeated ? "a key once" : "rows of k, or -1 for none", key, repeated ? "twice " : "", row, head,
          num_refused);
}

}  // namespace tangram::sm90::tokens
