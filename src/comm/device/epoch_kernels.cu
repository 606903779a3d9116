// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>

#include "comm/device/epoch.cuh"
#include "cuda/load_kernel.hpp"
#include "cuda/ptx/memory.cuh"

namespace tangram::comm {

namespace {

constexpr int kMostCopying = 264;    // thread blocks beside the one that opens an epoch
constexpr int kMostExchanging = 64;  // the same where they wait for it, and so keep multiprocessors from others

__device__ bool has_peer(uint64_t peers, int peer) { return (peers >> peer & 1) != 0; }

__device__ void wait_credit(const EpochParams& params, const CreditParams& credit, int peer, uint64_t epoch) {
  if (!has_peer(credit.peers, peer)) return;
  const uint64_t* released = credit.released.ranks[params.rank] + credit.released.idx + peer;
  wait_for_flag(*params.context, released, epoch, {WaitKind::kCredit, params.rank, peer, 0, params.pass, 0});
}

/// Chunks `first`, `first + step`, ... by a thread block of 256.
__device__ __forceinline__ void move(const MoveParams& params, int first, int step) {
  const int begin = params.range == nullptr ? 0 : params.range[0];
  const int end = params.range == nullptr ? params.count : params.range[1];
  for (int i = begin + first; i < end; i += step) {
    const Chunk chunk = params.chunks[i];
    const auto* from =
        reinterpret_cast<const uint4*>(static_cast<const char*>(params.sources[chunk.tensor]) + chunk.from);
    auto* to = reinterpret_cast<uint4*>(params.bases[chunk.peer] + chunk.to);
    const int count = chunk.num_bytes / 16;
    constexpr int kAhead = 4;
    for (int j = static_cast<int>(threadIdx.x); j < count; j += kAhead * 256) {
      uint4 values[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        if (j + k * 256 < count) values[k] = from[j + k * 256];
      }
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        if (j + k * 256 < count) to[j + k * 256] = values[k];
      }
    }
  }
}

/// NOTE [small kernels get ready]: kernels that open and close epochs are launched as programmatic dependents. Code
/// that reads tables, counts and waits for credits runs while the kernel before ends. Before grid_dependency_wait()
/// they must not touch what that kernel uses: operands, received rows, the slots' cells. The counter is theirs alone,
/// and the last kernel that counted has ended. A kernel that closes an epoch lets others be launched only after its own
/// grid_dependency_wait().

/// Opens an epoch, by a whole thread block of 256; the first thread has written the epoch when it returns.
__device__ __forceinline__ void open_epoch(const EpochParams& params) {
  __shared__ uint64_t epoch, recv_buffer_epoch, return_epoch;
  if (threadIdx.x == 0) {
    epoch = ++*params.counter;
    recv_buffer_epoch = *params.recv_buffers.last_epoch;
    return_epoch = params.returns.last_epoch != nullptr ? *params.returns.last_epoch : 0;
  }
  __syncthreads();
  // Three threads for each peer, since what one of them reads after the other takes a microsecond each.
  const int peer = static_cast<int>(threadIdx.x) % kMaxRanks, part = static_cast<int>(threadIdx.x) / kMaxRanks;
  if (peer < params.size && peer != params.rank) {
    if (part == 0) {
      uint64_t* ring = params.order.ranks[peer] + params.rank * kOrderLength;
      ptx::store_release_system(ring + epoch % kOrderLength, pack(opened(params, epoch)));
      // Each side writes, then reads: with a full fence between them at least one sees the other.
      __threadfence_system();
      check_order(params, peer, epoch);
    } else if (part == 1) {
      wait_credit(params, params.recv_buffers, peer, recv_buffer_epoch);
    } else if (part == 2) {
      wait_credit(params, params.returns, peer, return_epoch);
    }
  }
  __syncthreads();
  ptx::grid_dependency_wait();
  if (threadIdx.x == 0) {
    *params.recv_buffers.last_epoch = epoch;
    if (params.returns.last_epoch != nullptr) *params.returns.last_epoch = epoch;
  }
}

__global__ void __launch_bounds__(256) begin_epoch(EpochParams params, const __grid_constant__ MoveParams own) {
  if (blockIdx.x > 0) {
    ptx::grid_dependency_wait();
    move(own, static_cast<int>(blockIdx.x) - 1, static_cast<int>(gridDim.x) - 1);
    return;
  }
  open_epoch(params);
}

/// NOTE [one exchange] The first block opens the epoch and lets the others send once all credits are there. The block
/// that ends last notifies the peers and waits for their rows. Blocks that wait for the first one are no more than fit
/// beside it.
__global__ void __launch_bounds__(256) exchange_rows(const __grid_constant__ ExchangeParams params) {
  int32_t *const may_send = params.state, *const num_ended = params.state + 1;
  if (blockIdx.x == 0) {
    open_epoch(params.epoch);
    if (threadIdx.x == 0) ptx::store_release(may_send, 1);
  } else {
    const int first = static_cast<int>(blockIdx.x) - 1, step = static_cast<int>(gridDim.x) - 1;
    move(params.own, first, step);
    if (params.sent.range[0] + first < params.sent.range[1]) {
      if (threadIdx.x == 0) {
        while (ptx::load_acquire(may_send) == 0) __nanosleep(100);
      }
      __syncthreads();
      move(params.sent, first, step);
    }
  }
  __shared__ bool is_last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence_system();  // of the block's rows: the last block's signals come behind those of all
    is_last = atomicAdd(num_ended, 1) == static_cast<int>(gridDim.x) - 1;
    __threadfence_system();
  }
  __syncthreads();
  if (!is_last) return;
  if (threadIdx.x == 0) *may_send = *num_ended = 0;
  send_signals(params.wait);
  wait_for_list(params.wait);
}

__global__ void end_epoch(EpochParams params, SentWord sent) {
  release(params, sent, [] {
    ptx::grid_dependency_wait();
    ptx::grid_dependency_launch();
  });
}

__global__ void wait_flags(WaitParams params) {
  send_signals(params);
  wait_for_list(params);
}

__global__ void signal_flags(FlagTable flags, const uint64_t* epoch, uint64_t peers, int rank) {
  const int peer = static_cast<int>(threadIdx.x);
  if (has_peer(peers, peer)) ptx::store_release_system(flags.ranks[peer] + flags.idx + rank, *epoch);
}

__global__ void __launch_bounds__(256) move_chunks(const __grid_constant__ MoveParams params) {
  move(params, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
}

}  // namespace

void launch_begin(const EpochParams& params, const MoveParams& own, bool dependent, cudaStream_t stream) {
  launch(begin_epoch, dim3(static_cast<unsigned>(1 + std::min(own.count, kMostCopying))), 256, dependent, stream,
         "begin_epoch", params, own);
}

void launch_exchange(const ExchangeParams& params, cudaStream_t stream) {
  const int most = std::max(params.own.count, params.sent.count);
  launch(exchange_rows, dim3(static_cast<unsigned>(1 + std::min(most, kMostExchanging))), 256, false, stream,
         "exchange_rows", params);
}

void launch_end(const EpochParams& params, const SentWord& sent, bool dependent, cudaStream_t stream) {
  launch(end_epoch, dim3(1), 2 * kMaxRanks, dependent, stream, "end_epoch", params, sent);
}

void launch_wait(const WaitParams& params, cudaStream_t stream) {
  if (params.count == 0 && params.num_signals == 0) return;
  wait_flags<<<1, 128, 0, stream>>>(params);
  check_launch("wait_flags");
}

void launch_signal(const FlagTable& flags, const uint64_t* epoch, uint64_t peers, int rank, cudaStream_t stream) {
  if (peers == 0) return;
  signal_flags<<<1, kMaxRanks, 0, stream>>>(flags, epoch, peers, rank);
  check_launch("signal_flags");
}

void launch_move(const MoveParams& params, int num_blocks, cudaStream_t stream) {
  if (params.count == 0) return;
  move_chunks<<<static_cast<unsigned>(std::min(num_blocks, params.count)), 256, 0, stream>>>(params);
  check_launch("move_chunks");
}

void load_epoch_kernels() {
  cuda::load_kernel<begin_epoch>();
  cuda::load_kernel<exchange_rows>();
  cuda::load_kernel<end_epoch>();
  cuda::load_kernel<wait_flags>();
  cuda::load_kernel<signal_flags>();
  cuda::load_kernel<move_chunks>();
}

}  // namespace tangram::comm
