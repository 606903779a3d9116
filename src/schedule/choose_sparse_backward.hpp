// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Which backward calls end sooner with Q-stationary kernels that gather groups of keys than with KV-stationary ones.
#pragma once

#include <optional>
#include <span>

#include "schedule/group_work_tiles.hpp"
#include "schedule/kernel_table.hpp"
#include "schedule/work_list.hpp"
#include "tangram/attn_shape.hpp"
#include "tangram/slice.hpp"

namespace tangram::schedule {

/// Steps of the KV-stationary kernels, of all heads.
double kv_stationary_steps(const WorkList& work);

/// Choice of the backward kernel for a mask, or one mask per head group. Constructor arguments must outlive it.
class SparseBackwardChoice {
 public:
  SparseBackwardChoice(std::span<const std::span<const AttnSlice>> masks, const AttnShape& shape,
                       const KernelTable& kernels)
      : masks_(masks), shape_(shape), kernels_(kernels) {}

  /// The list of calls that are predicted to end sooner with these kernels than with `kv_stationary_steps` of the
  /// KV-stationary kernels. Empty for other calls, without such kernels, and if group_work_tiles() has no list.
  std::optional<GroupList> choose(double kv_stationary_steps) const;

  /// Choice without a work list; a result only if these kernels are clearly faster. Steps are counted as if tiles began
  /// at multiples of their rows, and tiles that follow the mask may be fewer. O(slices) for most masks, else of the
  /// tiles that slices touch.
  std::optional<GroupList> choose_early() const;
  /// Whether that may find one. O(slices).
  bool may_choose() const;

  /// Whether choose() is likely to find a list: blocks of whole groups of keys that fill tiles badly. O(slices).
  bool is_likely() const;

 private:
  int64_t num_tiles() const;
  bool are_groups() const;
  double visible_cells() const;
  double least_cost() const;
  double most_steps_kv_stationary() const;
  double estimate_steps_kv_stationary() const;
  std::optional<GroupList> choose(double least, double kv_stationary_steps, double least_gain) const;

  std::span<const std::span<const AttnSlice>> masks_;
  const AttnShape& shape_;
  const KernelTable& kernels_;
};

}  // namespace tangram::schedule
