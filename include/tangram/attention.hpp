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
#include "tangram/kv_ready_flags.hpp"
#include "tangram/local_kv_range.hpp"
#include "tangram/mask_capacity.hpp"
#include "tangram/mask_data.hpp"
#include "tangram/slice.hpp"
#include "tangram/tensor.hpp"
#include "tangram/tile_list.hpp"

namespace tangram {

/// Extra keys without values: they enter `lse` and so scale `out` down. Empty when `seqlen_sink == 0`.
struct Sink {
  const float* data = nullptr;
  int64_t seqlen_sink = 0;
  SinkLayout layout = SinkLayout::kSh;

  bool empty() const { return seqlen_sink == 0; }
};

/// What forward and backward share. Scores are `s = softmax_scale * q.k`, then `softcap * tanh(s / softcap)` if softcap
/// > 0. Scores may be as large as float32 holds. A backward pass on the CPU is exact for any lse below 2^23 if the call
/// has all keys of a row that matter. If several stages or ranks share them, probabilities are off by up to half a step
/// of lse in float32, 4e-3 at 1e5. From 2^23 on lse does not tell them apart, and gradients that need them become NaN.
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

/// Memory of the device in which a call computes, of any content, aligned to 256 bytes. None: the backend finds its
/// own, which the calls on a device share.
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
  /// Keys of AttnBackend::prepare_ready_flags may still be on their way: the call waits for each where it needs it.
  /// Null: all keys are there. Only where can_wait_for_keys().
  const KvReadyFlags* ready_flags = nullptr;
  /// Tensors that hold the keys of AttnBackend::prepare_local_kv, `[rows, num_heads_kv, dim]` with as many rows as
  /// those need, or empty: all keys are read from k and v. Only where supports_local_kv().
  ConstTensorView k_local;
  ConstTensorView v_local;
  /// At least AttnBackend::forward_workspace_bytes, or none.
  AttnWorkspace workspace;
  /// In place of AttnBackend::prepare_local_kv: a table that AttnBackend::write_local_kv_table wrote, in memory(), read
  /// when the call runs. Null: none. Keys of it lie in k_local and v_local, which must be given.
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
  /// Where the rows of dk and dv go one by one. Only where can_wait_for_keys(), and without accumulate_dkv.
  DkvScatterMap places;
  /// Precomputed rowsum(dout * out), [seqlen_q, num_heads_q], or null. If given, `out` is not read and may be empty, so
  /// that a rank which computes rows of another rank need not fetch their out. Only where takes_delta().
  const float* delta = nullptr;
  /// At least AttnBackend::backward_workspace_bytes, or none.
  AttnWorkspace workspace;
  const void* local_kv_table = nullptr;  // as in AttnForwardArgs
  /// A cudaEvent_t, or null: what reads keys and values waits for it on the device; what reads queries, out and dout
  /// alone need not. Only with masks of make_buffer() without block_size.
  void* keys_ready = nullptr;
};

/// What a backend derives from a slice list once and reuses in every call (on GPUs: uploaded tile lists). What calls
/// compute in is not part of it. Used by one call at a time.
class PreparedMask {
 public:
  virtual ~PreparedMask() = default;
  /// Memory of a device that it holds.
  virtual int64_t device_bytes() const { return 0; }
  /// Memory of the host that it keeps as long as it lives.
  virtual int64_t host_bytes() const { return 0; }
  /// Of AttnBackend::make_buffer: whether CUDA graphs that were captured with it may still be launched.
  virtual bool is_held_by_graphs() const { return false; }
};

class TokenAttention;

/// Where tensors lie.
enum class MemoryKind : int { kHost = 0, kDevice = 1 };

/// Attention on one device. Calls are ordered on `stream` (a cudaStream_t; null and ignored on the CPU, where they
/// return when done). All views and pointers of a call lie in memory().
class AttnBackend {
 public:
  virtual ~AttnBackend() = default;

  /// `cpu`, `reference`, `sm90`, ...
  virtual std::string_view name() const = 0;

  /// Where all views and pointers of a call must lie. Who passes tensors on (DistAttention, the Python package) refuses
  /// a backend of the other kind; a backend itself cannot see it from a pointer. See AttnBackendOptions::host_memory.
  virtual MemoryKind memory() const { return MemoryKind::kHost; }

  /// The tiles for which the caller must build a tile list, or nothing when the backend works on slices directly.
  virtual std::optional<TileShape> tile_shape(const AttnShape& shape) const = 0;

  /// Validates shape and slices (disjoint, within the sequences). `tiles` is null where tile_shape() is empty, and may
  /// be null where forward() will not be called.
  /// Throws InvalidArgument for what the backend cannot do, naming what it can.
  virtual std::unique_ptr<PreparedMask> prepare(std::span<const AttnSlice> slices, const AttnShape& shape,
                                                const TileList* tiles) const = 0;

  /// Whether calls can wait for keys that are still on their way.
  virtual bool can_wait_for_keys() const { return false; }

  /// Declares which keys of a prepared mask may arrive after the launch, in order of arrival, with at most kMaxKeyFlags
  /// distinct flags. Once, after prepare() and before prepare_backward(), and only where can_wait_for_keys().
  virtual void prepare_ready_flags(PreparedMask& /*mask*/, std::span<const KeyReadyFlag> /*arrivals*/) const {}
  static constexpr int kMaxKeyFlags = 64;

  /// Heuristic: whether calls of these slices are so much faster with all keys present that transfers should complete
  /// before the kernel starts.
  virtual bool wants_all_keys(std::span<const AttnSlice> /*slices*/, const AttnShape& /*shape*/) const { return false; }

  /// Whether calls can read keys from other tensors than k and v.
  virtual bool supports_local_kv() const { return false; }

  /// Says which keys of a prepared mask calls find in k_local and v_local, in disjoint ranges. The first and
  /// last kLocalKvHalo keys of each must be in k and v as well, since tiles of keys may reach beyond it; all others
  /// need not be. Once, after prepare(), and only where supports_local_kv().
  virtual void prepare_local_kv(PreparedMask& /*mask*/, std::span<const LocalKvRange> /*stretches*/) const {}
  static constexpr int kLocalKvHalo = 127;

  /// The same for calls whose ranges change under them, as masks of make_buffer() do:
  /// AttnForwardArgs::local_kv_table. Bytes of the table of `seqlen_k` keys, 0: there are none; and the table, into
  /// memory of the host that is aligned to 16. Throws InvalidArgument for ranges that overlap or lie outside.
  virtual int64_t local_kv_table_bytes(int64_t /*seqlen_k*/) const { return 0; }
  virtual void write_local_kv_table(std::span<const LocalKvRange> /*stretches*/, int64_t /*seqlen_k*/,
                                    std::byte* /*to*/) const {}

  /// Whether backward() can be given AttnBackwardArgs::delta.
  virtual bool takes_delta() const { return false; }

  /// As tile_shape, for backward(): rows are keys and keys are queries.
  virtual std::optional<TileShape> backward_tile_shape(const AttnShape& /*shape*/) const { return std::nullopt; }

  /// Completes a prepared mask for such calls of backward() with the tile list of its transposed slices. Once, or once
  /// for each kind, before its first call, and only where backward_tile_shape() is not empty.
  virtual void prepare_backward(PreparedMask& /*mask*/, const TileList& /*transposed_tiles*/,
                                BackwardCalls /*calls*/ = BackwardCalls::kBoth) const {}

  /// Makes now what backward() would make at its first call; for backends without tile lists.
  virtual void index_backward(PreparedMask& /*mask*/) const {}

  /// Whether one call can be for head groups that see different cells: prepare_head_masks().
  virtual bool takes_head_masks() const { return false; }

  /// As prepare(), with the mask of each of n = `slices.size()` groups of heads: group g has the K/V heads [g *
  /// num_heads_kv / n, (g + 1) * num_heads_kv / n) and their query heads. `tiles`: as many, or none where forward()
  /// will not be called. Calls are as those of one mask. Keys come in time and lie in k and v: neither
  /// prepare_ready_flags() nor prepare_local_kv() takes such a mask. Throws InvalidArgument for what the backend cannot
  /// do, a number of masks that does not divide num_heads_kv, and where takes_head_masks() is false.
  virtual std::unique_ptr<PreparedMask> prepare_head_masks(std::span<const std::span<const AttnSlice>> /*slices*/,
                                                           const AttnShape& /*shape*/,
                                                           std::span<const TileList> /*tiles*/) const {
    throw InvalidArgument("AttnBackend::prepare_head_masks: needs a backend that takes head masks (got another)");
  }

  /// As prepare_backward(), with the list of each mask.
  virtual void prepare_backward_head_masks(PreparedMask& /*mask*/, std::span<const TileList> /*transposed_tiles*/,
                                           BackwardCalls /*calls*/ = BackwardCalls::kBoth) const {}

  /// In place of both, for masks of which it is clear without transposed lists that kernels which need none are the
  /// faster ones: prepares for these, and returns whether. Calls for which takes_gathered() is false still need
  /// prepare_backward().
  virtual bool prepare_gathered_backward(PreparedMask& /*mask*/) const { return false; }
  virtual bool takes_gathered(const PreparedMask& /*mask*/, const AttnBackwardArgs& /*args*/) const { return false; }

  /// What a call with this mask needs as its workspace; 0: none. That of backward() is known once prepare_backward()
  /// was called, and suffices for the calls that it was called for so far.
  virtual int64_t forward_workspace_bytes(const PreparedMask& /*mask*/) const { return 0; }
  virtual int64_t backward_workspace_bytes(const PreparedMask& /*mask*/) const { return 0; }

  /// Whether lists of masks can change under captured calls: make_buffer() and set_mask().
  virtual bool has_buffers() const { return false; }

  /// In place of prepare() and prepare_backward(): room for the lists of any mask of the shape that fits `capacity`.
  /// Calls take the mask that was set last, in stream order, captured ones when they run; they read keys elsewhere by a
  /// table of the call alone, wait for none, and are deterministic just as `capacity` says. May allocate and wait.
  /// Throws InvalidArgument for what the backend cannot do, and where has_buffers() is false.
  virtual std::unique_ptr<PreparedMask> make_buffer(const AttnShape& /*shape*/,
                                                    const MaskCapacity& /*capacity*/) const {
    throw InvalidArgument("AttnBackend::make_buffer: needs a backend that has buffers (got another)");
  }

  /// Puts a mask of the buffer's shape into a buffer by one copy on `stream`, which must not be being captured, behind
  /// all calls that read the mask before. Allocates no memory of the device, and waits only where the copies of several
  /// earlier masks have not run yet. Of keys from `num_keys` on, which no slice may show, gradients need not be stored.
  /// Throws InvalidArgument, before anything is enqueued, for a mask that does not fit.
  virtual void set_mask(PreparedMask& /*buffer*/, std::span<const AttnSlice> /*slices*/, int64_t /*num_keys*/,
                        void* /*stream*/) const {
    throw InvalidArgument("AttnBackend::set_mask: needs a backend that has buffers (got another)");
  }

  /// The same of masks for a buffer of blocks, one for each of its head groups, without tile lists.
  virtual void set_block_masks(PreparedMask& /*buffer*/, std::span<const std::span<const AttnSlice>> /*masks*/,
                               void* /*stream*/) const {
    throw InvalidArgument("AttnBackend::set_block_masks: needs a backend that has buffers (got another)");
  }

  /// The same of a mask that lies in the memory of the device, by kernels on `stream`: no host waits for it, and it may
  /// be captured but for the first time, when it allocates. A mask that turns out to be wrong shows nothing, and
  /// check_refused() tells. Throws InvalidArgument, before anything is enqueued, for what can be seen without the data.
  virtual void set_mask_data(PreparedMask& /*buffer*/, const MaskData& /*data*/, void* /*stream*/) const {
    throw InvalidArgument("AttnBackend::set_mask_data: needs a backend that has buffers (got another)");
  }
  /// Throws InvalidArgument for a mask that the device has refused, as far as the host knows by now; once for each.
  /// Setting a mask and calls ask for themselves.
  virtual void check_refused(const PreparedMask& /*buffer*/) const {}

  /// Attention over keys that are named one by one (token_attention.hpp), or null: the backend has none. Lives as long
  /// as the backend.
  virtual const TokenAttention* token_attention() const { return nullptr; }

  /// Validates the arguments against the prepared shape and throws InvalidArgument before anything is computed.
  virtual void forward(PreparedMask& mask, const AttnForwardArgs& args, void* stream = nullptr) const = 0;
  virtual void backward(PreparedMask& mask, const AttnBackwardArgs& args, void* stream = nullptr) const = 0;
};

}  // namespace tangram
