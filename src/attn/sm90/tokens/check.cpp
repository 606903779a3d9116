// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/tokens/check.hpp"

#include <algorithm>
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
struct Board {
  int32_t* num_refused = nullptr;  // in device memory
  Refused* refused = nullptr;      // in page-locked memory
  int32_t known = 0;
  std::mutex mutex;  // of known
};

Board& board_of_current_device() {
  static std::mutex mutex;
  static auto& boards = *new std::map<int, Board>();
  int device = 0;
  cuda::check(cudaGetDevice(&device), "cudaGetDevice");
  const std::lock_guard lock(mutex);
  Board& board = boards[device];
  if (board.refused == nullptr) {
    const cuda::AllowAllocationDuringCapture allow;
    if (board.num_refused == nullptr) {
      board.num_refused = (new cuda::DeviceBuffer(cuda::DeviceBuffer::zeros(sizeof(int32_t))))->as<int32_t>();
    }
    void* page = nullptr;
    cuda::check(cudaHostAlloc(&page, sizeof(Refused), cudaHostAllocDefault), "cudaHostAlloc");
    board.refused = new (page) Refused();
  }
  return board;
}

}  // namespace

void enqueue_check(const AttnShape& shape, const TokenIndices& indices, int32_t* counts, cudaStream_t stream) {
  if (shape.seqlen_q == 0) return;
  const Board& board = board_of_current_device();
  CheckParams params{};
  params.indices = indices.indices;
  params.counts = counts;
  params.num_refused = board.num_refused;
  params.board = board.refused;
  params.topk = indices.topk;
  params.seqlen_k = shape.seqlen_k;
  params.seqlen_q = static_cast<int32_t>(shape.seqlen_q);
  params.num_heads_kv = shape.num_heads_kv;
  params.window = static_cast<int32_t>(std::clamp<int64_t>((shape.seqlen_k + 127) / 128 * 128, 128, kMostWindow));
  launch_check(params, gpu_of_current_device().multiprocessors, stream);
}

void throw_refused(const char* function) {
  Board& board = board_of_current_device();
  const std::lock_guard lock(board.mutex);
  const volatile Refused& now = *board.refused;
  const int32_t count = now.count, row = now.row, head = now.kv_head, key = now.key;
  if (count == board.known) return;
  const int32_t refused = count - board.known;
  board.known = count;
  const bool repeats = head < 0;
  throw_invalid_argument(
      "{}: lists of an earlier call must name {} (got key {} {}for query {}, K/V head {}; {} lists were refused)",
      fmt::make_format_args(function, repeats ? "a key once" : "rows of k, or -1 for none", key,
                            repeats ? "twice " : "", row, repeats ? -1 - head : head, refused));
}

}  // namespace tangram::sm90::tokens
