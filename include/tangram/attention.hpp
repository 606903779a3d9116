// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Attention on one device over a list of slices: the interface that every backend (reference, cpu, sm90) implements.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "tangram/attn_pass.hpp"
#include "tangram/attn_shape.hpp"
#include "tangram/dkv_scatter_map.hpp"
#include "tangram/error.hpp"
#include "tangram/gpu_model.hpp"
#include "tangram/kv_ready_flags.hpp"
#include "tangram/local_kv_range.hpp"
#include "tangram/mask_capacity.hpp"
#include "tangram/mask_data.hpp"
#include "tangram/mask_slot.hpp"
#include "tangram/slice.hpp"
#include "tangram/tensor.hpp"

namespace tangram {

/// Extra keys without values: they enter `lse` and so scale `out` down. Empty when `seqlen_sink == 0`.
struct Sink {
  const float* data = nullptr;
  int64_t seqlen_sink = 0;
  SinkLayout layout = SinkLayout::kSh;

  bool empty() const { return seqlen_sink == 0; }
};

/// Options shared by forward and backward. Scores are `s = softmax_scale * q.k`, then `softcap * tanh(s / softcap)` if
/// softcap > 0. Scores may be as large as float32 holds. A backward pass on the CPU is exact for any lse below 2^23 if
/// the call has all keys of a row that matter. If several stages or ranks share them, probabilities are off by up to
/// half a step of lse in float32, 4e-3 at 1e5. From 2^23 on lse does not tell them apart, and gradients that need them
/// become NaN.
struct AttnOptions {
  /// Unset: 1 / sqrt(head_dim). Must be finite and positive.
  std::optional<float> softmax_scale;
  /// 0: none. Must be finite and not negative.
  float softcap = 0;
  /// Bitwise equal results from run to run.
  bool deterministic = false;
  /// Multiprocessors to leave free for others; ignored on the CPU.
  int sm_margin = 0;
};

/// Device memory for a call, of any content, aligned to 256 bytes. None: the backend uses memory of its own, which all
/// calls on a device share.
struct AttnWorkspace {
  void* data = nullptr;
  int64_t bytes = 0;
};

struct AttnForwardArgs {
  ConstTensorView q;            // [seqlen_q, num_heads_q, head_dim]
  ConstTensorView k;            // [seqlen_k, num_heads_kv, head_dim]
  ConstTensorView v;            // [seqlen_k, num_heads_kv, head_dim_v]
  TensorView out;               // [seqlen_q, num_heads_q, head_dim_v], dtype of q or float32
  float* lse = nullptr;         // [seqlen_q, num_heads_q], natural log, -inf where a row sees nothing
  float* max_logits = nullptr;  // [num_heads_q] or null: largest visible score before softcap, -inf if none
  /// Applied once, at the end of this call. Over several stages pass it to the last one only.
  Sink sink;
  /// Continues from the previous `out` (must be float32), `lse` and `max_logits`: the result is that of all keys seen
  /// so far. Otherwise they are overwritten, rows that see nothing included.
  bool accumulate = false;
  AttnOptions options;
  /// Keys of MaskRequest::ready_flags may still be on their way: the call waits for each where it needs it. Null: all
  /// keys are there. Only where AttnCaps::max_ready_flags is positive.
  const KvReadyFlags* ready_flags = nullptr;
  /// Tensors that hold the keys of MaskRequest::local_ranges, `[rows, num_heads_kv, dim]` with as many rows as those
  /// need, or empty: all keys are read from k and v. Only where AttnCaps::local_kv_halo is not negative.
  ConstTensorView k_local;
  ConstTensorView v_local;
  /// At least AttnBackend::workspace_bytes, or none.
  AttnWorkspace workspace;
  /// Local K/V table instead of MaskRequest::local_ranges, written by write_local_kv_table() (local_kv_table.hpp) in
  /// memory(). Read when the call runs; null: none. Keys of it lie in k_local and v_local, which must be given.
  const void* local_kv_table = nullptr;
};

struct AttnBackwardArgs {
  ConstTensorView q;
  ConstTensorView k;
  ConstTensorView v;
  ConstTensorView out;         // final out, after all stages and the sink
  const float* lse = nullptr;  // final lse
  ConstTensorView dout;        // [seqlen_q, num_heads_q, head_dim_v]
  TensorView dq;               // like q, its dtype or float32
  TensorView dk;               // like k, its dtype or float32
  TensorView dv;               // like v, its dtype or float32
  /// Gradient of the sink, float32, in the sink's layout, or null. Overwritten; summed over rows for kSh.
  float* dsink = nullptr;
  Sink sink;
  /// Accumulates into `dq` (must be float32) instead of overwriting it, to sum over stages. Overwriting writes all
  /// rows: fully masked rows, and keys that no query sees, become zero.
  bool accumulate_dq = false;
  /// Adds to dk and dv (must be float32) instead of overwriting them. Rows that no slice sees are neither read nor
  /// written: those of other stages may be under way to another rank.
  bool accumulate_dkv = false;
  AttnOptions options;
  const KvReadyFlags* ready_flags = nullptr;  // these three as in AttnForwardArgs
  ConstTensorView k_local;
  ConstTensorView v_local;
  /// Where the rows of dk and dv go one by one. Only where AttnCaps::max_ready_flags is positive, and
  /// without accumulate_dkv.
  DkvScatterMap places;
  /// Precomputed rowsum(dout * out), [seqlen_q, num_heads_q], or null. If given, `out` is not read and may be empty, so
  /// that a rank which computes rows of another rank need not fetch their out. Only where AttnCaps::delta.
  const float* delta = nullptr;
  /// At least AttnBackend::workspace_bytes, or none.
  AttnWorkspace workspace;
  const void* local_kv_table = nullptr;  // as in AttnForwardArgs
  /// A cudaEvent_t, or null: what reads keys and values waits for it on the device; what reads queries, out and dout
  /// alone need not. Only with padded slots without block_size.
  void* keys_ready = nullptr;
};

/// Call options that the arguments imply.
CallOptions call_options(const AttnBackwardArgs& args);

class TokenAttention;

/// Where tensors lie.
enum class MemoryKind : int { kHost = 0, kDevice = 1 };

/// Capabilities of a backend.
struct AttnCaps {
  /// `cpu`, `reference`, `sm90`, ...
  std::string_view name;
  /// Where all views and pointers of a call must lie. Who passes tensors on (DistAttention, the Python package) refuses
  /// a backend of the other kind; a backend itself cannot see it from a pointer. See AttnBackendOptions::host_memory.
  MemoryKind memory = MemoryKind::kHost;
  GpuModel gpu;             ///< of the current device, if one is there
  bool delta = false;       ///< AttnBackwardArgs::delta
  bool head_masks = false;  ///< one call for head groups that see different cells
  bool padded_slots = false;
  /// Keys on their way that a call can wait for, counted by flags; 0: all must be there. Where it is positive, calls
  /// can also store gradients row by row: AttnBackwardArgs::places.
  int max_ready_flags = 0;
  /// Halo of local K/V, in keys, as in MaskRequest::local_ranges; negative: calls read all keys from k and v.
  int local_kv_halo = -1;
};

/// Attention on one device. Calls are ordered on `stream` (a cudaStream_t; null and ignored on the CPU, where they
/// return when done). All views and pointers of a call lie in memory().
///
/// A mask becomes calls in three steps. build() derives metadata on the host, install() puts them into a slot,
/// forward() and backward() read the slot.
class AttnBackend {
 public:
  virtual ~AttnBackend() = default;

  virtual AttnCaps caps() const = 0;
  std::string_view name() const { return caps().name; }
  MemoryKind memory() const { return caps().memory; }

  /// Throws InvalidArgument for a shape that the backend cannot do, naming what it can.
  virtual void check(const AttnShape& /*shape*/) const {}

  /// Mask part that backward calls of these masks and options read. A guess from the slices: build() may find another
  /// part to be better.
  virtual MaskPart backward_part(std::span<const std::span<const AttnSlice>> /*masks*/, const AttnShape& /*shape*/,
                                 const CallOptions& call) const {
    return call.deterministic ? MaskPart::kBackwardOrdered : MaskPart::kBackward;
  }

  /// Derives the metadata of a mask. May run on any thread and calls no runtime of the device. Throws InvalidArgument
  /// for what the backend cannot do.
  virtual std::unique_ptr<MaskMetadata> build(const MaskRequest& request) const = 0;

  /// An exact slot, or a padded one for any masks of `capacity`. A padded slot may allocate and wait. Its calls wait
  /// for no keys, read local K/V by a table of the call alone, and are deterministic just as `capacity` says. Throws
  /// InvalidArgument for what the backend cannot do, NotAvailable where its device is missing.
  virtual std::unique_ptr<MaskSlot> make_slot(const AttnShape& shape, const MaskCapacity* capacity = nullptr) const = 0;

  /// Installs metadata in a slot. Exact slot: adds the parts, or replaces them; calls of other parts may be made
  /// meanwhile. `stream` is ignored. Into a padded slot: one copy on `stream`, which must not be capturing, behind all
  /// calls that read the mask before. Allocates no device memory; waits only if the copies of several earlier masks
  /// have not run yet. Throws InvalidArgument, before anything is enqueued, for a mask that does not fit.
  virtual void install(MaskSlot& slot, std::unique_ptr<MaskMetadata> metadata, void* stream = nullptr) const = 0;

  /// Installs a mask in device memory in a padded slot, by kernels on `stream`. No host waits for it, and it may be
  /// captured but for the first time, when it allocates. A mask that turns out to be wrong shows nothing, and
  /// MaskSlot::check_errors() tells. Throws InvalidArgument, before anything is enqueued, for what can be seen without
  /// the data.
  virtual void install_device(MaskSlot& /*slot*/, const MaskData& /*data*/, void* /*stream*/) const {
    throw InvalidArgument("AttnBackend::install_device: needs a backend with padded slots (got another)");
  }

  /// Workspace bytes of a call; 0: none. For `pass`, and the parts of it that are installed.
  virtual int64_t workspace_bytes(const MaskSlot& /*slot*/, AttnPass /*pass*/) const { return 0; }

  /// Validates the arguments against the slot's shape and throws InvalidArgument before anything is computed; also for
  /// a slot without the part that the call reads.
  virtual void forward(MaskSlot& slot, const AttnForwardArgs& args, void* stream = nullptr) const = 0;
  virtual void backward(MaskSlot& slot, const AttnBackwardArgs& args, void* stream = nullptr) const = 0;

  /// Attention over keys that are named one by one (token_attention.hpp), or null: the backend has none. Lives as long
  /// as the backend.
  virtual const TokenAttention* token_attention() const { return nullptr; }
};

/// Options of one mask slot, so of the calls with one mask.
struct SlotOptions {
  std::span<const KeyReadyFlag> ready_flags = {};
  std::span<const LocalKvRange> local_ranges = {};
  AttnPasses passes = AttnPasses::kBoth;
};

/// An exact slot with what the calls of `passes` read of a mask: of backward() both deterministic calls and others.
/// Throws InvalidArgument for slices that meet or lie outside, and what AttnBackend::build throws.
std::unique_ptr<MaskSlot> make_mask_slot(const AttnBackend& backend, std::span<const AttnSlice> slices,
                                         const AttnShape& shape, const SlotOptions& options = {});

}  // namespace tangram
