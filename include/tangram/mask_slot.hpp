// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What a backend derives from a mask (MaskMetadata), for which calls (MaskPart), and where it lies when calls read it
// (MaskSlot).
#pragma once

#include <cstdint>
#include <span>

#include "tangram/attn_shape.hpp"
#include "tangram/gpu_model.hpp"
#include "tangram/kv_ready_flags.hpp"
#include "tangram/local_kv_range.hpp"
#include "tangram/slice.hpp"
#include "tangram/tile_list.hpp"

namespace tangram {

/// Part of a mask that one kind of call reads. Parts are built apart, in any order: a forward call never waits for
/// lists of backward calls.
enum class MaskPart : uint8_t {
  kForward = 1,
  kBackward = 2,         ///< KV-stationary kernels
  kBackwardOrdered = 4,  ///< of deterministic calls, whose additions to dq have an order
  kBackwardSparse = 8,   ///< Q-stationary kernels that load chosen keys
};

/// A set of them.
class MaskParts {
 public:
  constexpr MaskParts() = default;
  constexpr MaskParts(MaskPart part) : bits_(static_cast<uint8_t>(part)) {}  // NOLINT(google-explicit-constructor)
  constexpr bool has(MaskPart part) const { return (bits_ & static_cast<uint8_t>(part)) != 0; }
  constexpr bool has_all(MaskParts parts) const { return (bits_ & parts.bits_) == parts.bits_; }
  constexpr bool empty() const { return bits_ == 0; }
  friend constexpr MaskParts operator|(MaskParts a, MaskParts b) {
    a.bits_ |= b.bits_;
    return a;
  }
  friend constexpr bool operator==(MaskParts, MaskParts) = default;

 private:
  uint8_t bits_ = 0;
};
constexpr MaskParts operator|(MaskPart a, MaskPart b) { return MaskParts(a) | MaskParts(b); }
inline constexpr MaskParts kBackwardParts = MaskPart::kBackward | MaskPart::kBackwardOrdered;

/// Options of backward calls that are known in advance and decide which mask part they read.
struct CallOptions {
  bool deterministic = false;
  /// Whether calls have no softcap, dsink, accumulation, scattered gradients or local K/V.
  bool plain = false;
  /// Keys may come after the launch. Such calls had better begin when all keys are there where their part is
  /// kBackwardSparse.
  bool awaits_keys = false;
};

/// Request of AttnBackend::build.
struct MaskRequest {
  /// One mask, or one for each of n equal head groups: mask g is of K/V heads [g * num_heads_kv / n, (g + 1) *
  /// num_heads_kv / n) and their query heads. Slices lie in the sequences and are disjoint.
  std::span<const std::span<const AttnSlice>> masks;
  AttnShape shape;  ///< of all heads
  /// One, or kBackwardParts.
  MaskParts parts = MaskPart::kForward;
  GpuModel gpu;  ///< AttnCaps::gpu of the device that calls run on
  /// Keys that may come after the launch, in the order in which they come, with at most AttnCaps::max_ready_flags
  /// distinct flags. Of one mask. The same for all parts of a slot.
  std::span<const KeyReadyFlag> ready_flags = {};
  /// Keys that calls find in k_local and v_local. The first and last AttnCaps::local_kv_halo keys of each range must be
  /// in k and v as well, since key tiles may reach beyond it. Other keys of the range need not be there. Of one mask.
  /// The same for all parts of a slot.
  std::span<const LocalKvRange> local_ranges = {};
  /// The padded slot that the metadata is for: of all its parts, whatever `parts` says. Null: for exact slots.
  const class MaskSlot* into = nullptr;
  /// Padded slot: number of keys whose gradients are stored; no slice may show keys behind them. Negative: all keys.
  int64_t num_keys = -1;
};

/// Data that a backend derives from masks, in host memory.
class MaskMetadata {
 public:
  explicit MaskMetadata(MaskParts parts) : parts_(parts) {}
  virtual ~MaskMetadata() = default;
  /// Mask parts held: those requested, or others that the same calls accept.
  MaskParts parts() const { return parts_; }

 private:
  MaskParts parts_;
};

/// Metadata of a mask where calls read it. An exact slot holds parts as large as they are. A padded slot has room for
/// any mask of a capacity. Calls that a CUDA graph captured read the mask that was installed last. What calls compute
/// in is not part of it. Used by one call at a time.
class MaskSlot {
 public:
  virtual ~MaskSlot() = default;
  /// Installed so far; of a padded slot, all parts of its capacity.
  MaskParts parts() const { return parts_; }
  /// Memory of a device that it holds.
  virtual int64_t device_bytes() const { return 0; }
  /// Memory of the host that it keeps as long as it lives.
  virtual int64_t host_bytes() const { return 0; }
  /// Padded slot: whether CUDA graphs that were captured with it may still be launched.
  virtual bool is_held_by_graphs() const { return false; }
  /// Throws InvalidArgument for a mask that the device has refused, as far as the host knows by now; once for each.
  /// Installing a mask and calls ask for themselves.
  virtual void check_errors() const {}

 protected:
  void add_parts(MaskParts parts) { parts_ = parts_ | parts; }

 private:
  MaskParts parts_;
};

}  // namespace tangram
