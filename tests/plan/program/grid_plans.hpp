// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Plans of the strategies other than Tangram's own.
#pragma once

#include <memory>

#include "tangram/plan.hpp"

namespace tangram::testing {

inline constexpr Strategy kStrategies[] = {Strategy::kUlysses,   Strategy::kHcms, Strategy::kRing,
                                           Strategy::kAllGather, Strategy::kUsp,  Strategy::kLoongTrain,
                                           Strategy::kHybridCp};

/// MHA, GQA and MQA with heads that divide by cp_size where a strategy needs that; variant 3: GQA in which two ranks
/// share a K/V head.
inline HeadConfig heads_of(int cp_size, int variant, int head_dim, int head_dim_v, DType dtype = DType::kFloat32) {
  const int num_heads_q = 2 * cp_size;
  const int num_heads_kv = variant == 0                       ? num_heads_q
                           : variant == 1                     ? cp_size
                           : variant == 3 && cp_size % 2 == 0 ? cp_size / 2
                                                              : 1;
  return {num_heads_q, num_heads_kv, head_dim, head_dim_v, dtype};
}

inline std::shared_ptr<const Plan> plan_of(const Mask& mask, const HeadConfig& heads, int cp_size,
                                           const StrategyConfig& strategy, DType reduce_dtype = DType::kFloat32) {
  DistAttnConfig config;
  config.cp_size = cp_size;
  config.heads = heads;
  config.strategy = strategy;
  config.reduce_dtype = reduce_dtype;
  return std::make_shared<const Plan>(make_plan(mask, config));
}

}  // namespace tangram::testing
