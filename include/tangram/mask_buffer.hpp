// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// MaskBuffer: attention on one device over a mask that changes from step to step, under one captured CUDA graph.
#pragma once

#include <cstdint>
#include <memory>

#include "tangram/attention.hpp"
#include "tangram/mask.hpp"
#include "tangram/mask_capacity.hpp"

namespace tangram {

/// Room for the lists of masks of one shape, one after the other. set() makes the lists of a mask on the host and
/// enqueues one copy of them; forward() and backward() attend to the mask that was set last, in stream order. So a CUDA
/// graph that was captured with forward() and backward() needs no second capture for another mask: set() it on the
/// stream, then replay. What is captured and what is not gives bitwise equal results, in the backward pass where calls
/// are deterministic. On a backend without such buffers (the CPU's) each set() prepares the mask anew.
///
/// One mask is there at a time: the backward pass of a mask must be enqueued before the next is set. Calls, set() and
/// replays on several streams are ordered by the caller. Used by one thread at a time. With masks of few query rows and
/// long keys a FlexAttention, which cuts these into parts, is faster, and with small blocks of keys, which it gathers.
class MaskBuffer {
 public:
  /// Allocates, on a GPU, in the memory of the current device, and page-locked memory of the host; may wait for the
  /// device. `backend` must outlive the object. Throws InvalidArgument for what the backend cannot do and for a
  /// capacity that is not positive, CudaError.
  MaskBuffer(const AttnShape& shape, const MaskCapacity& capacity, const AttnBackend& backend);

  /// `[seqlen_q, seqlen_k]` of the shape. Behind what is on `stream` (a cudaStream_t; ignored on the CPU), which must
  /// not be being captured. Allocates no memory of the device, and waits for none of its work unless the copies of
  /// several earlier masks have not run yet. Throws InvalidArgument, with the mask set before still there, for a mask
  /// of another shape or one that exceeds the capacity, named; CudaError.
  void set(const Mask& mask, void* stream = nullptr);

  /// Other room; forgets the mask. Throws InvalidArgument while a graph that was captured with the buffer may be
  /// replayed.
  void reserve(const MaskCapacity& capacity);

  const AttnShape& shape() const { return shape_; }
  const MaskCapacity& capacity() const { return capacity_; }
  const AttnBackend& backend() const { return *backend_; }
  /// Masks set so far.
  int64_t num_masks() const { return num_masks_; }

  /// What calls need as their workspace, see AttnWorkspace; on a backend with buffers the same for all masks.
  int64_t forward_workspace_bytes() const;
  int64_t backward_workspace_bytes() const;
  int64_t device_bytes() const { return prepared_ == nullptr ? 0 : prepared_->device_bytes(); }
  int64_t host_bytes() const { return prepared_ == nullptr ? 0 : prepared_->host_bytes(); }

  /// As AttnBackend::forward and backward; AttnOptions::deterministic of backward() as in the capacity. Throw
  /// InvalidArgument before the first set(), and for a pass that the capacity is not for.
  void forward(const AttnForwardArgs& args, void* stream = nullptr);
  void backward(const AttnBackwardArgs& args, void* stream = nullptr);

 private:
  PreparedMask& mask(const char* function, AttnPasses other);

  AttnShape shape_;
  MaskCapacity capacity_;
  const AttnBackend* backend_;
  std::unique_ptr<PreparedMask> prepared_;  // null on a backend without buffers before the first set()
  int64_t num_masks_ = 0;
};

}  // namespace tangram
