// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// DistAttention: executes a plan on one rank, forward and backward, with a communicator and an attention backend, in
// the memory in which the backend works.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "tangram/attention.hpp"
#include "tangram/attn_pass.hpp"
#include "tangram/communicator.hpp"
#include "tangram/plan.hpp"
#include "tangram/tensor.hpp"

namespace tangram {

class DeviceCommunicator;

/// The rows of `rank`'s shard out of the whole tensor, `[dispatch.seqlen(), heads, dim]` -> `[rows_per_rank, heads,
/// dim]` of the same dtype. Local: no rank is asked. Throws InvalidArgument for shapes that do not fit.
void dispatch_rows(const Dispatch& dispatch, int rank, const ConstTensorView& global, const TensorView& shard);
/// The way back: every rank passes its shard and gets the whole tensor. Collective.
void undispatch_rows(const Dispatch& dispatch, Communicator& communicator, const ConstTensorView& shard,
                     const TensorView& global);
/// Global row of each row of `rank`'s shard.
std::vector<int64_t> position_ids(const Dispatch& dispatch, int rank);

/// How the gradient of a sink that all ranks share (SinkLayout::kSh) is combined over ranks.
enum class DsinkReduce : int { kNone = 0, kSum = 1, kAvg = 2 };

/// Remote K/V that a forward pass leaves to its backward pass (OverlapConfig::keep_remote_kv): the compact rows of its
/// last stage. Empty when there was nothing to keep.
struct KeptKv {
  KeptKv() = default;
  KeptKv(KeptKv&&) = default;  // moved only, as tensors are
  KeptKv& operator=(KeptKv&&) = default;

  /// True after a forward pass that kept its rows, also on a rank that had none to keep.
  bool valid = false;
  /// Where they are kept on GPUs instead: a slot of the receive buffers.
  int device_slot = -1;
  /// Remote K and V. A strategy that exchanges heads keeps all rows of q, k, v, out, lse and per-row sinks, for each of
  /// its chunks of heads. A plan with QO communication keeps the rows of q, k and v that it fetched.
  std::vector<HostTensor> tensors;
};

/// Operands of a forward pass on one rank. Rows are those of the rank's q and k shards.
struct DistForwardArgs {
  ConstTensorView q;            // [q shard rows, num_heads_q, head_dim], dtype of the plan's config.heads
  ConstTensorView k;            // [k shard rows, num_heads_kv, head_dim]
  ConstTensorView v;            // [k shard rows, num_heads_kv, head_dim_v]
  TensorView out;               // [q shard rows, num_heads_q, head_dim_v], dtype of q or float32
  float* lse = nullptr;         // [q shard rows, num_heads_q]
  float* max_logits = nullptr;  // [num_heads_q] or null, alike on every rank: the maximum over all ranks
  Sink sink;                    // kSh: the same on every rank; kSsh: [q shard rows, seqlen_sink, num_heads_q]
  /// Where to keep remote K/V, or null. Alike on every rank.
  KeptKv* kept = nullptr;
  AttnOptions options;
  /// Workspace on GPUs: at least forward_workspace_bytes(), or none.
  AttnWorkspace workspace;
};

struct DistBackwardArgs {
  ConstTensorView q;
  ConstTensorView k;
  ConstTensorView v;
  ConstTensorView out;         // as forward left it
  const float* lse = nullptr;  // as forward left it
  ConstTensorView dout;        // like out
  TensorView dq;               // like q, its dtype or float32; overwritten, as dk and dv
  TensorView dk;
  TensorView dv;
  float* dsink = nullptr;  // in the sink's layout or null, alike on every rank; overwritten
  Sink sink;
  DsinkReduce dsink_reduce = DsinkReduce::kSum;  // kSsh gradients belong to rows and are never reduced
  const KeptKv* kept = nullptr;                  // what the forward pass kept, or null. Alike on every rank
  AttnOptions options;
  /// Workspace on GPUs: at least backward_workspace_bytes(), or none.
  AttnWorkspace workspace;
};

/// Kind of an event on this rank. `kTransfer` runs beside the others: from the moment all ranks had posted the
/// operation to its end.
enum class TraceKind : int {
  kCopyLocal = 0,  ///< own K/V rows into the buffer
  kPostCast,
  kWaitCast,
  kTransferCast,
  kCompute,
  kPostReduce,
  kWaitReduce,
  kTransferReduce,
  kAllReduce,  ///< max logits, dsink
  kFinish,     ///< conversion to the output dtypes
};
std::string_view to_string(TraceKind kind);

/// Seconds on the steady clock, comparable between the ranks of one host.
struct TraceEvent {
  TraceKind kind = TraceKind::kCompute;
  AttnPass pass = AttnPass::kForward;
  int stage = 0;
  double begin_s = 0;
  double end_s = 0;
};

/// Bytes that a pass allocated beside its arguments: rows of others, partial gradients, float32 results. Not what the
/// backend and the communicator take.
struct MemoryUse {
  int64_t remote_kv_rows = 0;  // rows of K (and as many of V) that other ranks own
  int64_t buffer_bytes = 0;    // of all that it allocated
  /// Largest number of bytes allocated at one time, with what a forward pass keeps for the backward pass.
  /// Plan::peak_bytes says what it comes to.
  int64_t peak_bytes = 0;
};

/// How a pass on GPUs lays its transfers beside its kernels.
enum class DeviceOverlap : int {
  kAuto = 0,      ///< kSingleLaunch where transport and backend can and no two ranks share a GPU, or kNone where all
                  ///< ranks' masks are such as AttnBackend::backward_part loads chosen keys of; else kStages
  kSingleLaunch,  ///< one kernel over all keys that waits inside for each tile of keys where it needs it. Ranks that
                  ///< share a GPU must leave each other room (AttnOptions::sm_margin), or they wait for ever
  kStages,        ///< one kernel a stage of the plan; rows of later stages move meanwhile
  kNone,          ///< all rows first, then one kernel over all keys: what overlap is measured against
};
/// `auto`, `single_launch`, `stages`, `none`.
std::string_view to_string(DeviceOverlap overlap);

/// Options for which passes on GPUs are prepared. Unused on host memory, where every call has options of its own.
struct DistAttentionOptions {
  DeviceOverlap forward = DeviceOverlap::kAuto;
  DeviceOverlap backward = DeviceOverlap::kAuto;
  /// Whether backward() is prepared too. If not, memory of forward() alone is held.
  bool with_backward = true;
  /// Forward passes whose remote rows may be kept at one time, where the plan keeps any.
  int max_kept = 1;
  /// Strategies that exchange heads: dtypes in which out, and dq, dk and dv, move between the ranks of their heads and
  /// of their rows. The heads' dtype or float32. Unset: the heads' dtype, and as out. Elsewhere not used.
  std::optional<DType> result_dtype = std::nullopt;
  std::optional<DType> grad_dtype = std::nullopt;
  /// There also: how many sinks of single rows (SinkLayout::kSsh) every call passes; they and their gradients move
  /// with the heads. 0: calls have none, or sinks of all rows. Elsewhere not used.
  int64_t row_sinks = 0;
};

/// One rank's part in distributed attention by a plan, by any strategy and movement. q, k, v and all results are in the
/// memory in which the backend works. It is the host's if ranks use a Communicator, and that of the rank's GPU if they
/// use a DeviceCommunicator.
///
/// NOTE [overlap]: the group_cast of the next stage is posted before a stage computes. Backward, the dk and dv of a
/// stage move while later stages compute. For the order of the stages see NOTE [kept stage] in plan.hpp. If the plan
/// keeps a stage but the caller passes no KeptKv, backward casts it like the others. On GPUs see DeviceOverlap.
///
/// NOTE [stream order]: on GPUs a pass only puts work on streams, never waits for the GPU and can be captured in a CUDA
/// graph. On the caller's stream it is ordered like one kernel. It starts after earlier work of the stream; later work
/// of the stream starts after its end, transfers of this rank's rows included. Passes of one object must be ordered on
/// their streams; all ranks call the same passes of the same objects in the same order. What goes wrong on the device,
/// or at a peer, shows in DeviceCommunicator::check.
class DistAttention {
 public:
  /// Collective: throws InvalidArgument on every rank if ranks disagree on mask, config or dispatch, or if cp_size is
  /// not the communicator's size. It throws too if the backend works on memory of the other kind, or lacks
  /// AttnCaps::delta for QO communication. `communicator` and `backend` must outlive the object.
  DistAttention(std::shared_ptr<const Plan> plan, Communicator& communicator, const AttnBackend& backend,
                const DistAttentionOptions& options = {});
  /// Like the constructor above, on the GPU of the communicator, which must be the current device. Holds lists and
  /// tables there; receive buffers are memory of the communicator. InvalidArgument also if ranks disagree on what moves
  /// with heads (result_dtype, grad_dtype, row_sinks), and for dtypes that are neither the heads' nor float32.
  /// NotAvailable for a kSingleLaunch or a LaunchOrder (OverlapConfig::launch_order) that is impossible, and in a build
  /// without CUDA.
  DistAttention(std::shared_ptr<const Plan> plan, DeviceCommunicator& communicator, const AttnBackend& backend,
                const DistAttentionOptions& options = {});
  ~DistAttention();
  DistAttention(DistAttention&&) noexcept;
  DistAttention& operator=(DistAttention&&) noexcept;

  const Plan& plan() const;
  int rank() const;
  int64_t q_rows() const;  ///< rows of the rank's q shard
  int64_t k_rows() const;  ///< rows of the rank's k shard
  /// Device memory that the object holds beside the communicator's: lists and tables. 0 on hosts.
  int64_t device_bytes() const;
  /// Whether ranks meet to make it, even where the communicator has memory enough. On GPUs not for plans that move K/V
  /// alone and keep none, where ranks agree without meeting (DeviceCommunicator::agreement). Alike on all ranks.
  bool met_peers() const;
  /// Workspace bytes of a pass on GPUs: of DistForwardArgs::workspace, or without one a workspace that the passes over
  /// a communicator share (DeviceCommunicator::workspace). 0 on hosts, and for a backward pass that was not prepared.
  /// Queries about the backward pass, and device_bytes(), wait for its lists, which another thread may still be making.
  /// They throw the error of that thread.
  int64_t forward_workspace_bytes() const;
  int64_t backward_workspace_bytes() const;

  /// Collective. On hosts `stream` is ignored. Arguments that do not fit throw InvalidArgument, on every rank if
  /// anything would be sent, and nothing is computed. Any other error aborts the communicator.
  ///
  /// On GPUs `stream` is a cudaStream_t, and every pointer of `args` is in device memory, 16-byte aligned. Rows of k,
  /// v, dk and dv are contiguous, dk and dv as a whole. Arguments that do not fit throw InvalidArgument before anything
  /// is put on the stream, and abort the communicator where peers wait for this rank. `kept` must be given to both
  /// passes if the plan keeps remote K/V, and to none otherwise. The whole K/V buffer is then kept and nothing is cast
  /// in backward(). With other strategies, and with QO communication, it is optional, alike on all ranks. If heads are
  /// exchanged, backward() then finds q, k, v, out and lse in the layout of heads. With QO communication, if both
  /// passes fetch the same rows, it finds the fetched q, k and v. Where queries move dout must have the heads' dtype.
  void forward(const DistForwardArgs& args, void* stream = nullptr);
  void backward(const DistBackwardArgs& args, void* stream = nullptr);

  /// Events of the last forward and the last backward pass, in the order in which the calling thread came to them. None
  /// on GPUs, where only the device knows when a pass runs.
  const std::vector<TraceEvent>& trace() const;
  /// Memory of the last pass. Zeros on GPUs, where passes allocate nothing. They use device_bytes, the workspace's
  /// bytes, and DeviceCommunicator::shared_bytes for all objects together. With DeviceCommunicatorConfig::exact_memory
  /// that is what their layouts say.
  MemoryUse memory_use() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tangram
