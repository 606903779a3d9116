// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What several of the small kernels do in an epoch, and how they are launched.
#pragma once

#include "comm/device/kernels.hpp"
#include "cuda/check.hpp"
#include "cuda/ptx/warp.cuh"
#include "cuda/wait.cuh"

namespace tangram::comm {
namespace {

using cuda::WaitFailure;
using cuda::WaitKind;

constexpr int kMaxRanks = 64;

__device__ OpenedPass opened(const EpochParams& params, uint64_t epoch) {
  const uint32_t tag = params.tables_tag == nullptr ? params.tag : params.tag ^ *params.tables_tag;
  return {static_cast<uint32_t>(epoch), tag, params.pass};
}

/// Whether `peer` opened epoch `epoch` as this rank did, as far as it has opened it by now.
__device__ void check_order(const EpochParams& params, int peer, uint64_t epoch) {
  const uint64_t* ring = params.order.ranks[params.rank] + peer * kOrderLength;
  const OpenedPass seen = unpack_opened(ptx::load_acquire_system(ring + epoch % kOrderLength));
  const WaitFailure failure = disagreement(opened(params, epoch), seen, params.rank, peer);
  if (failure.kind != WaitKind::kNone) report_failure(*params.context, failure);
}

/// Which word of a peer says up to which epoch this rank has given it a slot back; null: no credit.
__device__ __forceinline__ uint64_t* released_at(const EpochParams& params, const CreditParams& credit, int peer) {
  if (credit.last_epoch == nullptr) return nullptr;
  return credit.released.ranks[peer] + credit.released.idx + params.rank;
}

/// Notifies the peers, by two threads a peer and one for `sent`. `wait`: for what comes before, once the tables have
/// been read.
template <class Wait>
__device__ __forceinline__ void release(const EpochParams& params, const SentWord& sent, const Wait& wait) {
  const int peer = static_cast<int>(threadIdx.x) % kMaxRanks, part = static_cast<int>(threadIdx.x) / kMaxRanks;
  const bool is_peer = peer < params.size && peer != params.rank;
  uint64_t *recv_buffers = nullptr, *returns = nullptr;
  if (is_peer && part == 0) {
    recv_buffers = released_at(params, params.recv_buffers, peer);
    returns = released_at(params, params.returns, peer);
  }
  wait();
  if (sent.word != nullptr && peer == params.rank && part == 0) {
    wait_for_flag(*params.context, sent.word, sent.value,
                  {WaitKind::kReadyFlag, params.rank, params.rank, 0, params.pass, 0});
  }
  if (!is_peer || part > 1) return;
  const uint64_t epoch = *params.recv_buffers.last_epoch;
  if (part == 1) {
    check_order(params, peer, epoch);
    return;
  }
  if (recv_buffers != nullptr) ptx::store_release_system(recv_buffers, epoch);
  if (returns != nullptr) ptx::store_release_system(returns, epoch);
}

__device__ __forceinline__ void send_signals(const WaitParams& params) {
  for (int i = static_cast<int>(threadIdx.x); i < params.num_signals; i += static_cast<int>(blockDim.x)) {
    const int stage = static_cast<int>(params.signal_list[i] >> 8),
              peer = static_cast<int>(params.signal_list[i] & 255);
    uint64_t* flags = params.signals.ranks[peer] + params.signals.idx;
    ptx::store_release_system(flags + stage * params.size + params.context->rank, *params.epoch);
  }
}

__device__ __forceinline__ void wait_for_list(const WaitParams& params) {
  const uint64_t epoch = *params.epoch;
  for (int i = static_cast<int>(threadIdx.x); i < params.count; i += static_cast<int>(blockDim.x)) {
    const int stage = static_cast<int>(params.list[i] >> 8), peer = static_cast<int>(params.list[i] & 255);
    const uint64_t* flag = params.flags + stage * params.size + peer;
    if (!wait_for_flag(*params.context, flag, epoch,
                       {params.kind, params.context->rank, peer, stage, params.pass, 0})) {
      return;
    }
  }
}

void check_launch(const char* what) { cuda::check(cudaGetLastError(), what); }

template <class... Params>
void launch(void (*kernel)(Params...), dim3 blocks, unsigned threads, bool dependent, cudaStream_t stream,
            const char* what, const Params&... params) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3(threads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = dependent ? 1 : 0;
  cuda::check(cudaLaunchKernelEx(&config, kernel, params...), what);
}

}  // namespace
}  // namespace tangram::comm
