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

// Choices that are predicted to be faster, by more than rounding.
void append_faster(const Plan& plan, const std::vector<PlanChoice>& choices, std::vector<std::string>& reasons) {
  constexpr double kNoticeable = 1e-3;
  const double step_s = plan.predicted.forward_s + plan.predicted.backward_s;
  for (const PlanChoice& choice : choices) {
    if (choice.algorithm == plan.algorithm || choice.step_s >= step_s * (1 - kNoticeable)) continue;
    const std::string option(to_string(choice.algorithm));
    reasons.push_back(fmt::format(
        "{} comes out {:.1f} % faster, {}{}. --dispatch {} takes it.", option, 100 * (1 - choice.step_s / step_s),
        seconds_text(choice.step_s),
        choice.balance > plan.balance() + 0.02
            ? fmt::format(", with {:.2f} times the mean work on one rank, which leaves the time to how right the rates "
                          "are",
                          choice.balance)
            : ", now that its stages are made, which is done for the chosen one only",
        option));
  }
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

std::vector<std::string> plan_reasons(const Plan& plan, const std::vector<PlanChoice>& choices) {
  std::vector<std::string> reasons = strategy_reasons(plan);
  const DistAttnConfig& config = plan.config;
  const std::string name(to_string(plan.algorithm));
  if (plan.cp_size() == 1) return {"One rank holds everything; nothing moves."};
  reasons.push_back(
      config.dispatch.algorithm == DispatchAlgorithm::kAuto
          ? fmt::format(
                "Dispatch {}: of sequential, zigzag and tangram the least time that was estimated before stages "
                "are made. Work above 1.02 times the mean counts twice: areas are exact, rates are "
                "not.",
                name)
          : fmt::format("Dispatch {}: as asked for.", name));
  append_faster(plan, choices, reasons);
  reasons.push_back(fmt::format("Rows: {}, {}.", chunks_text(plan.q_dispatch),
                                config.dispatch.chunk_size == 0 ? "chosen by the planner" : "as asked for"));
  for (const bool forward : {true, false}) {
    const size_t num_remote = (forward ? plan.ranks()[0].forward : plan.ranks()[0].backward).size() - 1;
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
