// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What all tests of plans in which queries move share: plans, the planner's and random ones, and loops over them.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "runtime/dense_backend.hpp"
#include "runtime/host_steps.hpp"
#include "runtime/mask_families.hpp"
#include "runtime/movement_tables.hpp"
#include "runtime/step.hpp"
#include "support/sample.hpp"
#include "tangram/head_masks.hpp"

namespace tangram::testing {

inline DistAttnConfig config_of(int cp_size, const HeadConfig& heads, int head_groups = 1) {
  DistAttnConfig config;
  config.cp_size = cp_size;
  config.heads = heads;
  config.dispatch.chunk_size = 10;
  config.movement = {Movement::kQo, head_groups};
  return config;
}

inline std::shared_ptr<const Plan> plan_of(const Mask& mask, const DistAttnConfig& config) {
  return std::make_shared<const Plan>(make_plan(mask, config));
}

/// Another random assignment for each pass, or one for both where rows are kept.
inline std::shared_ptr<const Plan> random_plan(const Mask& mask, const DistAttnConfig& config, int num_stages,
                                               unsigned seed) {
  Plan plan = make_plan(mask, config);
  const int groups = config.movement.head_groups;
  const auto draw = [&](unsigned of_pass) {
    return RandomMovement(mask, plan.q_dispatch, plan.k_dispatch, groups, num_stages, of_pass).draw();
  };
  plan.tables = MovementPlan{groups, draw(seed), draw(seed + 1)};
  if (config.overlap.keep_remote_kv) plan.movement()->backward = plan.movement()->forward;
  return std::make_shared<const Plan>(std::move(plan));
}

/// Executes a plan over its ranks.
using MovementStep = std::function<StepResults(std::shared_ptr<const Plan>, const StepOptions&, const StepInputs&)>;

/// Plans of every algorithm, in which queries move unless moving K/V alone is as good, and drawn ones (one in three
/// under sanitizers), of a sample of numbers of ranks and kinds of heads, against one rank. `heads_of(variant)`: MHA,
/// GQA and MQA.
inline void expect_movement_close(const NamedMask& family, std::span<const int> cp_sizes,
                                  const std::function<HeadConfig(int)>& heads_of, const MovementStep& step) {
  const Mask& mask = family.mask;
  const DenseBackend backend;
  support::Sample sample(4, number_of(family));
  for (int variant = 0; variant < 3; ++variant) {
    StepOptions options;
    options.heads = heads_of(variant);
    options.seqlen_sink = variant;
    options.sink_layout = variant == 1 ? SinkLayout::kSsh : SinkLayout::kSh;
    const StepInputs inputs = make_inputs(mask, options);
    const StepResults expected = single_step(mask, options, inputs, backend);
    for (const int cp_size : cp_sizes) {
      // Groups of heads with the K/V heads that they belong to.
      const int groups = cp_size % 2 == 0 ? options.heads.num_heads_kv : 1;
      SCOPED_TRACE(::testing::Message() << "cp_size " << cp_size << ", K/V heads " << options.heads.num_heads_kv
                                        << ", groups " << groups);
      const DistAttnConfig config = config_of(cp_size, options.heads, groups);
      for (const Movement algorithm : {Movement::kQo, Movement::kAuto, Movement::kGreedyRandomGrid,
                                       Movement::kBinaryGreedy, Movement::kNetworkFlow}) {
        if (!sample.takes_next()) continue;
        SCOPED_TRACE(to_string(algorithm));
        DistAttnConfig planned = config;
        planned.movement = {algorithm, algorithm == Movement::kAuto ? 0 : groups};
        expect_close(step(plan_of(mask, planned), options, inputs), expected, kFloat32Tolerance);
      }
      if (support::kSanitized && (cp_size + variant) % 3 != 0) continue;
      const auto drawn = random_plan(mask, config, 2 + cp_size % 3, static_cast<unsigned>(7 * cp_size + variant));
      expect_close(step(drawn, options, inputs), expected, kFloat32Tolerance);
    }
  }
}

/// The heads of one group out of another result.
inline void take_heads(StepResults& to, const StepResults& from, int group, int groups) {
  const auto take = [&](HostTensor& target, const HostTensor& source) {
    const int count = target.heads() / groups;
    for (int64_t row = 0; row < target.rows(); ++row) {
      for (int head = group * count; head < (group + 1) * count; ++head) {
        for (int d = 0; d < target.dim(); ++d) target.set(row, head, d, static_cast<float>(source.at(row, head, d)));
      }
    }
  };
  take(to.out, from.out);
  take(to.lse, from.lse);
  take(to.dq, from.dq);
  take(to.dk, from.dk);
  take(to.dv, from.dv);
  const size_t count = to.max_logits.size() / static_cast<size_t>(groups);
  for (size_t head = static_cast<size_t>(group) * count; head < static_cast<size_t>(group + 1) * count; ++head) {
    to.max_logits[head] = from.max_logits[head];
  }
}

/// A mask for each group of heads, against one rank a group. Two groups and four must divide the K/V heads.
inline void expect_head_groups_close(std::span<const int> cp_sizes, const HeadConfig& heads, const MovementStep& step) {
  const DenseBackend backend;
  const std::vector<Mask> all = {causal_mask(kSeqlen, kSeqlen), sliding_window_mask(kSeqlen, {20, 5}),
                                 varlen_mask(std::vector<int64_t>{0, 17, 90, 91, 160, 240}, true),
                                 full_mask(kSeqlen, kSeqlen)};
  for (const int groups : {2, 4}) {
    const std::vector<Mask> masks(all.begin(), all.begin() + groups);
    StepOptions options;
    options.heads = heads;
    const StepInputs inputs = make_inputs(masks[0], options);
    StepResults expected = single_step(masks[0], options, inputs, backend);
    for (int g = 1; g < groups; ++g) {
      take_heads(expected, single_step(masks[static_cast<size_t>(g)], options, inputs, backend), g, groups);
    }
    for (const int cp_size : cp_sizes) {
      for (const Movement algorithm : {Movement::kKv, Movement::kQo, Movement::kAuto}) {
        SCOPED_TRACE(::testing::Message() << groups << " groups, cp_size " << cp_size << ", " << to_string(algorithm));
        DistAttnConfig config = config_of(cp_size, options.heads, 0);
        config.movement.algorithm = Movement::kKv;
        const Plan rows = make_plan(all[2], config);
        config.movement.algorithm = algorithm;
        const auto plan = std::make_shared<const Plan>(make_plan(masks, config, rows.q_dispatch, rows.k_dispatch));
        expect_close(step(plan, options, inputs), expected, kFloat32Tolerance);
      }
    }
  }
}

}  // namespace tangram::testing
