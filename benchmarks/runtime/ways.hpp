// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The ways of distributing attention that bench_dist_gpu compares, by name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tangram/config.hpp"
#include "tangram/dist_attention.hpp"

namespace tangram::bench {

struct Way {
  StrategyConfig strategy;
  Movement movement = Movement::kKv;
  int num_stages = 1;
  bool keeps_rows = false;   ///< Tangram: remote K/V stay for the backward pass
  bool keeps_heads = false;  ///< strategies that exchange heads: q, k, v, out and lse stay
  DeviceOverlap overlap = DeviceOverlap::kAuto;
};

/// Tangram's own: `none`, `single:STAGES`, `keep:STAGES`, `stages:STAGES`; `move:NAME` where queries may move.
/// Others: the name of a strategy, its numbers after slashes (`hcms/1/2/1`: chunks of K/V heads, `usp/2`: head ranks,
/// `loong_train/2/2`: head ranks, inner ring), then `:none` for transfers that nothing hides, or `:keep`. Throws
/// InvalidArgument for anything else.
Way parse_way(std::string_view name);

/// Names of the ways of a table of all strategies.
std::vector<std::string> ways_of_all_strategies();

}  // namespace tangram::bench
