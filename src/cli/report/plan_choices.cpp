// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/report/plan_choices.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cli/plan_summary.hpp"
#include "cli/text_table.hpp"

namespace tangram::cli {

namespace {

PlanChoice choice_of(const Plan& plan) {
  return {plan.algorithm,
          plan.q_dispatch.chunk_size,
          plan.balance(),
          plan.rows_moved(),
          plan.predicted.forward_s + plan.predicted.backward_s,
          plan.predicted.exposed_s};
}

}  // namespace

std::vector<PlanChoice> compare_choices(const Plan& plan) {
  std::vector<PlanChoice> choices{choice_of(plan)};
  for (const DispatchAlgorithm algorithm :
       {DispatchAlgorithm::kSequential, DispatchAlgorithm::kZigzag, DispatchAlgorithm::kMinHeap,
        DispatchAlgorithm::kSortedSequential, DispatchAlgorithm::kTangram}) {
    if (algorithm == plan.algorithm || plan.cp_size() == 1) continue;
    DistAttnConfig config = plan.config;
    config.dispatch.algorithm = algorithm;
    choices.push_back(choice_of(make_plan(plan.mask, config)));
  }
  std::stable_sort(choices.begin(), choices.end(),
                   [](const PlanChoice& a, const PlanChoice& b) { return a.step_s < b.step_s; });
  return choices;
}

std::vector<std::string> plan_reasons(const Plan& plan) {
  std::vector<std::string> reasons = strategy_reasons(plan);
  const DistAttnConfig& config = plan.config;
  const std::string name(to_string(plan.algorithm));
  if (plan.cp_size() == 1) return {"One rank holds everything; nothing moves."};
  reasons.push_back(
      config.dispatch.algorithm == DispatchAlgorithm::kAuto
          ? fmt::format("Dispatch {}: of sequential, zigzag and tangram, those that balance best or within "
                        "2 % (areas are exact, rates are not), then the least predicted step time.",
                        name)
          : fmt::format("Dispatch {}: as asked for.", name));
  reasons.push_back(fmt::format("Rows: {}, {}.", chunks_text(plan.q_dispatch),
                                config.dispatch.chunk_size == 0 ? "chosen by the planner" : "as asked for"));
  for (const bool forward : {true, false}) {
    const size_t num_remote = (forward ? plan.ranks[0].forward : plan.ranks[0].backward).size() - 1;
    const int asked = forward ? config.overlap.num_stages_fwd : config.overlap.num_stages_bwd;
    reasons.push_back(fmt::format("{}: {} remote stage{}, {}.", forward ? "Forward" : "Backward", num_remote,
                                  num_remote == 1 ? "" : "s",
                                  asked > 0         ? "as asked for"
                                  : num_remote == 0 ? "because no rank needs rows of another"
                                                    : "the number with the least predicted time"));
  }
  for (const StrategyCandidate& candidate : plan.candidates) {
    const double step_s = candidate.predicted.forward_s + candidate.predicted.backward_s;
    reasons.push_back(fmt::format("Strategy {}: {}.", describe(candidate.strategy),
                                  candidate.impossible.empty() ? fmt::format("{} predicted", seconds_text(step_s))
                                                               : "not possible, " + candidate.impossible));
  }
  const double total = plan.predicted.forward_s + plan.predicted.backward_s;
  reasons.push_back(fmt::format("Transfers that no compute hides: {} of {} predicted.",
                                seconds_text(plan.predicted.exposed_s), seconds_text(total)));
  reasons.push_back(fmt::format("Predicted {}.", constants_text(plan.config)));
  return reasons;
}

}  // namespace tangram::cli
