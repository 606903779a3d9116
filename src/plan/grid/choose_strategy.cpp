// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/grid/choose_strategy.hpp"

#include <algorithm>
#include <limits>
#include <optional>

#include "plan/grid/grid_cost.hpp"
#include "plan/grid/sub_ring_layout.hpp"
#include "plan/runs.hpp"
#include "tangram/error.hpp"

namespace tangram {

namespace {

constexpr const char* kFunction = "make_plan";

// Visible cells between the queries of one rank and the keys of another. Row groups are ranks that are neighbours, and
// all shapes assign rows alike, so that the areas of every shape are sums of these.
class RankAreas {
 public:
  RankAreas(const Mask& mask, const Dispatch& q_dispatch, const Dispatch& k_dispatch)
      : cp_size_(static_cast<size_t>(q_dispatch.cp_size)), areas_(cp_size_ * cp_size_) {
    const std::vector<OwnedRun> k_runs = owned_runs(k_dispatch);
    const auto slices = cut_by_rank(mask, owned_runs(q_dispatch), q_dispatch.cp_size);
    for (size_t rank = 0; rank < cp_size_; ++rank) {
      for (const AttnSlice& slice : slices[rank]) {
        for_each_key_part(slice, k_runs, [&](size_t run, const AttnSlice& part) {
          areas_[rank * cp_size_ + static_cast<size_t>(k_runs[run].owner)] += area(part);
        });
      }
    }
  }

  // [row_groups][steps] of a shape; see ring_steps for the order of blocks.
  std::vector<int64_t> of_steps(const GridShape& shape) const {
    const size_t groups = static_cast<size_t>(shape.row_groups), members = cp_size_ / groups;
    std::vector<int64_t> blocks(groups * groups);
    for (size_t q = 0; q < cp_size_; ++q) {
      for (size_t k = 0; k < cp_size_; ++k) {
        blocks[q / members * groups + k / members] += areas_[q * cp_size_ + k];
      }
    }
    std::vector<int64_t> steps;
    const size_t inner = static_cast<size_t>(shape.inner_ring_size), outer = groups / inner;
    for (size_t g = 0; g < groups; ++g) {
      if (shape.row_move == RowMove::kGather) {
        int64_t others = 0;
        for (size_t block = 0; block < groups; ++block) others += block == g ? 0 : blocks[g * groups + block];
        steps.insert(steps.end(), {blocks[g * groups + g], others});
        continue;
      }
      for (size_t s = 0; s < groups; ++s) {
        const size_t o = (g / inner + outer - s / inner) % outer, i = (g % inner + inner - s % inner) % inner;
        steps.push_back(blocks[g * groups + o * inner + i]);
      }
    }
    return steps;
  }

 private:
  size_t cp_size_;
  std::vector<int64_t> areas_;
};

// Everything but the strategy, and areas once they are needed.
struct Comparison {
  const Mask& mask;
  const DistAttnConfig& config;
  const Dispatch* q_dispatch;
  const Dispatch* k_dispatch;
  std::optional<RankAreas> areas;

  PredictedTime predict(StrategyConfig& strategy) {
    DistAttnConfig tried = config;
    tried.strategy = strategy;
    const GridShape shape = grid_shape(tried, kFunction);
    if (shape.row_move == RowMove::kSubRings) return predict_documents(tried, strategy);
    if (q_dispatch == nullptr) {  // throws where a length cannot be assigned as the strategy does
      grid_dispatch(tried, shape, mask.seqlen_q(), kFunction);
      grid_dispatch(tried, shape, mask.seqlen_k(), kFunction);
    }
    GridWork work{{tried, shape, mask.seqlen_q() / config.cp_size, mask.seqlen_k() / config.cp_size}, {mask.area()}};
    if (shape.row_groups > 1) {
      if (!areas) count_areas(tried);
      work.areas = areas->of_steps(shape);
    }
    const std::vector<int> chunks = head_chunks_of(work, kFunction);
    if (strategy.name == Strategy::kHcms) strategy.head_chunks = chunks;
    return predict_grid(work, chunks);
  }

 private:
  PredictedTime predict_documents(const DistAttnConfig& tried, StrategyConfig& strategy) {
    if (q_dispatch != nullptr) {
      return predict_hybrid_cp(mask, tried, {owned_runs(*q_dispatch), owned_runs(*k_dispatch), 0});
    }
    const AssignedRows rows = assign_document_rows(mask, tried);
    strategy.document_rows = rows.document_rows;
    return predict_hybrid_cp(mask, tried, rows);
  }

  void count_areas(DistAttnConfig tried) {
    if (q_dispatch != nullptr) {
      areas.emplace(mask, *q_dispatch, *k_dispatch);
      return;
    }
    tried.strategy = {Strategy::kRing, 0, 0, {}};  // every rank a row group
    const GridShape shape = grid_shape(tried, kFunction);
    areas.emplace(mask, grid_dispatch(tried, shape, mask.seqlen_q(), kFunction),
                  grid_dispatch(tried, shape, mask.seqlen_k(), kFunction));
  }
};

std::vector<int> divisors(int number) {
  std::vector<int> result;
  for (int count = 1; count <= number; ++count) {
    if (number % count == 0) result.push_back(count);
  }
  return result;
}

// The layouts of a strategy. Layouts that are another strategy's are left to that strategy.
std::vector<StrategyConfig> layouts_of(Strategy name, int cp_size) {
  if (name != Strategy::kUsp && name != Strategy::kLoongTrain) return {{name, 0, 0, {}}};
  std::vector<StrategyConfig> layouts;
  for (const int ulysses_degree : divisors(cp_size)) {
    const int row_groups = cp_size / ulysses_degree;
    if (name == Strategy::kUsp) {
      if (ulysses_degree > 1 && row_groups > 1) layouts.push_back({name, ulysses_degree, 0, {}});
      continue;
    }
    for (const int inner : divisors(row_groups)) {
      if (inner > 1 && inner < row_groups) layouts.push_back({name, ulysses_degree, inner, {}});
    }
  }
  return layouts;
}

StrategyCandidate best_layout(Comparison& comparison, Strategy name) {
  StrategyCandidate best{{name, 0, 0, {}}, "", {}};
  const std::vector<StrategyConfig> layouts = layouts_of(name, comparison.config.cp_size);
  if (layouts.empty()) {
    best.impossible = std::string(to_string(name)) + " has no layout of its own over " +
                      std::to_string(comparison.config.cp_size) + " ranks";
    return best;
  }
  std::vector<StrategyCandidate> possible;
  std::vector<double> seconds;
  for (StrategyConfig layout : layouts) {
    try {
      const PredictedTime predicted = comparison.predict(layout);
      seconds.push_back(predicted.forward_s + predicted.backward_s);
      possible.push_back({layout, "", predicted});
    } catch (const InvalidArgument& error) {
      if (best.impossible.empty()) best.impossible = error.requirement();
    }
  }
  return possible.empty() ? best : possible[first_of_fastest(seconds)];
}

const StrategyCandidate* fastest(const std::vector<StrategyCandidate>& candidates, double PredictedTime::* seconds) {
  const StrategyCandidate* best = nullptr;
  for (const StrategyCandidate& candidate : candidates) {
    if (!candidate.impossible.empty()) continue;
    if (best == nullptr || candidate.predicted.*seconds < best->predicted.*seconds) best = &candidate;
  }
  return best;
}

}  // namespace

size_t first_of_fastest(const std::vector<double>& seconds) {
  const double most = *std::min_element(seconds.begin(), seconds.end()) * (1 + kTieShare);
  return static_cast<size_t>(std::find_if(seconds.begin(), seconds.end(), [&](double s) { return s <= most; }) -
                             seconds.begin());
}

std::vector<StrategyCandidate> grid_candidates(const Mask& mask, const DistAttnConfig& config,
                                               const Dispatch* q_dispatch, const Dispatch* k_dispatch) {
  Comparison comparison{mask, config, q_dispatch, k_dispatch, {}};
  std::vector<StrategyCandidate> candidates;
  for (const Strategy name : {Strategy::kUlysses, Strategy::kHcms, Strategy::kRing, Strategy::kAllGather,
                              Strategy::kUsp, Strategy::kLoongTrain, Strategy::kHybridCp}) {
    candidates.push_back(best_layout(comparison, name));
  }
  return candidates;
}

void sort_candidates(std::vector<StrategyCandidate>& candidates) {
  const auto step_s = [](const StrategyCandidate& c) {
    return c.impossible.empty() ? c.predicted.forward_s + c.predicted.backward_s
                                : std::numeric_limits<double>::infinity();
  };
  std::vector<double> seconds;
  for (const StrategyCandidate& candidate : candidates) seconds.push_back(step_s(candidate));
  const auto winner = candidates.begin() + static_cast<std::ptrdiff_t>(first_of_fastest(seconds));
  std::rotate(candidates.begin(), winner, winner + 1);
  std::stable_sort(candidates.begin() + 1, candidates.end(),
                   [&](const StrategyCandidate& a, const StrategyCandidate& b) { return step_s(a) < step_s(b); });
}

const StrategyCandidate* fastest_forward(const std::vector<StrategyCandidate>& candidates) {
  return fastest(candidates, &PredictedTime::forward_s);
}

const StrategyCandidate* fastest_backward(const std::vector<StrategyCandidate>& candidates) {
  return fastest(candidates, &PredictedTime::backward_s);
}

}  // namespace tangram
