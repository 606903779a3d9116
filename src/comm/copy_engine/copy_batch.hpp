// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// CopyBatch: copies between device memories that go to the copy engines in one call of the driver.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

namespace tangram::comm {

class CopyBatch {
 public:
  void add(void* target, const void* source, size_t num_bytes) {
    targets_.push_back(target);
    sources_.push_back(source);
    sizes_.push_back(num_bytes);
  }
  /// Enqueues the copies after earlier work on `stream`, without order among each other; later work on the stream finds
  /// all of them done. The stream must not be capturing. Throws CudaError.
  void enqueue(cudaStream_t stream) const;

 private:
  cudaError_t try_enqueue(cudaStream_t stream) const;
  friend bool driver_takes_batches(cudaStream_t stream);

  std::vector<void*> targets_;
  std::vector<const void*> sources_;
  std::vector<size_t> sizes_;
};

/// Whether the driver has such a call: older ones have not. Tries it, so that a later call finds set up what the first
/// one needs; waits for the stream.
bool driver_takes_batches(cudaStream_t stream);

}  // namespace tangram::comm
