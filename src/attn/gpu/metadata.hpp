// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What GPU kernels read of a mask, as build() leaves it in memory of the host.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "attn/gpu/key_sources.hpp"
#include "schedule/block_image.hpp"
#include "schedule/forward_lists.hpp"
#include "schedule/group_work_tiles.hpp"
#include "schedule/work_list.hpp"
#include "tangram/mask_slot.hpp"

namespace tangram::gpu {

struct ForwardMetadata final : MaskMetadata {
  ForwardMetadata(schedule::ForwardLists of, KeySources keys)
      : MaskMetadata(MaskPart::kForward), lists(std::move(of)), sources(std::move(keys)) {}

  schedule::ForwardLists lists;
  KeySources sources;
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

/// Metadata for a ListBuffer; parts that its capacity lacks are empty.
struct ListBufferMetadata final : MaskMetadata {
  ListBufferMetadata(MaskParts parts, TileList tiles, schedule::WorkList work)
      : MaskMetadata(parts), forward(std::move(tiles)), backward(std::move(work)) {}

  TileList forward;
  schedule::WorkList backward;
};

/// Metadata for a BlockBuffer, one mask for each head group.
struct BlockBufferMetadata final : MaskMetadata {
  BlockBufferMetadata(MaskParts parts, std::vector<schedule::BlockMask> of)
      : MaskMetadata(parts), masks(std::move(of)) {}

  std::vector<schedule::BlockMask> masks;
};

}  // namespace tangram::gpu
