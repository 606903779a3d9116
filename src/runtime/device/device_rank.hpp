// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What both passes of DeviceDistAttention share on one rank: the plan, prepared masks and maps of rows, made once so
// that passes allocate nothing. What they compute in is given to each call (RankScratch).
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <optional>
#include <vector>

#include "cuda/device_buffer.hpp"
#include "runtime/device/local_stretches.hpp"
#include "runtime/device/rank_scratch.hpp"
#include "runtime/device/return_places.hpp"
#include "runtime/device/row_kernels.hpp"
#include "runtime/rank_context.hpp"
#include "tangram/device_dist_attention.hpp"

namespace tangram::device {

/// The rank's own K/V rows as the row kernels want them. Maps that no pass reads are not made.
struct LocalRows {
  cuda::DeviceBuffer shard_rows;    // int32 [count]: row in the shard of those that are copied into the K/V buffer
  cuda::DeviceBuffer buffer_rows;   // int32 [count]: row in the K/V buffer
  cuda::DeviceBuffer of_shard_row;  // int32 [k shard rows]: row in the K/V buffer, -1 where no query here sees it
  int64_t count = 0;
  /// What kernels read from the shard itself: of these only the borders are copied.
  std::vector<KeyStretch> stretches;
  std::vector<KeyStretch> copied;  // the rows of shard_rows and buffer_rows
  /// The rows of the buffer that are the whole shard in order, where there are such.
  std::optional<Range> whole_shard;
};

/// One kernel call of a pass and the stages [first_stage, end_stage) whose rows it needs.
struct Step {
  std::unique_ptr<PreparedMask> mask;  // null where nothing is computed
  int first_stage = 0;
  int end_stage = 0;
};

/// Everything of one pass that does not depend on its arguments.
struct PassSetup {
  std::vector<Step> steps;           // by stage
  std::shared_ptr<DevicePass> pass;  // null where no rank needs rows of another
  int num_stages = 1;
  bool is_single_launch = false;
  bool waits_in_kernel = false;
  /// Backward: the kernel stores every row of dk and dv where it belongs, the owner's return slot or the own part.
  bool stores_returns = false;
  ReturnPlaces returns;
};

inline constexpr int kReturnSlots = 2;  // a rank may be one pass ahead of its peers

struct DeviceRank {
  RankContext base;  // plan, rank, shape and backend
  DeviceCommunicator* communicator = nullptr;
  LocalRows local;
  PassSetup forward, backward;
  LaunchOrder launch_order = LaunchOrder::kCopyEngine;  // kAuto resolved
  bool shares_gpu = false;        // with another rank, whose kernels a kernel that waits would keep out
  bool keeps = false;             // remote K/V of forward stay for backward
  std::vector<int> kept_slots;    // of forward passes whose backward has not come yet
  bool uses_shard = false;        // the K/V buffer is a stretch of the shard
  bool writes_gradients = false;  // and all of it, so that dk and dv need no sum

  DType local_dtype = DType::kFloat32;            // of the own part of gradients, RankScratch::dk_local and dv_local
  int64_t forward_bytes = 0, backward_bytes = 0;  // of RankScratch

  const RankPlan& plan() const { return base.rank_plan(); }
  const HeadConfig& heads() const { return base.plan->config.heads; }
  int64_t q_rows() const { return base.shape.seqlen_q; }
  int64_t kv_rows() const { return base.shape.seqlen_k; }
  int64_t device_bytes() const;  // that it holds
};

// In this order; `rank.base` and `rank.communicator` are set.
/// Which rows lie where, and what that makes unnecessary.
void prepare_layout(DeviceRank& rank, const DeviceDistOptions& options);
/// The transfers. Collective.
void prepare_passes(DeviceRank& rank, const DeviceDistOptions& options);
/// The masks of both passes, and what they need of tables and workspace. Throws NotAvailable for a DeviceOverlap that
/// cannot be.
void prepare_masks(DeviceRank& rank, const DeviceDistOptions& options);

/// The rank's K/V rows, local and remote, in global row order, during one pass.
struct KvViews {
  ConstTensorView k;
  ConstTensorView v;
  ConstTensorView k_shard;  // where LocalRows::stretches lie; empty where there are none
  ConstTensorView v_shard;
};
/// Opens the epoch of `setup`, if there are transfers, casts all stages and copies what kernels do not read from the
/// shard.
KvViews gather_rows(DeviceRank& rank, const PassSetup& setup, const RankScratch& scratch, const ConstTensorView& k,
                    const ConstTensorView& v, cudaStream_t stream);
/// The same rows where a forward pass kept them, in `slot`.
KvViews kept_rows(const DeviceRank& rank, int slot, const ConstTensorView& k, const ConstTensorView& v);

/// `options` for a kernel beside which transfers run.
AttnOptions beside_transfers(const DeviceRank& rank, const PassSetup& setup, AttnOptions options);
/// Lets later work on `stream` wait until the transfers of stages from `stage` on no longer wait for it, if the order
/// is by a barrier. Those of earlier stages have ended.
void start_transfers_first(const DeviceRank& rank, const PassSetup& setup, int stage, cudaStream_t stream);

/// `args.workspace` has forward_bytes or backward_bytes.
void run_forward(DeviceRank& rank, const DistForwardArgs& args, cudaStream_t stream);
void run_backward(DeviceRank& rank, const DistBackwardArgs& args, cudaStream_t stream);

}  // namespace tangram::device
