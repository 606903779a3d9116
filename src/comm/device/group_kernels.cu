// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Sums over all ranks, and what shows hosts which operation of NCCL a stream has come to.
#include "comm/device/epoch.cuh"
#include "cuda/load_kernel.hpp"

namespace tangram::comm {

namespace {

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

__global__ void begin_operation(cuda::ControlBlockRow* row, uint64_t* counter, uint64_t word) {
  const uint64_t count = ++*counter;
  ptx::store_release_system(&row->progress, count);
  WaitFailure operation = cuda::unpack(word);
  operation.detail = static_cast<int>(count & 4095);
  ptx::store_release_system(&row->operation, cuda::pack(operation));
}

__global__ void end_operation(cuda::ControlBlockRow* row) { ptx::store_release_system(&row->operation, uint64_t{0}); }

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

}  // namespace

void launch_all_reduce(const AllReduceParams& params, cudaStream_t stream) {
  all_reduce<<<1, 512, 0, stream>>>(params);
  check_launch("all_reduce");
}

void launch_operation_begins(cuda::ControlBlockRow* row, uint64_t* counter, uint64_t word, cudaStream_t stream) {
  begin_operation<<<1, 1, 0, stream>>>(row, counter, word);
  check_launch("begin_operation");
}

void launch_operation_ends(cuda::ControlBlockRow* row, cudaStream_t stream) {
  end_operation<<<1, 1, 0, stream>>>(row);
  check_launch("end_operation");
}

void launch_combine(const float* others, float* values, int count, int rank, int size, bool is_max,
                    cudaStream_t stream) {
  combine<<<static_cast<unsigned>((count + 255) / 256), 256, 0, stream>>>(others, values, count, rank, size, is_max);
  check_launch("combine");
}

void load_group_kernels() {
  cuda::load_kernel<all_reduce>();
  cuda::load_kernel<begin_operation>();
  cuda::load_kernel<end_operation>();
  cuda::load_kernel<combine>();
}

}  // namespace tangram::comm
