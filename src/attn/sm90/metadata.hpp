// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What the Hopper kernels read of a mask, as build() leaves it in memory of the host.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "attn/sm90/key_sources.hpp"
#include "attn/sm90/tiles_to_gather.hpp"
#include "schedule/block_image.hpp"
#include "schedule/group_work_tiles.hpp"
#include "schedule/head_lists.hpp"
#include "schedule/split_or_gather.hpp"
#include "schedule/work_list.hpp"
#include "tangram/mask_slot.hpp"

namespace tangram::sm90 {

/// Of one mask. `chosen` points to the lists before it.
struct ForwardMetadata final : MaskMetadata {
  ForwardMetadata(TileList list, const MaskRequest& request);

  TileList tiles;
  TilesToGather gatherable;
  schedule::SplitOrGathered chosen;
  KeySources sources;
};

/// Of masks of head groups.
struct HeadForwardMetadata final : MaskMetadata {
  HeadForwardMetadata(schedule::HeadLists of, ForwardWorkTiles kind)
      : MaskMetadata(MaskPart::kForward), lists(std::move(of)), gathered_work_tiles(kind) {}

  schedule::HeadLists lists;
  ForwardWorkTiles gathered_work_tiles;
};

/// Lists for KV-stationary kernels, and for Q-stationary ones where these are faster.
struct BackwardMetadata final : MaskMetadata {
  BackwardMetadata(MaskParts parts, schedule::WorkList list, std::optional<schedule::GroupList> groups, KeySources of)
      : MaskMetadata(groups ? parts | MaskPart::kBackwardSparse : parts),
        work(std::move(list)),
        sparse(std::move(groups)),
        sources(std::move(of)) {}

  schedule::WorkList work;
  std::optional<schedule::GroupList> sparse;
  KeySources sources;
};

struct SparseMetadata final : MaskMetadata {
  explicit SparseMetadata(schedule::GroupList list)
      : MaskMetadata(MaskPart::kBackwardSparse), groups(std::move(list)) {}

  schedule::GroupList groups;
};

/// For a ListBuffer; what its capacity is not for is empty.
struct ListBufferMetadata final : MaskMetadata {
  ListBufferMetadata(MaskParts parts, TileList tiles, schedule::WorkList work)
      : MaskMetadata(parts), forward(std::move(tiles)), backward(std::move(work)) {}

  TileList forward;
  schedule::WorkList backward;
};

/// For a BlockBuffer, of each head group.
struct BlockBufferMetadata final : MaskMetadata {
  BlockBufferMetadata(MaskParts parts, std::vector<schedule::BlockMask> of)
      : MaskMetadata(parts), masks(std::move(of)) {}

  std::vector<schedule::BlockMask> masks;
};

}  // namespace tangram::sm90
