// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A plan in words and tables, so that a user sees why something is as it is.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string>

#include "core/joined.hpp"
#include "plan/dispatch.hpp"
#include "plan/grid/choose_strategy.hpp"
#include "plan/program/memory.hpp"
#include "plan/row_bytes.hpp"
#include "tangram/head_masks.hpp"
#include "tangram/plan.hpp"

namespace tangram {

namespace {

constexpr int kMaxRanksShown = 64;

std::string bytes_text(int64_t bytes) {
  constexpr double kMiB = 1024.0 * 1024.0;
  const double mib = static_cast<double>(bytes) / kMiB;
  return mib < 1024 ? fmt::format("{:.1f} MiB", mib) : fmt::format("{:.2f} GiB", mib / 1024);
}

std::string ranges_text(const std::vector<Range>& ranges) {
  constexpr size_t kMaxShown = 3;
  std::string text;
  for (size_t i = 0; i < std::min(ranges.size(), kMaxShown); ++i) {
    text += fmt::format("{}[{}, {})", i == 0 ? "" : " ", ranges[i].begin, ranges[i].end);
  }
  if (ranges.size() > kMaxShown) text += fmt::format(" and {} more", ranges.size() - kMaxShown);
  return text;
}

void explain_dispatch(const Plan& plan, std::string& out) {
  const Mask& mask = plan.mask;
  const int64_t num_masks = num_head_masks(plan), rows_q = mask.seqlen_q() / num_masks,
                rows_k = mask.seqlen_k() / num_masks;
  out += fmt::format("mask: {}{} x {} rows, {} slice{}, area {} ({:.2f} % of the square)\n",
                     num_masks > 1 ? fmt::format("{} of as many head groups, ", num_masks) : "", rows_q, rows_k,
                     mask.slices().size(), mask.slices().size() == 1 ? "" : "s", mask.area(),
                     100.0 * static_cast<double>(mask.area()) /
                         (static_cast<double>(num_masks) * static_cast<double>(rows_q) * static_cast<double>(rows_k)));
  out += fmt::format("dispatch: {} over {} ranks, {} chunks of {} rows, {} rows a rank\n", to_string(plan.algorithm),
                     plan.cp_size(), plan.q_dispatch.num_chunks(), plan.q_dispatch.chunk_size,
                     plan.q_dispatch.rows_per_rank());
  if (plan.k_dispatch != plan.q_dispatch) {
    out += fmt::format("key dispatch: {} chunks of {} rows, {} rows a rank\n", plan.k_dispatch.num_chunks(),
                       plan.k_dispatch.chunk_size, plan.k_dispatch.rows_per_rank());
  }
  const std::string because = unbalanced_because(plan);
  out +=
      fmt::format("balance: largest area / mean = {:.4f}{}{}\n", plan.balance(), because.empty() ? "" : ": ", because);
}

// What other strategies would move, in rows of K and V of all heads.
void explain_traffic(const Plan& plan, std::string& out) {
  const int64_t ring = plan.mask.seqlen_k() * (plan.cp_size() - 1);
  const HeadConfig& heads = plan.config.heads;
  // Every rank sends (R-1)/R of its share of q, k, v and out to the others, which hold heads instead of rows.
  const double kv_row = static_cast<double>(heads.num_heads_kv) * (heads.head_dim + heads.head_dim_v);
  const double qo_row = static_cast<double>(heads.num_heads_q) * (heads.head_dim + heads.head_dim_v);
  const double share = static_cast<double>(plan.cp_size() - 1) / plan.cp_size();
  const double ulysses =
      share * (static_cast<double>(plan.mask.seqlen_k()) + static_cast<double>(plan.mask.seqlen_q()) * qo_row / kv_row);
  out += fmt::format("K/V rows moved: {} (Ring: {}, Ulysses: the bytes of {:.0f})\n", plan.rows_moved(), ring, ulysses);
}

void explain_ranks(const Plan& plan, std::string& out) {
  out += fmt::format("{:>5} {:>15} {:>8} {:>10} {:>10} {:>7} {:>12}  rows\n", "rank", "area", "of mean", "K/V rows",
                     "received", "slices", "peak memory");
  const double mean = static_cast<double>(plan.mask.area()) / plan.cp_size();
  for (int r = 0; r < std::min(plan.cp_size(), kMaxRanksShown); ++r) {
    const RankPlan& rank = plan.ranks()[static_cast<size_t>(r)];
    out +=
        fmt::format("{:>5} {:>15} {:>8.4f} {:>10} {:>10} {:>7} {:>12}  {}\n", r, rank.area,
                    mean > 0 ? static_cast<double>(rank.area) / mean : 1.0, rank.kv_rows, rank.remote_kv_rows,
                    rank.slices.size(), bytes_text(plan.peak_bytes(r)), ranges_text(plan.q_dispatch.rows_of_rank(r)));
  }
  if (plan.cp_size() > kMaxRanksShown) out += fmt::format("  ... {} more ranks\n", plan.cp_size() - kMaxRanksShown);
}

void explain_stages(const Plan& plan, const char* name, bool forward, int configured, std::string& out) {
  const auto stages_of = [&](const RankPlan& rank) -> const std::vector<Stage>& {
    return forward ? rank.forward : rank.backward;
  };
  const size_t num_stages = stages_of(plan.ranks()[0]).size();
  out += fmt::format("{}: 1 local + {} remote stage{} ({})\n", name, num_stages - 1, num_stages == 2 ? "" : "s",
                     configured > 0 ? "as configured" : "least predicted time");
  for (size_t s = 0; s < num_stages; ++s) {
    int64_t area = 0;
    int64_t rows = 0;
    size_t copies = 0;
    for (const RankPlan& rank : plan.ranks()) {
      const Stage& stage = stages_of(rank)[s];
      area = std::max(area, stage.area);
      rows = std::max(rows, stage.exchange.rows_received());
      copies = std::max(copies, stage.exchange.recvs.size());
    }
    out += fmt::format("  stage {}: at most {} rows in {} copies received, area {}{}\n", s, rows, copies, area,
                       stages_of(plan.ranks()[0])[s].kept ? ", rows kept from the forward pass" : "");
  }
}

void explain_grid(const Plan& plan, std::string& out) {
  const GridPlan& grid = *plan.grid();
  GridCall call;
  call.out = call.dout = call.grads = plan.config.heads.dtype;
  const GridTraffic traffic = grid_traffic(plan, call);
  const HeadConfig& heads = plan.config.heads;
  out += fmt::format("strategy: {}, {} row groups x {} head ranks, {} steps a pass\n",
                     to_string(plan.config.strategy.name), grid.row_groups, grid.ulysses_degree, grid.steps[0].size());
  if (grid.ulysses_degree > 1) {
    out += fmt::format("heads of a rank: {} of {} query heads, {} K/V heads in chunks of {}{}\n",
                       heads.num_heads_q / grid.ulysses_degree, heads.num_heads_q,
                       std::max(1, heads.num_heads_kv / grid.ulysses_degree), joined(grid.head_chunks, "+"),
                       grid.ulysses_degree > heads.num_heads_kv ? ", shared by several ranks" : "");
  }
  out += fmt::format("received by all ranks: forward {}, backward {}\n", bytes_text(traffic.forward_bytes),
                     bytes_text(traffic.backward_bytes));
  for (const SubGroupLevel& level : grid.levels) {
    out += fmt::format("{}: {} document(s) of {} query rows\n",
                       level.ranks == 1 ? "whole on one rank, without communication"
                                        : fmt::format("zigzag over sub-groups of {} ranks", level.ranks),
                       level.num_documents, level.q_rows);
  }
  const int num_shown = std::min(grid.row_groups, kMaxRanksShown);
  const std::vector<int64_t> peak_bytes = peak_bytes_of_ranks(plan, num_shown * grid.ulysses_degree);
  for (int group = 0; group < num_shown; ++group) {
    std::string areas;
    for (const GridStep& step : grid.steps[static_cast<size_t>(group)]) {
      areas += fmt::format(" {}", step.area);
    }
    out += fmt::format("  row group {}: peak memory of a rank {}, area by step{}\n", group,
                       bytes_text(peak_bytes[static_cast<size_t>(group * grid.ulysses_degree)]), areas);
  }
  if (grid.row_groups > kMaxRanksShown) out += fmt::format("  ... {} more groups\n", grid.row_groups - kMaxRanksShown);
}

void explain_candidates(const Plan& plan, std::string& out) {
  for (const std::string& reason : strategy_reasons(plan)) out += fmt::format("{}\n", reason);
  for (const StrategyCandidate& candidate : plan.candidates) {
    if (!candidate.impossible.empty()) {
      out += fmt::format("  {}: not possible, {}\n", describe(candidate.strategy), candidate.impossible);
      continue;
    }
    const PredictedTime& time = candidate.predicted;
    out += fmt::format("  {}: {:.3f} ms (forward {:.3f}, backward {:.3f}, waits {:.3f})\n",
                       describe(candidate.strategy), (time.forward_s + time.backward_s) * 1e3, time.forward_s * 1e3,
                       time.backward_s * 1e3, time.exposed_s * 1e3);
  }
}

// What all ranks together receive, by kind.
void explain_movement(const Plan& plan, std::string& out) {
  const MovementPlan& movement = *plan.movement();
  out += fmt::format("movement: {}, {} head group{}\n", to_string(plan.config.movement.algorithm), movement.head_groups,
                     movement.head_groups == 1 ? "" : "s");
  for (const AttnPass pass : {AttnPass::kForward, AttnPass::kBackward}) {
    const bool forward = pass == AttnPass::kForward;
    const RowBytes row = row_bytes(plan.config, pass);
    int64_t q_rows = 0, kv_rows = 0;
    for (const MovementRank& rank : movement.of(pass)) {
      q_rows += rank.remote_q_rows;
      kv_rows += rank.remote_kv_rows;
    }
    const auto kind = [&](const char* name, int64_t rows, int64_t bytes) {
      if (bytes > 0) out += fmt::format(", {} {}", name, bytes_text(rows * bytes / movement.head_groups));
    };
    out += fmt::format("{}: {} query rows and {} K/V rows of a head group received in {} stages",
                       forward ? "forward" : "backward", q_rows, kv_rows, movement.of(pass)[0].stages.size() - 1);
    kind(forward ? "q" : "q, dout, lse and delta", q_rows, row.q_in);
    kind(forward ? "out and lse" : "dq", q_rows, row.q_back);
    kind("k and v", kv_rows, row.kv_in);
    kind("dk and dv", kv_rows, row.kv_back);
    out += "\n";
  }
  const std::vector<int64_t> peak_bytes = peak_bytes_of_ranks(plan, plan.cp_size());
  out += fmt::format("peak memory: at most {} a rank\n",
                     bytes_text(*std::max_element(peak_bytes.begin(), peak_bytes.end())));
}

}  // namespace

std::vector<std::string> strategy_reasons(const Plan& plan) {
  if (plan.candidates.empty()) return {};
  const StrategyCandidate& chosen = plan.candidates[0];
  const auto num_possible = std::count_if(plan.candidates.begin(), plan.candidates.end(),
                                          [](const StrategyCandidate& c) { return c.impossible.empty(); });
  const auto step_s = [](const StrategyCandidate& c) { return c.predicted.forward_s + c.predicted.backward_s; };
  const bool tie = num_possible > 1 && step_s(plan.candidates[1]) < step_s(chosen);
  std::vector<std::string> reasons{fmt::format(
      "Strategy {}: {} of {} strategies that can do this, each with its best layout: {:.3f} ms{}.",
      describe(chosen.strategy), tie ? "the simplest with about the least predicted step" : "the least predicted step",
      num_possible, step_s(chosen) * 1e3,
      num_possible > 1 ? fmt::format(", next {} with {:.3f} ms", describe(plan.candidates[1].strategy),
                                     step_s(plan.candidates[1]) * 1e3)
                       : "")};
  std::string passes;
  const auto add = [&](const char* pass, const StrategyCandidate& fastest, double PredictedTime::* seconds) {
    if (fastest.predicted.*seconds >= chosen.predicted.*seconds) return;
    passes +=
        fmt::format("{}{} alone, {} would take {:.3f} instead of {:.3f} ms", passes.empty() ? "" : "; ", pass,
                    describe(fastest.strategy), fastest.predicted.*seconds * 1e3, chosen.predicted.*seconds * 1e3);
  };
  add("forward", *fastest_forward(plan.candidates), &PredictedTime::forward_s);
  add("backward", *fastest_backward(plan.candidates), &PredictedTime::backward_s);
  if (!passes.empty()) {
    passes[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(passes[0])));
    reasons.push_back(passes + "; one strategy serves both passes, which share the rows of a rank.");
  }
  return reasons;
}

std::string explain(const Plan& plan) {
  std::string text;
  explain_dispatch(plan, text);
  explain_candidates(plan, text);
  if (plan.grid() != nullptr) {
    explain_grid(plan, text);
  } else if (plan.movement() != nullptr) {
    explain_movement(plan, text);
  } else if (!plan.ranks().empty()) {
    explain_traffic(plan, text);
    explain_ranks(plan, text);
    explain_stages(plan, "forward", true, plan.config.overlap.num_stages_fwd, text);
    explain_stages(plan, "backward", false, plan.config.overlap.num_stages_bwd, text);
  }
  text += fmt::format("predicted: forward {:.3f} ms, backward {:.3f} ms, of which {:.3f} ms wait for transfers\n",
                      plan.predicted.forward_s * 1e3, plan.predicted.backward_s * 1e3, plan.predicted.exposed_s * 1e3);
  return text;
}

}  // namespace tangram
