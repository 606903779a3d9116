// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What a step took, for people and programs.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/node_traffic.hpp"
#include "cli/step.hpp"
#include "cli/text_table.hpp"
#include "plan/program/emit.hpp"
#include "tangram/head_masks.hpp"

namespace tangram::cli {

namespace {

// Counted against planned.
std::string traffic_text(const PlanSummary& summary, const StepResult& result) {
  const Plan& plan = *summary.plan;
  if (moves_kv_alone(plan)) {
    return fmt::format("K/V rows received forward: {} counted, {} planned, {} by Ring\n",
                       with_commas(result.rows_received), with_commas(plan.rows_moved()),
                       with_commas(summary.ring_rows));
  }
  const GridTraffic planned = planned_traffic(plan);
  return fmt::format("bytes received: forward {} counted, {} planned; backward {} counted, {} planned\n",
                     with_commas(result.forward_bytes), with_commas(planned.forward_bytes),
                     with_commas(result.backward_bytes), with_commas(planned.backward_bytes));
}

// What crossed between nodes against what must.
std::string node_traffic_text(const Plan& plan, const StepResult& result) {
  if (result.ranks_per_node == 0) return {};
  if (!moves_kv_alone(plan)) {
    return fmt::format("bytes between nodes: forward {}, backward {}\n", with_commas(result.node_forward_bytes),
                       with_commas(result.node_backward_bytes));
  }
  const NodeRows rows = rows_between_nodes(plan, result.ranks_per_node);
  return fmt::format("K/V rows between nodes forward: {} counted, {} needed by nodes, {} by ranks\n",
                     with_commas(result.node_rows), with_commas(rows.once_per_node), with_commas(rows.to_each_rank));
}

// Head chunks pay where a fifth of the time is communication.
std::string comm_share_text(const Plan& plan, const StepResult& result) {
  constexpr double kWorthHiding = 0.2;
  if (std::isnan(result.comm_share)) return {};
  std::string text = fmt::format("transfers / (transfers + attention): {:.1f} %", 100 * result.comm_share);
  const Strategy strategy = plan.config.strategy.name;
  if (strategy == Strategy::kUlysses || strategy == Strategy::kHcms) {
    text += result.comm_share > kWorthHiding ? ", above 20 %: hcms is recommended" : ", up to 20 %: ulysses will do";
  }
  return text + "\n";
}

std::string rate_text(double flops, double seconds) { return fmt::format("{:.1f} GFLOP/s", flops / seconds * 1e-9); }

// Visible cells of all query heads.
double cells_of(const Plan& plan) {
  return static_cast<double>(plan.mask.area()) * plan.config.heads.num_heads_q /
         static_cast<double>(num_head_masks(plan));
}

}  // namespace

double forward_flops(const Plan& plan) {
  const HeadConfig& heads = plan.config.heads;
  return 2.0 * cells_of(plan) * (heads.head_dim + heads.head_dim_v);
}

double backward_flops(const Plan& plan) {
  const HeadConfig& heads = plan.config.heads;
  return 2.0 * cells_of(plan) * (3.0 * heads.head_dim + 2.0 * heads.head_dim_v);
}

std::vector<std::pair<std::string, std::string>> step_figures(const PlanSummary& summary, const StepResult& result) {
  const Plan& plan = *summary.plan;
  const auto bytes = [](int64_t count) { return bytes_text(static_cast<double>(count)); };
  std::vector<std::pair<std::string, std::string>> figures = {
      {"backend", fmt::format("{} over {}, {} ranks of {} thread{}", result.backend, result.transport, plan.cp_size(),
                              result.num_threads, result.num_threads == 1 ? "" : "s")},
      {"forward", seconds_text(result.forward_s) + ", " + rate_text(forward_flops(plan), result.forward_s)},
      {"backward", seconds_text(result.backward_s) + ", " + rate_text(backward_flops(plan), result.backward_s)},
      {"bytes received",
       fmt::format("forward {}, backward {}", bytes(result.forward_bytes), bytes(result.backward_bytes))},
  };
  if (plan.grid() == nullptr) {
    figures.emplace_back("K/V rows received", fmt::format("{} counted, {} planned", with_commas(result.rows_received),
                                                          with_commas(plan.rows_moved())));
  } else {
    const GridTraffic planned = planned_traffic(plan);
    figures.emplace_back("bytes planned", fmt::format("forward {}, backward {}", bytes(planned.forward_bytes),
                                                      bytes(planned.backward_bytes)));
    if (std::string share = comm_share_text(plan, result); !share.empty()) {
      share.pop_back();
      figures.emplace_back("share of transfers (rho)", share);
    }
  }
  return figures;
}

std::string step_text(const PlanSummary& summary, const StepResult& result) {
  const Plan& plan = *summary.plan;
  std::string text = mask_text(summary) + fmt::format(", {} visible cells\n", with_commas(plan.mask.area()));
  text += padding_text(summary);
  text += fmt::format("dispatch   {}, {}, balance {:.4f}\n", to_string(plan.algorithm), chunks_text(plan.q_dispatch),
                      plan.balance());
  if (plan.grid() != nullptr) text += "strategy   " + grid_text(plan) + "\n";
  if (plan.movement() != nullptr) text += "movement   " + movement_text(plan) + "\n";
  for (const std::string& reason : strategy_reasons(plan)) text += "           " + reason + "\n";
  text += fmt::format("backend    {} over {}, {} ranks of {} thread{}\n\n", result.backend, result.transport,
                      plan.cp_size(), result.num_threads, result.num_threads == 1 ? "" : "s");
  TextTable table({"pass", "time", "rate", "bytes received"});
  table.add({"forward", seconds_text(result.forward_s), rate_text(forward_flops(plan), result.forward_s),
             bytes_text(static_cast<double>(result.forward_bytes))});
  table.add({"backward", seconds_text(result.backward_s), rate_text(backward_flops(plan), result.backward_s),
             bytes_text(static_cast<double>(result.backward_bytes))});
  text += table.text();
  text += fmt::format("\n{}{}{}", traffic_text(summary, result), node_traffic_text(plan, result),
                      comm_share_text(plan, result));
  return text;
}

nlohmann::json step_json(const PlanSummary& summary, const StepResult& result) {
  const Plan& plan = *summary.plan;
  nlohmann::json json = {{"backend", result.backend},
                         {"transport", result.transport},
                         {"threads_per_rank", result.num_threads},
                         {"forward_s", result.forward_s},
                         {"backward_s", result.backward_s},
                         {"forward_gflops", forward_flops(plan) / result.forward_s * 1e-9},
                         {"backward_gflops", backward_flops(plan) / result.backward_s * 1e-9},
                         {"strategy", std::string(to_string(plan.config.strategy.name))},
                         {"movement", std::string(to_string(plan.config.movement.algorithm))},
                         {"comm_share", result.comm_share},
                         {"forward_bytes", result.forward_bytes},
                         {"backward_bytes", result.backward_bytes}};
  if (moves_kv_alone(plan)) {
    json["rows_received"] = result.rows_received;
    json["rows_planned"] = plan.rows_moved();
  }
  if (result.ranks_per_node > 0) {
    nlohmann::json nodes = {{"ranks_per_node", result.ranks_per_node},
                            {"forward_bytes", result.node_forward_bytes},
                            {"backward_bytes", result.node_backward_bytes}};
    if (moves_kv_alone(plan)) {
      const NodeRows rows = rows_between_nodes(plan, result.ranks_per_node);
      nodes["rows_received"] = result.node_rows;
      nodes["rows_once_per_node"] = rows.once_per_node;
      nodes["rows_to_each_rank"] = rows.to_each_rank;
    }
    json["nodes"] = nodes;
  }
  return json;
}

}  // namespace tangram::cli
