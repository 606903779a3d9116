// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// DistAttention: executes a plan on one rank, forward and backward, with a communicator and an attention backend.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "tangram/attention.hpp"
#include "tangram/attn_pass.hpp"
#include "tangram/communicator.hpp"
#include "tangram/plan.hpp"
#include "tangram/tensor.hpp"

namespace tangram {

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
  /// Where DeviceDistAttention keeps them instead: a slot of its landing buffers.
  int device_slot = -1;
  /// Remote K and V. A strategy that exchanges heads keeps q, k, v, out, lse and sinks of single rows, if there are
  /// any, of each of its chunks of heads, all rows; a plan in which queries move the rows of q, k and v that it
  /// fetched.
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
  /// Of DeviceDistAttention: at least forward_workspace_bytes(), or none.
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
  /// Of DeviceDistAttention: at least backward_workspace_bytes(), or none.
  AttnWorkspace workspace;
};

/// What happened on this rank. `kTransfer` runs beside the others: from the moment all ranks had posted the operation
/// to its end.
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

/// What a pass allocated beside its arguments, counted where it is allocated: rows of others, partial gradients,
/// float32 results. Not what the backend and the communicator take.
struct MemoryUse {
  int64_t remote_kv_rows = 0;  // rows of K (and as many of V) that other ranks own
  int64_t buffer_bytes = 0;    // of all that it allocated
  /// Of what there was at one time, when it was most: with what a forward pass keeps, and a backward pass was given of
  /// it. Plan::peak_bytes says what it comes to.
  int64_t peak_bytes = 0;
};

/// One rank's part in distributed attention by a plan. Memory of q, k, v and of all results is the host's, and so must
/// the backend's be.
///
/// NOTE [overlap]: the group_cast of the next stage is posted before a stage computes. Backward, the dk and dv of a
/// stage travel while later stages compute. For the order of the stages see NOTE [kept stage] in plan.hpp; when the
/// plan keeps a stage but the caller passes no KeptKv, backward casts it like the others.
class DistAttention {
 public:
  /// Collective: throws InvalidArgument on every rank when ranks disagree on mask, config or dispatch, or when cp_size
  /// is not the communicator's size. `communicator` and `backend` must outlive the object.
  DistAttention(std::shared_ptr<const Plan> plan, Communicator& communicator, const AttnBackend& backend);
  ~DistAttention();
  DistAttention(DistAttention&&) noexcept;
  DistAttention& operator=(DistAttention&&) noexcept;

  const Plan& plan() const;
  int rank() const;
  int64_t q_rows() const;  ///< rows of the rank's q shard
  int64_t k_rows() const;  ///< rows of the rank's k shard

  /// Collective. Arguments that do not fit throw InvalidArgument, on every rank when anything would be sent, and
  /// nothing is computed. Any other error aborts the communicator.
  void forward(const DistForwardArgs& args);
  void backward(const DistBackwardArgs& args);

  /// Events of the last forward and the last backward pass, in the order in which the calling thread came to them.
  const std::vector<TraceEvent>& trace() const;
  /// Of the last pass.
  MemoryUse memory_use() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tangram
