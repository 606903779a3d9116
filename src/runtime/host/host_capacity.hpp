// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Checks of a MaskBuffer on the host, which needs no capacity. It refuses what one on a GPU would, so that a program
// that runs without a GPU runs on one.
#pragma once

#include <optional>
#include <span>

#include "schedule/block_image.hpp"
#include "schedule/mask_image.hpp"
#include "tangram/attention.hpp"
#include "tangram/mask_data.hpp"

namespace tangram {

/// Room as lists of kernels of head_dim 128 have it on an H200. Not asked: what head dims and dtypes kernels take, and
/// whether calls are of the kind, deterministic or not, that lists are for.
class HostCapacity {
 public:
  /// Throws InvalidArgument for a capacity that a GPU's buffer cannot have.
  HostCapacity(const AttnShape& shape, const MaskCapacity& capacity);

  /// Throw InvalidArgument that names what exceeds the capacity: for the masks of all head groups, for data that has
  /// not been read, and for calls that block masks do not support.
  void check(std::span<const std::span<const AttnSlice>> masks) const;
  void check(const MaskData& data) const;
  void check(const AttnBackwardArgs& args) const;

 private:
  void check_lists(std::span<const AttnSlice> slices) const;

  AttnShape shape_;
  MaskCapacity capacity_;
  std::optional<schedule::BlockImageLayout> blocks_;  // of blocks that kernels gather, else:
  std::optional<schedule::ImageLayout> lists_;
};

}  // namespace tangram
