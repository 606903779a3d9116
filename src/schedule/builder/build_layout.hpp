// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Where lists of masks that a GPU builds are worked on.
#pragma once

#include <cstddef>
#include <cstdint>

#include "schedule/builder/blocks.hpp"
#include "schedule/builder/places.hpp"
#include "schedule/mask_image.hpp"
#include "tangram/gpu_model.hpp"

namespace tangram::schedule::builder {

/// Layout of the images and the workspace of a build: sizes follow from shape and capacity alone.
class BuildLayout {
 public:
  /// `forward`, `backward`: as those of the layout.
  BuildLayout(const ImageLayout& image, const AttnShape& shape, const TileShape& forward, const TileShape& backward,
              const MaskCapacity& capacity, const GpuModel& gpu);

  /// Bytes of the builder's workspace, which must begin as zeros.
  size_t bytes() const { return bytes_; }
  int64_t max_slices() const { return build_.max_slices; }

  /// Build in these two pieces of memory, aligned to 256.
  SortBuild at(std::byte* memory, std::byte* image) const;

 private:
  template <class Place>
  void place(SortBuild& build, const Place& place) const;

  ImageLayout image_;
  SortBuild build_;  // without pointers
  size_t bytes_ = 0;
};

/// Where the bitmap of blocks lies: lines of `blocks`, whose block is known, get their lengths and, unless `memory` is
/// null, their places in it. Returns how many bytes they need.
size_t place_blocks(Blocks& blocks, const AttnShape& shape, std::byte* memory);

}  // namespace tangram::schedule::builder
