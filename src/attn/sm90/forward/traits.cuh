// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Compile-time shape of a forward kernel, its shared-memory plan and the messages from producer to consumers.
#pragma once

#include <cstdint>

#include "attn/sm90/arrivals.cuh"
#include "attn/sm90/forward/launch.hpp"
#include "attn/sm90/forward/params.hpp"
#include "attn/sm90/key_stretches.cuh"

namespace tangram::sm90 {

/// What the consumers need to know about one K tile ("step"); written by the producer before it arrives on k_full.
struct alignas(16) StepMessage {
  uint32_t word[3];   ///< one for each warpgroup: its window, the flags below, the groups of keys to be masked
  int32_t k0;         ///< key of row 0 of the tile
  int32_t v_valid;    ///< with kStepTail: rows of the V tile from here on are nobody's and must not enter a product
  int32_t first_key;  ///< keys before it belong to the step before
  int32_t interval_begin;
  int32_t row_begin, row_end, slice_k_begin, slice_k_end;
  int32_t min_diag, max_diag, reserved[3];
};
static_assert(sizeof(StepMessage) == 64);

/// The rows of an item; written by the producer before it arrives on q_full.
template <bool kParts>
struct alignas(16) ItemRows {
  int32_t row0, num_rows;
  int32_t group;  ///< head group
};
template <>
struct alignas(16) ItemRows<true> {
  int32_t row0, num_rows;
  int32_t group;
  int32_t part_row;  ///< where the rows go in the workspace
};

// A step word: bits 0-7 and 8-15 are the window of the tile that the warpgroup works on, rows [16 * begin16, 16 *
// (begin16 + count16)) (count16 == 0: it sees nothing), then flags; bits 24-31 are the groups of 16 keys in which the
// row intervals cut something off.
inline constexpr uint32_t kStepSteady = 1u << 16;  // every row of the warpgroup sees some key of the window
inline constexpr uint32_t kStepFirst = 1u << 17;   // first step of an item: Q is needed
inline constexpr uint32_t kStepNewRun = 1u << 19;  // the row intervals have changed since they were read
inline constexpr uint32_t kStepTail = 1u << 20;    // v_valid counts
inline constexpr uint32_t kStepStop = 1u << 21;    // no more items
inline constexpr int kStepMaskShift = 24;
__device__ __forceinline__ uint32_t pack_window(int begin16, int count16) {
  return static_cast<uint32_t>(begin16) | (static_cast<uint32_t>(count16) << 8);
}
__device__ __forceinline__ int window_begin16(uint32_t word) { return static_cast<int>(word & 0xff); }
__device__ __forceinline__ int window_count16(uint32_t word) { return static_cast<int>(word >> 8 & 0xff); }

/// One unit of work on its way from the scheduler warp to the producer warp.
struct alignas(16) WorkMessage {
  TileItem item;
  int32_t group;
  int32_t stop;
  int32_t part_row;  ///< with kParts: where its rows go in the workspace
  int32_t reserved;
  TileRun first_run;
};
static_assert(sizeof(WorkMessage) == 80);

/// What the query rows of one warpgroup see of a run: something of [see_begin, see_end), all of [full_begin, full_end).
struct alignas(16) SeenKeys {
  int32_t see_begin, see_end, full_begin, full_end;
};

/// With kParts items may be parts of query tiles, whose rows go to a float32 workspace (PartParams). With kAnyDim head
/// dimensions may be smaller than those of the class: what TMA reads beyond them is zero, and what is written beyond
/// them is left out. Panels of shared memory are 64 columns wide, of which the last may be half used.
template <typename ElementT, int kDimQkT, int kDimVT, int kBlockNT, bool kSoftcapT, bool kPartsT, bool kAnyDimT>
struct ForwardConfig {
  using Element = ElementT;
  static constexpr int kDimQk = kDimQkT;
  static constexpr int kDimV = kDimVT;
  static constexpr ShapeClass kShape = shape_class(kDimQk, kDimV);
  static constexpr int kBlockM = 64 * kShape.forward_warpgroups;
  static constexpr int kBlockN = kBlockNT;
  static constexpr bool kSoftcap = kSoftcapT;
  static constexpr bool kParts = kPartsT;
  static constexpr bool kAnyDim = kAnyDimT;
  static constexpr bool kGathered = false;
  using Params = ForwardParams;
  static constexpr int kConsumers = kShape.forward_warpgroups;
  static constexpr int kThreads = 128 * (kConsumers + 1);
  static constexpr int kProducerRegisters = kShape.forward_service_registers;
  static constexpr int kConsumerRegisters = kShape.forward_consumer_registers;
  // One thread has not the registers for loads and messages.
  static constexpr bool kScribe = kConsumers == 3;
  static constexpr int kPanelsQk = (kDimQk + 63) / 64;
  static constexpr int kPanelsV = (kDimV + 63) / 64;
  static constexpr int kPanelBytesQ = kBlockM * 128;
  static constexpr int kPanelBytesK = kBlockN * 128;
  static constexpr int kBytesQ = kPanelsQk * kPanelBytesQ;
  static constexpr int kBytesK = kPanelsQk * kPanelBytesK;
  static constexpr int kBytesV = kPanelsV * kPanelBytesK;
  static constexpr int kWorkSlots = 2;
  static constexpr int kStagesQ = kShape.forward_stages_q;
  static constexpr int kStagesK = kShape.forward_stages_k;
  static constexpr int kStagesV = kShape.forward_stages_v;
  static constexpr bool kSecondLook = kShape.forward_second_look;
  static_assert(kDimQk % 32 == 0 && kDimV % 32 == 0 && kDimV <= kDimQk);  // rows of out are staged over Q
  static_assert(kBlockN % 16 == 0 && kBlockN <= 128 && kPanelBytesK % 1024 == 0);
};

/// For exactly this head_dim of q, k and v.
template <typename ElementT, int kHeadDimT, int kBlockNT, bool kSoftcapT, bool kPartsT = false>
struct ForwardTraits : ForwardConfig<ElementT, kHeadDimT, kHeadDimT, kBlockNT, kSoftcapT, kPartsT, false> {};

/// For any head dimensions of the class, for whole tiles and for parts.
template <typename ElementT, int kDimQkT, int kDimVT, bool kSoftcapT>
struct AnyDimForwardTraits
    : ForwardConfig<ElementT, kDimQkT, kDimVT, forward_tile_keys(kDimQkT, kDimVT, kSoftcapT), kSoftcapT, true, true> {};
/// Runs may be gathered (schedule::GatheredList), of which only the threads know that load and write messages.
template <typename Traits>
struct GatheredTraits : Traits {
  static constexpr bool kGathered = true;
  static constexpr bool kScribe = true;
  using Params = GatheredParams;
};

/// The keys of a step of a gathered run: params.groups from `first` on.
struct KeyGroups {
  int32_t first, count, kv_head;
};

template <bool kGathered>
struct PendingGroups {};
template <>
struct PendingGroups<true> {
  KeyGroups k, v;  // the loading thread's own, which has too few registers: of K, of the V to come (or 0)
};

template <typename Traits>
struct alignas(1024) ForwardSmem {
  alignas(1024) unsigned char q[Traits::kStagesQ][Traits::kBytesQ];
  alignas(1024) unsigned char k[Traits::kStagesK][Traits::kBytesK];
  alignas(1024) unsigned char v[Traits::kStagesV][Traits::kBytesV];
  StepMessage step[Traits::kStagesK];
  ItemRows<Traits::kParts> items[Traits::kStagesQ];
  RowInterval intervals[Traits::kBlockM];  // of the current run, written and read by the warp that owns the rows
  SeenKeys seen[Traits::kConsumers];       // the producer's own
  int4 stretch;                            // likewise: where the last tile of keys lay
  WorkMessage work[Traits::kWorkSlots];
  ArrivedKeys arrived;
  uint64_t q_full[Traits::kStagesQ], q_empty[Traits::kStagesQ];
  uint64_t k_full[Traits::kStagesK], k_empty[Traits::kStagesK];
  uint64_t v_full[Traits::kStagesV], v_empty[Traits::kStagesV];
  uint64_t work_full[Traits::kWorkSlots], work_empty[Traits::kWorkSlots];
  [[no_unique_address]] PendingGroups<Traits::kGathered> pending;
};

/// Stage and phase of a ring of kStages mbarriers.
template <int kStages>
struct RingPosition {
  int32_t stage = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

/// Where a thread is in the rings of K, V and Q.
template <typename Traits, bool kCounted = Traits::kConsumers == 3>
struct Rings {
  RingPosition<Traits::kStagesK> k;  // of the step at hand
  RingPosition<Traits::kStagesV> v;
  RingPosition<Traits::kStagesQ> q;  // of the item at hand
  bool open = false;                 // a consumer's: rows of an item wait to be finished
  __device__ __forceinline__ int k_stage() const { return k.stage; }
  __device__ __forceinline__ uint32_t k_phase() const { return k.phase; }
  __device__ __forceinline__ void advance_k() { k.advance(); }
  /// kAhead: by how much the V that is meant is ahead of the step at hand.
  template <int kAhead>
  __device__ __forceinline__ int v_stage() const {
    return v.stage;
  }
  template <int kAhead>
  __device__ __forceinline__ uint32_t v_phase() const {
    return v.phase;
  }
  __device__ __forceinline__ void advance_v() { v.advance(); }
  __device__ __forceinline__ int q_stage() const { return q.stage; }
  __device__ __forceinline__ uint32_t q_phase() const { return q.phase; }
  __device__ __forceinline__ void advance_q() { q.advance(); }
  __device__ __forceinline__ bool item_open() const { return open; }
  __device__ __forceinline__ void set_item_open() { open = true; }
  __device__ __forceinline__ void make_uniform() {}
};

/// The same in one register: rings of powers of two, and as many stages of V as of K, so that two counts say all, that
/// of the item in the lowest bits.
template <typename Traits>
struct Rings<Traits, true> {
  static constexpr uint32_t kItems = 2 * Traits::kStagesQ, kOpen = kItems, kStep = 2 * kItems;
  static_assert(Traits::kStagesK == Traits::kStagesV);
  static_assert((Traits::kStagesK & (Traits::kStagesK - 1)) == 0 && (Traits::kStagesQ & (Traits::kStagesQ - 1)) == 0);
  uint32_t count = 0;
  template <int kAhead>
  __device__ __forceinline__ uint32_t step() const {
    return count / kStep + static_cast<uint32_t>(kAhead);
  }
  __device__ __forceinline__ int k_stage() const { return v_stage<0>(); }
  __device__ __forceinline__ uint32_t k_phase() const { return v_phase<0>(); }
  __device__ __forceinline__ void advance_k() { count += kStep; }
  template <int kAhead>
  __device__ __forceinline__ int v_stage() const {
    return static_cast<int>(step<kAhead>() % Traits::kStagesV);
  }
  template <int kAhead>
  __device__ __forceinline__ uint32_t v_phase() const {
    return step<kAhead>() / Traits::kStagesV % 2;
  }
  __device__ __forceinline__ void advance_v() {}
  __device__ __forceinline__ int q_stage() const { return static_cast<int>(count % Traits::kStagesQ); }
  __device__ __forceinline__ uint32_t q_phase() const { return count / Traits::kStagesQ % 2; }
  __device__ __forceinline__ void advance_q() { count = (count & ~(kItems - 1)) | ((count + 1) & (kItems - 1)); }
  __device__ __forceinline__ bool item_open() const { return count & kOpen; }
  __device__ __forceinline__ void set_item_open() { count |= kOpen; }
  /// Lets the compiler know that all threads of the warp are at the same place.
  __device__ __forceinline__ void make_uniform() { count = __shfl_sync(0xffffffff, count, 0); }
};

}  // namespace tangram::sm90
