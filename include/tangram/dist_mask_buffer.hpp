// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// DistMaskBuffer: distributed attention by plans that change from step to step, under one captured CUDA graph.
#pragma once

#include <cstdint>
#include <memory>

#include "tangram/attn_pass.hpp"
#include "tangram/dist_attention.hpp"
#include "tangram/plan.hpp"

namespace tangram {

/// The largest plans that a DistMaskBuffer has room for. Alike on all ranks.
struct DistMaskCapacity {
  int64_t kv_rows = 0;    ///< of a rank's K/V buffer: all rows that its queries see, own ones included
  int64_t sent_rows = 0;  ///< that a rank sends, once for each rank that gets them
  /// Ranges of rows that lie together on both sides: those that a rank sends, and twice those of its own that it
  /// sees.
  int64_t local_ranges = 512;
  int64_t documents = 64;  ///< of a rank's part of a mask, as MaskCapacity::documents
  int64_t slices = 0;      ///< likewise; 0: as many as documents
  bool deterministic = false;
  AttnPasses passes = AttnPasses::kBoth;  ///< or kForward
  bool allow_fully_masked_rows = true;    ///< as MaskCapacity::allow_fully_masked_rows

  friend bool operator==(const DistMaskCapacity&, const DistMaskCapacity&) = default;
};

/// Capacity that a plan with K/V communication takes, the largest of any rank. Slices count as documents of their own,
/// and long ones as several slices. The largest of some plans, and somewhat more, is what others of their kind take.
/// Deterministic calls of windows beyond 16K keys take more slices than it says.
DistMaskCapacity capacity_for(const Plan& plan);

/// One rank's part in distributed attention by one plan after the other, over the GPUs of one host. set() makes the
/// lists and tables of a plan on the host and enqueues their copies. forward() and backward() use the plan that was set
/// last, in stream order. So a CUDA graph that captured them needs no second capture for another plan. All ranks call
/// set(), each on its replay stream, then replay. Replays and calls give the same bits, in the backward pass where
/// calls are deterministic.
///
/// Plans move K/V alone and keep none, and have the heads, rows a rank and reduce_dtype of the first. All ranks set
/// the same plans and replay the same passes in one order. One plan is there at a time: the backward pass of a plan is
/// enqueued before the next is set. Rows are sent by kernels in front of attention, not beside it: a DistAttention,
/// whose copy engines do that, is faster where launches cost nothing.
///
/// Used by one thread at a time. Must outlive graphs that were captured with it.
class DistMaskBuffer {
 public:
  /// Collective; allocates, also memory that peers write to. `communicator` and `backend` must outlive the object. Of
  /// `like` the shape is taken alone. Throws InvalidArgument on every rank for unsupported arguments, and if shape or
  /// capacity differ between ranks. Throws NotAvailable unless the transport is copy_engine within one host, each rank
  /// with its own GPU.
  DistMaskBuffer(const Plan& like, const DistMaskCapacity& capacity, DeviceCommunicator& communicator,
                 const AttnBackend& backend);
  ~DistMaskBuffer();
  DistMaskBuffer(DistMaskBuffer&&) noexcept;
  DistMaskBuffer& operator=(DistMaskBuffer&&) noexcept;

  /// Sets the plan. Collective: on every rank, in the same order among all collective calls. Needs no rendezvous,
  /// except under TANGRAM_SANITY_CHECK. It allocates no memory of the device, and waits for none of its work unless the
  /// copies of several earlier plans have not run yet. Throws InvalidArgument
  /// - on every rank, with the plan set before still there, for a plan of another shape or one that exceeds the
  ///   capacity, named;
  /// - on every rank, now or when the next epoch is opened, if ranks set different plans or one lacks capacity for its
  ///   lists. The group is broken then, as by a DistAttention.
  void set(std::shared_ptr<const Plan> plan, void* stream);

  /// Like the passes of DistAttention on GPUs, with a workspace and without `kept`; dsink_reduce kAvg is refused. Throw
  /// InvalidArgument before the first set().
  void forward(const DistForwardArgs& args, void* stream);
  void backward(const DistBackwardArgs& args, void* stream);

  const DistMaskCapacity& capacity() const;
  /// Plans set so far.
  int64_t num_plans() const;
  int64_t q_rows() const;  ///< of the rank's shards
  int64_t k_rows() const;
  /// Workspace bytes of a pass, for every plan of the capacity.
  int64_t forward_workspace_bytes() const;
  int64_t backward_workspace_bytes() const;
  /// Lists, tables, receive buffers and return areas.
  int64_t device_bytes() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tangram
