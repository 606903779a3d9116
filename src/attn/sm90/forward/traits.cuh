// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Compile-time shape of a forward kernel, its shared-memory plan and the messages from producer to consumers.
#pragma once

#include <cstdint>

#include "attn/sm90/forward/params.hpp"

namespace tangram::sm90 {

/// What the consumers need to know about one K tile ("step"); written by the producer before it arrives on k_full.
struct alignas(16) StepMessage {
  int32_t flags;
  int32_t k0;          ///< key of row 0 of the tile
  uint32_t window[2];  ///< a warpgroup's part of the tile, see pack_window
  int32_t row0;        ///< first query row of the item
  int32_t num_rows;
  int32_t group;    ///< head group
  int32_t v_valid;  ///< rows of the V tile from here on are nobody's and must not enter a product
  int32_t row_begin, row_end, slice_k_begin, slice_k_end;
  int32_t min_diag, max_diag, interval_begin, reserved;
};
static_assert(sizeof(StepMessage) == 64);

inline constexpr int32_t kStepFirst = 1;   // first step of an item: Q is needed
inline constexpr int32_t kStepLast = 2;    // last step of an item
inline constexpr int32_t kStepNewRun = 4;  // the row intervals change
inline constexpr int32_t kStepStop = 8;    // no more items

/// One unit of work on its way from the scheduler warp to the producer warp.
struct alignas(16) WorkMessage {
  TileItem item;
  int32_t group;
  int32_t stop;
  int32_t reserved[2];
  TileRun first_run;
};
static_assert(sizeof(WorkMessage) == 80);

template <typename ElementT, int kHeadDimT, int kBlockNT, int kStagesT, bool kSoftcapT>
struct ForwardTraits {
  using Element = ElementT;
  static constexpr int kHeadDim = kHeadDimT;
  static constexpr int kBlockM = 128;
  static constexpr int kBlockN = kBlockNT;
  static constexpr int kStages = kStagesT;
  static constexpr bool kSoftcap = kSoftcapT;
  static constexpr int kConsumers = kBlockM / 64;
  static constexpr int kThreads = 128 * (kConsumers + 1);
  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = 232;
  static constexpr int kPanels = kHeadDim / 64;
  static constexpr int kPanelBytesQ = kBlockM * 128;
  static constexpr int kPanelBytesK = kBlockN * 128;
  static constexpr int kBytesQ = kPanels * kPanelBytesQ;
  static constexpr int kBytesK = kPanels * kPanelBytesK;
  static constexpr int kWorkSlots = 3;
  static_assert(kHeadDim % 64 == 0 && kBlockN % 16 == 0 && kPanelBytesK % 1024 == 0);
};

template <typename Traits>
struct alignas(1024) ForwardSmem {
  alignas(1024) unsigned char q[Traits::kBytesQ];
  alignas(1024) unsigned char k[Traits::kStages][Traits::kBytesK];
  alignas(1024) unsigned char v[Traits::kStages][Traits::kBytesK];
  StepMessage step[Traits::kStages];
  WorkMessage work[Traits::kWorkSlots];
  uint64_t q_full, q_empty;
  uint64_t k_full[Traits::kStages], k_empty[Traits::kStages];
  uint64_t v_full[Traits::kStages], v_empty[Traits::kStages];
  uint64_t work_full[Traits::kWorkSlots], work_empty[Traits::kWorkSlots];
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

/// A warpgroup's window of a K tile: rows [16 * begin16, 16 * (begin16 + count16)); count16 == 0: it sees nothing.
__device__ __forceinline__ uint32_t pack_window(int begin16, int count16, bool masked) {
  return static_cast<uint32_t>(begin16) | (static_cast<uint32_t>(count16) << 8) | (masked ? 1u << 16 : 0u);
}

}  // namespace tangram::sm90
