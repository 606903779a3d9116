// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// MaskBuffer: attention on one device over a mask that changes from step to step, under one captured CUDA graph.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tangram/attention.hpp"
#include "tangram/mask.hpp"
#include "tangram/mask_capacity.hpp"
#include "tangram/mask_data.hpp"

namespace tangram {

class HostCapacity;

/// Room for the lists of masks of one shape, one after the other. set() makes the lists of a mask on the host and
/// enqueues one copy of them. forward() and backward() attend to the mask that was set last, in stream order. So a CUDA
/// graph that was captured with forward() and backward() needs no second capture for another mask: set() it on the
/// stream, then replay. What is captured and what is not gives bitwise equal results, in the backward pass where calls
/// are deterministic. On a backend without such buffers (the CPU's) each set() prepares the mask anew. It refuses what
/// a GPU with kernels of head_dim 128 would refuse.
///
/// One mask is there at a time: the backward pass of a mask must be enqueued before the next is set. Calls, set() and
/// replays on several streams are ordered by the caller. Used by one thread at a time. With masks of few query rows and
/// long keys a FlexAttention, which cuts these into parts, is faster. Block-sparse masks need a buffer made for them
/// (MaskCapacity::block_size). It gathers blocks like a FlexAttention and takes no other masks.
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
  /// Sets one mask per head group (MaskCapacity::head_groups). Mask g of n belongs to heads_kv / n K/V heads, the first
  /// of which is g * heads_kv / n, and to their query heads.
  void set(std::span<const Mask> masks, void* stream = nullptr);

  /// Packed documents whose borders are in memory of the backend. On a GPU, kernels on `stream` build the lists and no
  /// host waits for the data. A CUDA graph may hold this call: each replay reads the borders of that time. The first
  /// one allocates and must not be captured. As many documents as the capacity has slices. Backward passes are
  /// scheduled by one rule for all masks, deterministic calls too. The GPU finds lists that are not valid or exceed the
  /// capacity. Such a mask shows nothing; the host's next call once it knows throws. Throws InvalidArgument for what
  /// can be seen without the data, CudaError.
  void set_cu_seqlens(const CuSeqlens& documents, void* stream = nullptr);

  /// Chosen blocks of keys, likewise: `[query blocks, width]` indices, of as many blocks as the capacity has slices.
  /// The first call with blocks of a size, or of smaller ones, allocates. Each pass walks the longest runs of blocks
  /// that there are in its direction. Indices that are outside, repeat or stand behind padding are found on the GPU. A
  /// buffer made for blocks allocates nothing, and takes a table for each of its head groups.
  void set_blocks(const BlockTable& table, void* stream = nullptr);

  /// Typed ranges, likewise, as many as the capacity has slices: cheap unless very many begin near each other or share
  /// a row. Ranges that are outside and slices that meet are found on the GPU.
  void set_ranges(const RangeList& ranges, void* stream = nullptr);

  /// Throws InvalidArgument, once for each, for a mask that the GPU has refused, as far as the host knows by now. For
  /// all that was enqueued, wait for the stream first.
  void check_errors() const;

  /// Other room; forgets the mask. Throws InvalidArgument while a graph that was captured with the buffer may be
  /// replayed.
  void reserve(const MaskCapacity& capacity);

  const AttnShape& shape() const { return shape_; }
  const MaskCapacity& capacity() const { return capacity_; }
  const AttnBackend& backend() const { return *backend_; }
  /// Masks set so far.
  int64_t num_masks() const { return num_masks_; }

  /// Workspace bytes of calls, see AttnWorkspace; on a backend with buffers the same for all masks.
  int64_t forward_workspace_bytes() const { return backend_->workspace_bytes(*slot_, AttnPass::kForward); }
  int64_t backward_workspace_bytes() const { return backend_->workspace_bytes(*slot_, AttnPass::kBackward); }
  int64_t device_bytes() const { return slot_->device_bytes(); }
  int64_t host_bytes() const { return slot_->host_bytes(); }

  /// Run one pass, like AttnBackend::forward and backward; AttnOptions::deterministic must be as in the capacity. Throw
  /// InvalidArgument before the first set(), and for a pass that the capacity is not for.
  void forward(const AttnForwardArgs& args, void* stream = nullptr);
  void backward(const AttnBackwardArgs& args, void* stream = nullptr);

 private:
  void check_call(const char* function, AttnPasses other) const;
  void set_data(const MaskData& data, void* stream);
  bool is_padded() const;

  AttnShape shape_;
  MaskCapacity capacity_;
  const AttnBackend* backend_;
  std::unique_ptr<MaskSlot> slot_;
  std::shared_ptr<const HostCapacity> room_;  // on a backend without padded slots
  int64_t num_masks_ = 0;
};

}  // namespace tangram
