// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>

#include "cuda/check.hpp"
#include "cuda/device_facts.hpp"
#include "cuda/load_kernel.hpp"
#include "runtime/device/float_kernels.hpp"

namespace tangram::device {
namespace {

constexpr int kThreads = 256;
constexpr size_t kMaxCopies = 32;  // in one launch

struct Copies {
  FloatCopy copy[kMaxCopies];
};

/// The second dimension of the grid is the copy.
__global__ void __launch_bounds__(kThreads) copy_kernel(const __grid_constant__ Copies copies) {
  const FloatCopy& copy = copies.copy[blockIdx.y];
  const int64_t total = copy.rows * copy.columns;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < total; i += int64_t{gridDim.x} * kThreads) {
    const int64_t row = i / copy.columns, column = i - row * copy.columns;
    copy.to[row * copy.to_stride + column] =
        copy.from == nullptr ? copy.value : copy.from[row * copy.from_stride + column];
  }
}

}  // namespace

void load_float_kernels() { cuda::load_kernel<copy_kernel>(); }

void copy_floats(std::span<const FloatCopy> copies, cudaStream_t stream) {
  // A block for each multiprocessor: values are few beside rows of tensors.
  const int64_t max_blocks = cuda::facts_of_current_device().multiprocessors;
  for (size_t first = 0; first < copies.size(); first += kMaxCopies) {
    const auto some = copies.subspan(first, std::min(kMaxCopies, copies.size() - first));
    Copies params{};
    std::copy(some.begin(), some.end(), params.copy);
    int64_t most = 1;
    for (const FloatCopy& copy : some) most = std::max(most, copy.rows * copy.columns);
    const int64_t blocks = std::min((most + kThreads - 1) / kThreads, max_blocks);
    copy_kernel<<<dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(some.size())), kThreads, 0, stream>>>(
        params);
    cuda::check(cudaGetLastError(), "float copy kernel launch");
  }
}

}  // namespace tangram::device
