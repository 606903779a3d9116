// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "comm/device/kernels.hpp"
#include "cuda/check.hpp"
#include "cuda/device_facts.hpp"
#include "cuda/ptx/warp.cuh"
#include "cuda/wait.cuh"

namespace tangram::comm {

namespace {

using cuda::WaitContext;
using cuda::WaitFailure;
using cuda::WaitKind;

constexpr int kMaxRanks = 64;

__device__ bool has_peer(uint64_t peers, int peer) { return (peers >> peer & 1) != 0; }

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

/// NOTE [small kernels get ready]: kernels that open and close epochs are launched as programmatic dependents: what
/// reads tables, shows, counts and waits for credits runs while the kernel in front of them ends. Before
/// grid_dependency_wait() they must not touch what that kernel uses: operands, landing rows, the slots' cells. The
/// counter is theirs alone, and whoever counted last has ended: what closes an epoch lets others be launched only after
/// its own grid_dependency_wait().
__global__ void __launch_bounds__(256) begin_epoch(EpochParams params, const __grid_constant__ MoveParams own) {
  if (blockIdx.x > 0) {
    ptx::grid_dependency_wait();
    move(own, static_cast<int>(blockIdx.x) - 1, static_cast<int>(gridDim.x) - 1);
    return;
  }
  __shared__ uint64_t epoch, landing_epoch, return_epoch;
  if (threadIdx.x == 0) {
    epoch = ++*params.counter;
    landing_epoch = *params.landing.last_epoch;
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
      wait_credit(params, params.landing, peer, landing_epoch);
    } else if (part == 2) {
      wait_credit(params, params.returns, peer, return_epoch);
    }
  }
  __syncthreads();
  ptx::grid_dependency_wait();
  if (threadIdx.x == 0) {
    *params.landing.last_epoch = epoch;
    if (params.returns.last_epoch != nullptr) *params.returns.last_epoch = epoch;
  }
}

/// Which word of a peer says up to which epoch this rank has given it a slot back; null: no credit.
__device__ __forceinline__ uint64_t* released_at(const EpochParams& params, const CreditParams& credit, int peer) {
  if (credit.last_epoch == nullptr) return nullptr;
  return credit.released.ranks[peer] + credit.released.idx + params.rank;
}

/// By two threads a peer, and one for `sent`. `wait`: for what comes before, once the tables have been read.
template <class Wait>
__device__ __forceinline__ void give_back(const EpochParams& params, const SentWord& sent, const Wait& wait) {
  const int peer = static_cast<int>(threadIdx.x) % kMaxRanks, part = static_cast<int>(threadIdx.x) / kMaxRanks;
  const bool is_peer = peer < params.size && peer != params.rank;
  uint64_t *landing = nullptr, *returns = nullptr;
  if (is_peer && part == 0) {
    landing = released_at(params, params.landing, peer);
    returns = released_at(params, params.returns, peer);
  }
  wait();
  if (sent.word != nullptr && peer == params.rank && part == 0) {
    wait_for_flag(*params.context, sent.word, sent.value,
                  {WaitKind::kArrival, params.rank, params.rank, 0, params.pass, 0});
  }
  if (!is_peer || part > 1) return;
  const uint64_t epoch = *params.landing.last_epoch;
  if (part == 1) {
    check_order(params, peer, epoch);
    return;
  }
  if (landing != nullptr) ptx::store_release_system(landing, epoch);
  if (returns != nullptr) ptx::store_release_system(returns, epoch);
}

__global__ void end_epoch(EpochParams params, SentWord sent) {
  give_back(params, sent, [] {
    ptx::grid_dependency_wait();
    ptx::grid_dependency_launch();
  });
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

struct alignas(16) Bfloat16x8 {
  __nv_bfloat162 pairs[4];
};
struct alignas(16) Halfx8 {
  __half2 pairs[4];
};

/// Eight elements from number `idx` on, which is a multiple of 8, as float32.
__device__ void load8(const void* data, DType dtype, int64_t idx, float (&values)[8]) {
  if (dtype == DType::kFloat32) {
    const auto* from = reinterpret_cast<const float4*>(static_cast<const float*>(data) + idx);
    const float4 low = from[0], high = from[1];
    values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
    values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
  } else if (dtype == DType::kBFloat16) {
    const auto packed = *reinterpret_cast<const Bfloat16x8*>(static_cast<const __nv_bfloat16*>(data) + idx);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[2 * i] = __low2float(packed.pairs[i]);
      values[2 * i + 1] = __high2float(packed.pairs[i]);
    }
  } else {
    const auto packed = *reinterpret_cast<const Halfx8*>(static_cast<const __half*>(data) + idx);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[2 * i] = __low2float(packed.pairs[i]);
      values[2 * i + 1] = __high2float(packed.pairs[i]);
    }
  }
}

__device__ void store8(void* data, DType dtype, int64_t idx, const float (&values)[8]) {
  if (dtype == DType::kFloat32) {
    auto* to = reinterpret_cast<float4*>(static_cast<float*>(data) + idx);
    to[0] = {values[0], values[1], values[2], values[3]};
    to[1] = {values[4], values[5], values[6], values[7]};
  } else if (dtype == DType::kBFloat16) {
    Bfloat16x8 packed;
#pragma unroll
    for (int i = 0; i < 4; ++i) packed.pairs[i] = __floats2bfloat162_rn(values[2 * i], values[2 * i + 1]);
    *reinterpret_cast<Bfloat16x8*>(static_cast<__nv_bfloat16*>(data) + idx) = packed;
  } else {
    Halfx8 packed;
#pragma unroll
    for (int i = 0; i < 4; ++i) packed.pairs[i] = __floats2half2_rn(values[2 * i], values[2 * i + 1]);
    *reinterpret_cast<Halfx8*>(static_cast<__half*>(data) + idx) = packed;
  }
}

__global__ void __launch_bounds__(256) convert_chunks(const __grid_constant__ MoveParams params) {
  for (int i = static_cast<int>(blockIdx.x); i < params.count; i += static_cast<int>(gridDim.x)) {
    const Chunk chunk = params.chunks[i];
    const int64_t first = chunk.from / 2;
    char* to = params.bases[chunk.peer] + chunk.to;
    for (int j = static_cast<int>(threadIdx.x); j < chunk.num_bytes / 16; j += 256) {
      float values[8];
      load8(params.sources[chunk.tensor], DType::kFloat32, first + 8 * j, values);
      store8(to, DType::kBFloat16, 8 * j, values);
    }
  }
}

__device__ void add8(const void* data, DType dtype, int64_t idx, float (&sum)[8]) {
  float values[8];
  load8(data, dtype, idx, values);
#pragma unroll
  for (int i = 0; i < 8; ++i) sum[i] += values[i];
}

/// Of all blocks of the grid, the last one that calls it, with all its threads, closes the epoch.
__device__ __forceinline__ void end_if_last(const MergeJobs& jobs) {
  __shared__ bool is_last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(jobs.num_ended, 1) == gridDim.x * gridDim.y - 1;
  __syncthreads();
  if (!is_last) return;
  if (threadIdx.x == 0) *jobs.num_ended = 0;
  __threadfence();
  give_back(jobs.epoch, jobs.sent, [] {});
}

/// A warp per row of the tensor that the second dimension of the grid says; the order of the terms of an element is
/// that of the ranks. A lane has kAhead loads of eight elements under way at a time.
__global__ void __launch_bounds__(256) merge_rows(const __grid_constant__ MergeJobs jobs) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  if (blockIdx.x == 0 && blockIdx.y == 0) send_signals(jobs.wait);
  if (jobs.wait.count > 0) {
    wait_for_list(jobs.wait);
    __syncthreads();
  }
  const MergeParams& params = jobs.tensors[blockIdx.y];
  constexpr int kAhead = 4, kStride = 8 * 32;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t num_warps = int64_t{gridDim.x} * (blockDim.x / 32);
  const int64_t num_rows = params.num_rows == nullptr ? params.rows : *params.num_rows;
  for (int64_t i = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32; i < num_rows; i += num_warps) {
    const int64_t row = params.chosen == nullptr ? i : params.chosen[i];
    const int begin = params.begin[i], end = params.begin[i + 1];
    const bool has_own = params.num_before[i] >= 0;
    const int middle = begin + (has_own ? params.num_before[i] : ~params.num_before[i]);
    for (int first = 8 * lane; first < params.row_elements; first += kAhead * kStride) {
      float own[kAhead][8] = {}, sum[kAhead][8] = {};
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        const int element = first + k * kStride;
        if (has_own && element < params.row_elements) {
          load8(params.own, params.own_dtype, row * params.row_elements + element, own[k]);
        }
      }
      const auto add_returned = [&](int from, int to) {
        for (int i = from; i < to; ++i) {
          const int64_t at = int64_t{params.entries[i]} * params.row_elements;
#pragma unroll
          for (int k = 0; k < kAhead; ++k) {
            const int element = first + k * kStride;
            if (element < params.row_elements) add8(params.returned, params.returned_dtype, at + element, sum[k]);
          }
        }
      };
      add_returned(begin, middle);
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
#pragma unroll
        for (int i = 0; i < 8; ++i) sum[k][i] += own[k][i];
      }
      add_returned(middle, end);
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        const int element = first + k * kStride;
        if (element < params.row_elements) {
          store8(params.sums, params.sums_dtype, row * params.row_elements + element, sum[k]);
        }
      }
    }
  }
  if (jobs.num_ended != nullptr) end_if_last(jobs);
}

__global__ void __launch_bounds__(512) all_reduce(AllReduceParams params) {
  constexpr int kStride = DeviceCommunicator::kMaxReduceValues;
  __shared__ uint64_t epoch;
  if (threadIdx.x == 0) epoch = ++*params.counter;
  __syncthreads();
  // Two inboxes in turns: who has seen this epoch of all ranks knows that all have read the last but one.
  const int64_t inbox = static_cast<int64_t>(epoch % 2) * params.size * kStride;
  for (int step = 1; step < params.size; ++step) {
    float* to = params.inboxes[(params.rank + step) % params.size] + inbox + int64_t{params.rank} * kStride;
    for (int i = static_cast<int>(threadIdx.x); i < params.count; i += static_cast<int>(blockDim.x)) {
      to[i] = params.values[i];
    }
  }
  __threadfence_system();
  __syncthreads();
  const int peer = static_cast<int>(threadIdx.x);
  bool came = true;
  if (peer < params.size && peer != params.rank) {
    ptx::store_release_system(params.flags.ranks[peer] + params.flags.idx + params.rank, epoch);
    came = wait_for_flag(*params.context, params.flags.ranks[params.rank] + params.flags.idx + peer, epoch,
                         {WaitKind::kAllReduce, params.rank, peer, 0, 0, 0});
  }
  if (!__syncthreads_and(came)) return;
  const float* received = params.inboxes[params.rank] + inbox;
  for (int i = static_cast<int>(threadIdx.x); i < params.count; i += static_cast<int>(blockDim.x)) {
    float result = 0;
    for (int rank = 0; rank < params.size; ++rank) {
      const float value = rank == params.rank ? params.values[i] : __ldcg(received + int64_t{rank} * kStride + i);
      result = rank == 0 ? value : params.is_max ? fmaxf(result, value) : result + value;
    }
    params.values[i] = result;
  }
}

__global__ void begin_operation(cuda::BoardRow* row, uint64_t* counter, uint64_t word) {
  const uint64_t count = ++*counter;
  ptx::store_release_system(&row->progress, count);
  WaitFailure operation = cuda::unpack(word);
  operation.detail = static_cast<int>(count & 4095);
  ptx::store_release_system(&row->operation, cuda::pack(operation));
}

__global__ void end_operation(cuda::BoardRow* row) { ptx::store_release_system(&row->operation, uint64_t{0}); }

__global__ void combine(const float* others, float* values, int count, int rank, int size, bool is_max) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  float result = 0;
  for (int r = 0; r < size; ++r) {
    const float value = r == rank ? values[i] : others[int64_t{r} * count + i];
    result = r == 0 ? value : is_max ? fmaxf(result, value) : result + value;
  }
  values[i] = result;
}

void check_launch(const char* what) { cuda::check(cudaGetLastError(), what); }

}  // namespace

namespace {

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

void launch_begin(const EpochParams& params, const MoveParams& own, bool dependent, cudaStream_t stream) {
  constexpr int kMostCopying = 264;
  launch(begin_epoch, dim3(static_cast<unsigned>(1 + std::min(own.count, kMostCopying))), 256, dependent, stream,
         "begin_epoch", params, own);
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

void launch_convert(const MoveParams& params, int num_blocks, cudaStream_t stream) {
  if (params.count == 0) return;
  convert_chunks<<<static_cast<unsigned>(std::min(num_blocks, params.count)), 256, 0, stream>>>(params);
  check_launch("convert_chunks");
}

namespace {

// All blocks of a merge may wait themselves, without a kernel in front of them, as long as they are no more than these:
// two a multiprocessor of an H100 (NOTE [gentle polls]). Merges of more rows take longer than that kernel.
constexpr unsigned kMostWaiting = 264;

/// Whether there was anything to launch.
bool launch_merge_jobs(std::span<const MergeParams> tensors, const WaitParams& wait, MergeJobs& jobs, bool dependent,
                       cudaStream_t stream) {
  int64_t most_rows = 0;
  for (size_t t = 0; t < tensors.size(); ++t) {
    jobs.tensors[t] = tensors[t];
    most_rows = std::max(most_rows, tensors[t].rows);
  }
  const int64_t max_blocks = cuda::facts_of_current_device().memory_blocks();
  const auto blocks = static_cast<unsigned>(std::min((most_rows + 7) / 8, max_blocks));
  const auto num_tensors = static_cast<unsigned>(tensors.size());
  if (blocks > 0 && blocks * num_tensors <= kMostWaiting) {
    jobs.wait = wait;
  } else {
    launch_wait(wait, stream);
  }
  if (blocks == 0) return false;
  launch(merge_rows, dim3(blocks, num_tensors), 256, dependent, stream, "merge_rows", jobs);
  return true;
}

}  // namespace

void launch_merge(std::span<const MergeParams> tensors, const WaitParams& wait, cudaStream_t stream) {
  MergeJobs jobs;
  launch_merge_jobs(tensors, wait, jobs, false, stream);
}

void launch_merge_and_end(std::span<const MergeParams> tensors, const WaitParams& wait, const EpochParams& epoch,
                          const SentWord& sent, uint32_t* num_ended, bool dependent, cudaStream_t stream) {
  MergeJobs jobs;
  jobs.sent = sent;
  jobs.epoch = epoch;
  jobs.num_ended = num_ended;
  if (!launch_merge_jobs(tensors, wait, jobs, dependent, stream)) launch_end(epoch, sent, dependent, stream);
}

void launch_all_reduce(const AllReduceParams& params, cudaStream_t stream) {
  all_reduce<<<1, 512, 0, stream>>>(params);
  check_launch("all_reduce");
}

void launch_operation_begins(cuda::BoardRow* row, uint64_t* counter, uint64_t word, cudaStream_t stream) {
  begin_operation<<<1, 1, 0, stream>>>(row, counter, word);
  check_launch("begin_operation");
}

void launch_operation_ends(cuda::BoardRow* row, cudaStream_t stream) {
  end_operation<<<1, 1, 0, stream>>>(row);
  check_launch("end_operation");
}

void launch_combine(const float* others, float* values, int count, int rank, int size, bool is_max,
                    cudaStream_t stream) {
  combine<<<static_cast<unsigned>((count + 255) / 256), 256, 0, stream>>>(others, values, count, rank, size, is_max);
  check_launch("combine");
}

void load_kernels() {
  const void* kernels[] = {
      reinterpret_cast<const void*>(begin_epoch),     reinterpret_cast<const void*>(end_epoch),
      reinterpret_cast<const void*>(wait_flags),      reinterpret_cast<const void*>(signal_flags),
      reinterpret_cast<const void*>(move_chunks),     reinterpret_cast<const void*>(convert_chunks),
      reinterpret_cast<const void*>(merge_rows),      reinterpret_cast<const void*>(all_reduce),
      reinterpret_cast<const void*>(begin_operation), reinterpret_cast<const void*>(end_operation),
      reinterpret_cast<const void*>(combine),
  };
  for (const void* kernel : kernels) {
    cudaFuncAttributes attributes;
    cuda::check(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes");
  }
}

}  // namespace tangram::comm
