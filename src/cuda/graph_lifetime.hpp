// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Memory that a captured CUDA graph uses must live as long as the graph can be launched.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

namespace tangram::cuda {

/// Whether what is put on `stream` becomes part of a CUDA graph. Throws CudaError.
bool is_captured(cudaStream_t stream);

/// If `stream` is being captured, keeps `object` until the graph and all its instances are destroyed (CUDA Programming
/// Guide, "CUDA User Objects"). Otherwise does nothing. The object ends in a later call of this function or of
/// release_objects_of_ended_graphs(), since CUDA may not be called where a graph ends. Throws CudaError.
void keep_while_graph_lives(cudaStream_t stream, std::shared_ptr<const void> object);

/// Ends what graphs that are gone have kept.
void release_objects_of_ended_graphs();

/// While it lives, this thread may allocate and free device memory although a stream is being captured.
class AllowAllocationDuringCapture {
 public:
  AllowAllocationDuringCapture();
  ~AllowAllocationDuringCapture();
  AllowAllocationDuringCapture(const AllowAllocationDuringCapture&) = delete;
  AllowAllocationDuringCapture& operator=(const AllowAllocationDuringCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace tangram::cuda
