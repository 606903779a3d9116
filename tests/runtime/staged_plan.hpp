// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Small plans of Tangram's own strategy with given numbers of stages.
#pragma once

#include <memory>

#include "tangram/plan.hpp"

namespace tangram::testing {

inline HeadConfig heads_of(int num_heads_q, int num_heads_kv, DType dtype, int head_dim_v = 8) {
  return {num_heads_q, num_heads_kv, 8, head_dim_v, dtype};
}

inline std::shared_ptr<const Plan> plan_of(const Mask& mask, const HeadConfig& heads, int cp_size, int stages_fwd,
                                           int stages_bwd, bool keep = false, DType reduce_dtype = DType::kFloat32) {
  DistAttnConfig config;
  config.cp_size = cp_size;
  config.heads = heads;
  config.dispatch = {DispatchAlgorithm::kTangram, 10, 0};  // auto leaves short masks in sequence
  config.overlap = {stages_fwd, stages_bwd, keep};
  config.reduce_dtype = reduce_dtype;
  return std::make_shared<const Plan>(make_plan(mask, config));
}

}  // namespace tangram::testing
