// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/copy_engine/copy_batch.hpp"

#include "cuda/check.hpp"
#include "cuda/device_buffer.hpp"

namespace tangram::comm {

cudaError_t CopyBatch::try_enqueue(cudaStream_t stream) const {
  cudaMemcpyAttributes attributes = {};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  attributes.flags = cudaMemcpyFlagPreferOverlapWithCompute;
  size_t first = 0;
  return cudaMemcpyBatchAsync(targets_.data(), sources_.data(), sizes_.data(), targets_.size(), &attributes, &first, 1,
                              stream);
}

void CopyBatch::enqueue(cudaStream_t stream) const {
  if (targets_.empty()) return;
  cuda::check(try_enqueue(stream), "cudaMemcpyBatchAsync");
}

bool driver_takes_batches(cudaStream_t stream) {
  constexpr size_t kBytes = 4096;
  const cuda::DeviceBuffer from = cuda::DeviceBuffer::zeros(2 * kBytes), to(2 * kBytes);
  CopyBatch batch;
  for (const size_t offset : {size_t{0}, kBytes}) batch.add(to.as<char>() + offset, from.as<char>() + offset, kBytes);
  const cudaError_t status = batch.try_enqueue(stream);
  if (status == cudaErrorNotSupported || status == cudaErrorCallRequiresNewerDriver) {
    static_cast<void>(cudaGetLastError());  // it would be taken for another call's
    return false;
  }
  cuda::check(status, "cudaMemcpyBatchAsync");
  cuda::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  return true;
}

}  // namespace tangram::comm
