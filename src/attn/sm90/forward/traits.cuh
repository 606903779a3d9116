// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Compile-time shape of a forward kernel.
#pragma once

#include <cstdint>
#include <type_traits>

#include "attn/sm90/common/panels.cuh"
#include "attn/sm90/common/shapes.hpp"
#include "attn/sm90/forward/params.hpp"

namespace tangram::sm90 {

/// Configuration of the kernels. With kSplitKv work tiles may be parts of query tiles, whose rows go to a float32
/// workspace (PartParams). With kAnyDim head dims may be smaller than those of the class. TMA reads zeros beyond them,
/// and stores leave out columns beyond them. Panels of shared memory are 64 columns wide, of which the last may be half
/// used.
template <typename ElementT, int kDimQkT, int kDimVT, int kBlockNT, bool kSoftcapT, bool kPartsT, bool kAnyDimT,
          ForwardWorkTiles kWorkTilesT = ForwardWorkTiles::kPlain>
struct ForwardConfig : PanelSizes<kDimQkT, kDimVT, forward_tile_rows(kDimQkT, kDimVT, kWorkTilesT), kBlockNT> {
  using Element = ElementT;
  static constexpr int kDimQk = kDimQkT;
  static constexpr int kDimV = kDimVT;
  static constexpr ForwardShape kShape = forward_shape(kDimQk, kDimV, kWorkTilesT);
  static constexpr int kBlockM = 64 * kShape.warpgroups;
  static constexpr int kBlockN = kBlockNT;
  static constexpr bool kSoftcap = kSoftcapT;
  static constexpr bool kSplitKv = kPartsT;
  static constexpr bool kAnyDim = kAnyDimT;
  static constexpr ForwardWorkTiles kWorkTiles = kWorkTilesT;
  static constexpr bool kGathered = false;
  static constexpr bool kFetchesRuns = false;
  // The last rows of a work tile may be another one's, whole warpgroups of them.
  static constexpr bool kShortWorkTiles = false;
  using Params = ForwardParams;
  static constexpr int kConsumers = kShape.warpgroups;
  static constexpr int kThreads = 128 * (kConsumers + 1);
  static constexpr int kProducerRegisters = kShape.service_registers;
  static constexpr int kConsumerRegisters = kShape.consumer_registers;
  static constexpr bool kAnyGqaRatio = false;
  // One thread has not the registers for loads and messages.
  static constexpr bool kMetadataWarp = kConsumers == 3;
  static constexpr int kWorkSlots = 2;
  static constexpr int kStagesQ = kShape.stages_q;
  // With one stage Q is given back before its work tile ends, whose rows then do not leave through it.
  static constexpr bool kSingleStageQ = kStagesQ == 1;
  static constexpr int kStagesK = kShape.stages_k;
  static constexpr int kStagesV = kShape.stages_v;
  static constexpr bool kLazyRescale = kShape.lazy_rescale;
  static_assert(kDimQk % 32 == 0 && kDimV % 32 == 0 && kDimV <= kDimQk);  // rows of out are staged over Q
  static_assert(kBlockN % 16 == 0 && kBlockN <= 128);
};

/// Traits for exactly this head_dim of q, k and v.
template <typename ElementT, int kHeadDimT, int kBlockNT, bool kSoftcapT, bool kPartsT = false>
struct ForwardTraits : ForwardConfig<ElementT, kHeadDimT, kHeadDimT, kBlockNT, kSoftcapT, kPartsT, false> {};

/// Traits for any head dims of the class, for whole tiles and for split-KV parts.
template <typename ElementT, int kDimQkT, int kDimVT, bool kSoftcapT>
struct AnyDimForwardTraits
    : ForwardConfig<ElementT, kDimQkT, kDimVT, forward_tile_keys(kDimQkT, kDimVT, kSoftcapT), kSoftcapT, true, true> {};

/// Traits for calls with many work tiles.
template <typename ElementT, int kDimQkT, int kDimVT, bool kSoftcapT>
struct ManyForwardTraits
    : ForwardConfig<ElementT, kDimQkT, kDimVT, forward_tile_keys(kDimQkT, kDimVT, kSoftcapT, ForwardWorkTiles::kMany),
                    kSoftcapT, true, true, ForwardWorkTiles::kMany> {};

/// Like ForwardTraits, with the work tiles that a class uses for gathered runs alone.
template <typename ElementT, int kHeadDimT, int kBlockNT, bool kSoftcapT>
struct BlockForwardTraits
    : ForwardConfig<ElementT, kHeadDimT, kHeadDimT, kBlockNT, kSoftcapT, false, false, ForwardWorkTiles::kGathered> {};

/// Traits for work tiles of many runs. The thread that loads keys writes no messages and fetches the next run from
/// memory while one is loaded. A kernel of its own: the others are 0.5 % slower with that, some spill.
template <typename Traits>
struct FetchingTraits : Traits {
  static constexpr bool kFetchesRuns = true;
  static constexpr bool kMetadataWarp = true;
};

/// GQA ratio may be any number; a tile uses as many rows as fit. 192 rows: all with 3, 6 or 12 heads, 190 with 5 or 10,
/// 189 with 7. With 128 rows more would be lost than packing gains. A kernel of its own: that of powers of two is 1 %
/// slower with it.
template <typename Traits>
struct AnyPackTraits : Traits {
  static constexpr bool kAnyGqaRatio = true;
  static_assert(Traits::kPanelsQk == 1);  // panels of fewer rows would lie closer
};

/// Runs may be gathered (schedule::GatheredList), of which only the threads know that load and write messages.
template <typename Traits>
struct GatheredTraits : Traits {
  static constexpr bool kGathered = true;
  static constexpr bool kMetadataWarp = true;
  static constexpr bool kShortWorkTiles = Traits::kConsumers > 2;
  using Params = GatheredParams;
};

/// Work tiles that begin with blocks (ForwardWorkTiles::kAligned).
template <typename Element, int kHeadDim, bool kSoftcap>
using AlignedTraitsOf =
    GatheredTraits<ForwardTraits<Element, kHeadDim, forward_tile_keys(kHeadDim, kHeadDim, kSoftcap), kSoftcap>>;

/// Gathering traits of a class.
template <typename Element, int kHeadDim, bool kSoftcap>
using GatheredTraitsOf = GatheredTraits<std::conditional_t<
    (shape_class(kHeadDim, kHeadDim).forward_gathered.warpgroups > 0),
    BlockForwardTraits<Element, kHeadDim, forward_tile_keys(kHeadDim, kHeadDim, kSoftcap, ForwardWorkTiles::kGathered),
                       kSoftcap>,
    ForwardTraits<Element, kHeadDim, forward_tile_keys(kHeadDim, kHeadDim, kSoftcap), kSoftcap>>>;

}  // namespace tangram::sm90
