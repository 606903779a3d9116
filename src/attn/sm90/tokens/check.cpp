// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/tokens/check.hpp"

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>

#include "attn/gpu/gpu_model.hpp"
#include "attn/sm90/tokens/launch.hpp"
#include "core/require.hpp"
#include "cuda/check.hpp"
#include "cuda/device_buffer.hpp"
#include "cuda/graph_lifetime.hpp"

namespace tangram::sm90::tokens {
namespace {

/// Where a device counts and tells what it refuses. Never ends: graphs hold it.
struct DeviceControlBlock {
  int32_t* num_refused = nullptr;  // in device memory
  ControlBlock* told = nullptr;    // in page-locked memory
  int32_t known = 0;
  std::mutex mutex;  // of known
};

DeviceControlBlock& control_block_of_current_device() {
  static std::mutex mutex;
  static auto& control_blocks = *new std::map<int, DeviceControlBlock>();
  int device = 0;
  cuda::check(cudaGetDevice(&device), "cudaGetDevice");
  const std::lock_guard lock(mutex);
  DeviceControlBlock& control_block = control_blocks[device];
  if (control_block.told == nullptr) {
    const cuda::AllowAllocationDuringCapture allow;
    if (control_block.num_refused == nullptr) {
      control_block.num_refused = (new cuda::DeviceBuffer(cuda::DeviceBuffer::zeros(sizeof(int32_t))))->as<int32_t>();
    }
    void* page = nullptr;
    cuda::check(cudaHostAlloc(&page, sizeof(ControlBlock), cudaHostAllocDefault), "cudaHostAlloc");
    control_block.told = new (page) ControlBlock();
  }
  return control_block;
}

}  // namespace

void enqueue_check(const AttnShape& shape, const TokenIndices& indices, int32_t* counts, cudaStream_t stream) {
  if (shape.seqlen_q == 0) return;
  const DeviceControlBlock& control_block = control_block_of_current_device();
  CheckParams params{};
  params.indices = indices.indices;
  params.counts = counts;
  params.num_refused = control_block.num_refused;
  params.control_block = control_block.told;
  params.topk = indices.topk;
  params.seqlen_k = shape.seqlen_k;
  params.seqlen_q = static_cast<int32_t>(shape.seqlen_q);
  params.num_heads_kv = shape.num_heads_kv;
  params.window = static_cast<int32_t>(std::clamp<int64_t>((shape.seqlen_k + 127) / 128 * 128, 128, kMostWindow));
  launch_check(params, gpu::gpu_of_current_device().multiprocessors, stream);
}

void throw_refused(const char* function) {
  DeviceControlBlock& control_block = control_block_of_current_device();
  const std::lock_guard lock(control_block.mutex);
  const int32_t count = std::atomic_ref(control_block.told->count).load(std::memory_order_acquire);
  if (count == control_block.known) return;
  const int32_t num_refused = count - control_block.known;
  control_block.known = count;
  const volatile ControlBlock::Refused& last = control_block.told->last;
  const bool repeated = last.is_repeated != 0;
  const int32_t row = last.row, head = last.kv_head, key = last.key;
  require(false,
          "{}: lists of an earlier call must name {} (got key {} {}for query {}, K/V head {}; {} lists were refused)",
          function, repeated ? "a key once" : "rows of k, or -1 for none", key, repeated ? "twice " : "", row, head,
          num_refused);
}

}  // namespace tangram::sm90::tokens
