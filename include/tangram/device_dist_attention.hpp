// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// DeviceDistAttention: executes a plan on one rank whose tensors lie in the memory of its GPU.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "tangram/attention.hpp"
#include "tangram/device_communicator.hpp"
#include "tangram/dist_attention.hpp"
#include "tangram/plan.hpp"

namespace tangram {

/// How a pass lays its transfers beside its kernels.
enum class DeviceOverlap : int {
  kAuto = 0,      ///< kSingleLaunch where transport and backend can and no two ranks share a GPU, else kStages
  kSingleLaunch,  ///< one kernel over all keys that waits inside for each tile of keys where it needs it. Ranks that
                  ///< share a GPU must leave each other room (AttnOptions::sm_margin), or they wait for ever
  kStages,        ///< one kernel a stage of the plan; rows of later stages travel meanwhile
  kNone,          ///< all rows first, then one kernel over all keys: what overlap is measured against
};
/// `auto`, `single_launch`, `stages`, `none`.
std::string_view to_string(DeviceOverlap overlap);

struct DeviceDistOptions {
  DeviceOverlap forward = DeviceOverlap::kAuto;
  DeviceOverlap backward = DeviceOverlap::kAuto;
  /// Also prepares backward(). Without it, memory of forward() alone is held.
  bool with_backward = true;
  /// Forward passes whose remote rows may be kept at one time, where the plan keeps any.
  int max_kept = 1;
  /// With a strategy that exchanges heads: the dtype of out, dq, dk and dv, in which they travel between the ranks of
  /// their heads and of their rows; the heads' dtype or float32, unset: the heads' dtype. Elsewhere not used.
  std::optional<DType> result_dtype = std::nullopt;
  /// There also: how many sinks of single rows (SinkLayout::kSsh) every call passes; they and their gradients travel
  /// with the heads. 0: calls have none, or sinks of all rows. Elsewhere not used.
  int64_t row_sinks = 0;
};

/// One rank's part in distributed attention by a plan, on one GPU: the counterpart of DistAttention for tensors in
/// device memory, by any strategy and movement. A pass only puts work on streams, never waits for the GPU and can be
/// captured in a CUDA graph. The object holds lists and tables; rows of peers land in memory of the communicator, and
/// passes compute in a workspace: the caller's, or one that the passes over a communicator share
/// (DeviceCommunicator::workspace).
///
/// NOTE [stream order]: a pass is ordered on the caller's stream like one kernel: it starts after what the stream holds
/// and has ended, transfers of this rank's rows included, before what is put on it next.
///
/// Passes of one object must be ordered on their streams; all ranks call the same passes of the same objects in the
/// same order. What goes wrong on the device, or at a peer, shows in DeviceCommunicator::check.
class DeviceDistAttention {
 public:
  /// Collective: throws InvalidArgument on every rank when ranks disagree on mask, config, dispatch or what travels
  /// with heads (result_dtype, row_sinks), when cp_size is not the communicator's size, or when queries move and the
  /// backend does not take delta (AttnBackend::takes_delta); NotAvailable for a
  /// kSingleLaunch or a LaunchOrder (OverlapConfig::launch_order) that cannot be. The current device must be the
  /// communicator's. `communicator` and `backend` must outlive the object.
  DeviceDistAttention(std::shared_ptr<const Plan> plan, DeviceCommunicator& communicator, const AttnBackend& backend,
                      const DeviceDistOptions& options = {});
  ~DeviceDistAttention();
  DeviceDistAttention(DeviceDistAttention&&) noexcept;
  DeviceDistAttention& operator=(DeviceDistAttention&&) noexcept;

  const Plan& plan() const;
  int rank() const;
  int64_t q_rows() const;  ///< rows of the rank's q shard
  int64_t k_rows() const;  ///< rows of the rank's k shard
  /// Device memory that the object holds beside the communicator's: lists and tables.
  int64_t device_bytes() const;
  /// What a pass computes in, DistForwardArgs::workspace; 0 for a backward pass that was not prepared.
  int64_t forward_workspace_bytes() const;
  int64_t backward_workspace_bytes() const;

  /// As DistAttention's, with every pointer of `args` in device memory, 16-byte aligned; k, v, dk and dv with
  /// contiguous rows, dk and dv contiguous. `stream` is a cudaStream_t. Arguments that do not fit throw InvalidArgument
  /// before anything is put on the stream, and abort the communicator where peers wait for this rank. `kept` must be
  /// given to both passes where the plan keeps remote K/V and to none elsewhere; the whole K/V buffer is then kept and
  /// nothing is cast in backward(). With other strategies, and where queries move, it may be given, alike on all ranks:
  /// where heads are exchanged, backward() then finds q, k, v, out and lse in the layout of heads; where queries move
  /// and both passes fetch the same rows, fetched q, k and v. Where queries move dout must have the heads' dtype.
  void forward(const DistForwardArgs& args, void* stream);
  void backward(const DistBackwardArgs& args, void* stream);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tangram
