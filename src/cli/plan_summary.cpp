// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/plan_summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>

#include "cli/node_summary.hpp"
#include "cli/progress.hpp"
#include "cli/text_file.hpp"
#include "cli/text_table.hpp"
#include "core/require.hpp"
#include "plan/dispatch.hpp"
#include "plan/program/emit.hpp"
#include "plan/program/memory.hpp"
#include "tangram/head_masks.hpp"
#include "tangram/version.hpp"

namespace tangram::cli {

namespace {

constexpr int kMaxRanksShown = 64;

std::shared_ptr<const Plan> timed_plan(std::span<const Mask> masks, const DistAttnConfig& config, double& median_ms) {
  // Processor time: planning is one thread's work, and others that use the machine do not count.
  const auto now_ms = [] {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
  };
  std::vector<double> times;
  std::shared_ptr<const Plan> plan;
  // A few calls, so that the first touch of memory is not what is reported; one when planning is slow.
  for (double total = 0; times.empty() || (times.size() < 5 && total < 100);) {
    const double begin = now_ms();
    plan = std::make_shared<const Plan>(make_plan(masks, config));
    times.push_back(now_ms() - begin);
    total += times.back();
  }
  std::sort(times.begin(), times.end());
  median_ms = times[times.size() / 2];
  return plan;
}

int64_t ulysses_rows_of(const Plan& plan) {
  const HeadConfig& heads = plan.config.heads;
  const double cp_size = plan.cp_size();
  const double copies = std::max(1.0, cp_size / heads.num_heads_kv);
  const double kv = static_cast<double>(plan.k_dispatch.seqlen()) * copies;
  const double qo = static_cast<double>(plan.q_dispatch.seqlen()) * heads.num_heads_q / heads.num_heads_kv;
  return std::llround((cp_size - 1) / cp_size * (kv + qo));
}

std::string percent_of(int64_t part, int64_t whole) {
  return whole == 0 ? "–" : fmt::format("{:.1f} %", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string ranges_text(const std::vector<Range>& ranges) {
  constexpr size_t kMaxShown = 2;
  std::string text;
  for (size_t i = 0; i < std::min(ranges.size(), kMaxShown); ++i) {
    text += fmt::format("{}{}–{}", i == 0 ? "" : ", ", ranges[i].begin, ranges[i].end);
  }
  if (ranges.size() > kMaxShown) text += fmt::format(", +{} runs", ranges.size() - kMaxShown);
  return text;
}

std::string stages_text(const Plan& plan, bool forward) {
  std::string text;
  const size_t num_stages = forward ? plan.ranks()[0].forward.size() : plan.ranks()[0].backward.size();
  for (size_t s = 0; s < num_stages; ++s) {
    int64_t area = 0;
    int64_t rows = 0;
    for (const RankPlan& rank : plan.ranks()) {
      const Stage& stage = forward ? rank.forward[s] : rank.backward[s];
      area += stage.area;
      rows += stage.exchange.rows_received();
    }
    text += fmt::format("{}{} {} of the area{}", s == 0 ? "" : "; ", s == 0 ? "local" : fmt::format("stage {}", s),
                        percent_of(area, plan.mask.area()),
                        rows == 0 ? std::string() : fmt::format(" on {} rows", with_commas(rows)));
  }
  return text;
}

nlohmann::json stages_json(const Plan& plan, bool forward) {
  nlohmann::json stages = nlohmann::json::array();
  for (size_t s = 0; s < (forward ? plan.ranks()[0].forward : plan.ranks()[0].backward).size(); ++s) {
    nlohmann::json areas = nlohmann::json::array();
    nlohmann::json rows = nlohmann::json::array();
    for (const RankPlan& rank : plan.ranks()) {
      const Stage& stage = forward ? rank.forward[s] : rank.backward[s];
      areas.push_back(stage.area);
      rows.push_back(stage.exchange.rows_received());
    }
    stages.push_back({{"area", areas}, {"rows_received", rows}});
  }
  return stages;
}

nlohmann::json movement_ranks_json(const Plan& plan) {
  const std::vector<int64_t> peak_bytes = peak_bytes_of_ranks(plan, plan.cp_size());
  nlohmann::json ranks = nlohmann::json::array();
  const std::vector<RankPlan> totals = plan.rank_totals();
  for (size_t r = 0; r < totals.size(); ++r) {
    nlohmann::json rank = {{"rank", r}, {"area", totals[r].area}, {"peak_bytes", peak_bytes[r]}};
    for (const AttnPass pass : {AttnPass::kForward, AttnPass::kBackward}) {
      const MovementRank& tables = plan.movement()->of(pass)[r];
      rank[pass == AttnPass::kForward ? "forward" : "backward"] = {{"q_rows_received", tables.remote_q_rows},
                                                                   {"kv_rows_received", tables.remote_kv_rows}};
    }
    ranks.push_back(rank);
  }
  return ranks;
}

// Under another strategy every rank receives the same, and what it holds is not counted in rows of K/V. With QO
// communication both kinds of rows are counted.
std::string ranks_text(const PlanSummary& summary) {
  const Plan& plan = *summary.plan;
  const MovementPlan* movement = plan.movement();
  std::vector<std::string> titles{"rank", "area", "of mean", ""};
  if (moves_kv_alone(plan)) titles.insert(titles.end(), {"K/V rows", "received", "sent"});
  if (movement != nullptr) titles.insert(titles.end(), {"queries received", "K/V received"});
  titles.insert(titles.end(), {"peak memory", "query rows"});
  TextTable ranks(titles);
  const int num_shown = std::min(plan.cp_size(), kMaxRanksShown);
  const std::vector<int64_t> peak_bytes = peak_bytes_of_ranks(plan, num_shown);
  const std::vector<RankPlan> totals = plan.rank_totals();
  const double mean = static_cast<double>(plan.mask.area()) / plan.cp_size(), balance = plan.balance();
  for (size_t r = 0; r < peak_bytes.size(); ++r) {
    const double share = mean > 0 ? static_cast<double>(totals[r].area) / mean : 1;
    std::vector<std::string> row{fmt::format("{}", r), with_commas(totals[r].area), fmt::format("{:.4f}", share),
                                 bar_text(share / std::max(1.0, balance), 12)};
    const auto add = [&](int64_t rows) { row.push_back(with_commas(rows)); };
    if (moves_kv_alone(plan)) {
      add(totals[r].kv_rows), add(totals[r].remote_kv_rows), add(summary.rows_sent_by[r]);
    } else if (movement != nullptr) {
      add(movement->forward[r].remote_q_rows), add(movement->forward[r].remote_kv_rows);
    }
    row.push_back(bytes_text(static_cast<double>(peak_bytes[r])));
    row.push_back(ranges_text(plan.q_dispatch.rows_of_rank(static_cast<int>(r))));
    ranks.add(row);
  }
  std::string text = ranks.text();
  if (plan.cp_size() > kMaxRanksShown) text += fmt::format("  and {} more ranks\n", plan.cp_size() - kMaxRanksShown);
  return text;
}

void count_rows_sent(const Plan& plan, PlanSummary& summary) {
  const size_t cp_size = static_cast<size_t>(plan.cp_size());
  const bool has_matrix = plan.cp_size() <= PlanSummary::kMaxMatrixRanks;
  summary.rows_sent_by.assign(cp_size, 0);
  if (has_matrix) summary.rows_sent.assign(cp_size, std::vector<int64_t>(cp_size, 0));
  for (size_t rank = 0; rank < cp_size && moves_kv_alone(plan); ++rank) {
    for (const Stage& stage : plan.ranks()[rank].forward) {
      for (const RowCopy& copy : stage.exchange.recvs) {
        const size_t peer = static_cast<size_t>(copy.peer);
        summary.rows_sent_by[peer] += copy.rows.size();
        if (has_matrix) summary.rows_sent[peer][rank] += copy.rows.size();
      }
    }
  }
}

}  // namespace

int64_t kv_row_bytes_of(const HeadConfig& heads) {
  return int64_t{heads.num_heads_kv} * (heads.head_dim + heads.head_dim_v) * static_cast<int64_t>(size_of(heads.dtype));
}

PlanSummary make_plan_summary(const NamedMask& named, const DistAttnConfig& config) {
  const PaddedMask padded = pad_mask(named.mask, config);
  PlanSummary summary;
  summary.mask_name = named.name;
  summary.pad_q = padded.pad_q;
  summary.pad_k = padded.pad_k;
  summary.masks = {padded.mask};
  for (size_t g = 1; g < named.of_heads.size(); ++g) {
    summary.masks.push_back(named.of_heads[g].padded(padded.mask.seqlen_q(), padded.mask.seqlen_k()));
  }
  const WaitNotice notice(fmt::format("planning {} tokens over {} ranks", with_commas(padded.mask.seqlen_q()),
                                      with_commas(config.cp_size)));
  summary.plan = timed_plan(summary.masks, config, summary.plan_ms);
  const Plan& plan = *summary.plan;
  if (moves_kv_alone(plan)) summary.rows_lower_bound = rows_lower_bound(plan.mask, plan.q_dispatch, plan.k_dispatch);
  summary.ring_rows = plan.k_dispatch.seqlen() * (plan.cp_size() - 1);
  summary.ulysses_rows = ulysses_rows_of(plan);
  count_rows_sent(plan, summary);
  return summary;
}

PlanSummary make_plan_summary(const MaskOptions& mask_options, const DistOptions& dist_options) {
  const DistAttnConfig config = make_config(dist_options);
  require_effect(config);
  return make_plan_summary(load_mask(mask_options), config);
}

std::string constants_text(const DistAttnConfig& config) {
  CostModel of_one_node = config.cost;
  of_one_node.ranks_per_node = 0;
  return of_one_node == CostModel{} ? "times are those of H200 nodes, --machine FILE takes the constants of others"
                                    : "times are those of the machine that --machine describes";
}

std::string mask_text(const PlanSummary& summary) {
  const Mask& mask = summary.masks[0];
  const std::string of_heads =
      summary.masks.size() > 1 ? fmt::format(" for each of {} head groups", summary.masks.size()) : "";
  return fmt::format("mask       {}{}: {} x {} tokens", summary.mask_name, of_heads, with_commas(mask.seqlen_q()),
                     with_commas(mask.seqlen_k()));
}

std::string padding_text(const PlanSummary& summary) {
  if (summary.pad_q == 0 && summary.pad_k == 0) return "";
  const Mask& mask = summary.masks[0];
  if (mask.is_self_attention() && summary.pad_q == summary.pad_k) {
    return fmt::format("padding    {} empty rows appended: {} -> {}\n", with_commas(summary.pad_q),
                       with_commas(mask.seqlen_q() - summary.pad_q), with_commas(mask.seqlen_q()));
  }
  return fmt::format("padding    {} empty query rows and {} empty key rows appended\n", with_commas(summary.pad_q),
                     with_commas(summary.pad_k));
}

std::string grid_text(const Plan& plan) {
  const GridPlan& grid = *plan.grid();
  std::string chunks;
  for (const int heads : grid.head_chunks) chunks += fmt::format("{}{}", chunks.empty() ? "" : "+", heads);
  if (plan.config.strategy.name == Strategy::kHybridCp) {
    std::string levels;
    for (const SubGroupLevel& level : grid.levels) {
      levels += fmt::format("{}{} document{} on {} rank{}{}", levels.empty() ? "" : ", ",
                            with_commas(level.num_documents), level.num_documents == 1 ? "" : "s", level.ranks,
                            level.ranks == 1 ? "" : "s", level.num_documents == 1 ? "" : " each");
    }
    return fmt::format("hybrid_cp, {}", levels.empty() ? "no documents" : levels);
  }
  return fmt::format("{}, {} row group{} x {} head rank{}, K/V heads in chunks of {}",
                     to_string(plan.config.strategy.name), grid.row_groups, grid.row_groups == 1 ? "" : "s",
                     grid.ulysses_degree, grid.ulysses_degree == 1 ? "" : "s", chunks);
}

bool keeps_inputs(const Plan& plan) { return plan.config.overlap.keep_remote_kv || plan.ulysses_degree() > 1; }

GridTraffic planned_traffic(const Plan& plan) {
  const DType dtype = plan.config.heads.dtype;
  const GridCall call{dtype, dtype, dtype, keeps_inputs(plan)};
  return plan.grid() != nullptr ? grid_traffic(plan, call) : movement_traffic(plan, call);
}

std::string movement_text(const Plan& plan) {
  const MovementPlan& movement = *plan.movement();
  std::string text = fmt::format("{}, {} head group{}", to_string(plan.config.movement.algorithm), movement.head_groups,
                                 movement.head_groups == 1 ? "" : "s");
  for (const auto& [name, ranks] :
       {std::pair("forward", &movement.forward), std::pair("backward", &movement.backward)}) {
    int64_t q_rows = 0, kv_rows = 0;
    for (const MovementRank& rank : *ranks) {
      q_rows += rank.remote_q_rows;
      kv_rows += rank.remote_kv_rows;
    }
    const size_t stages = ranks->front().stages.size() - 1;
    text += fmt::format("; {} {} query and {} K/V rows in {} stage{}", name, with_commas(q_rows), with_commas(kv_rows),
                        stages, stages == 1 ? "" : "s");
  }
  return text;
}

// Runs of chunks of one rank as [number of chunks, rank]. There may be a chunk for every row.
nlohmann::json dispatch_json(const Dispatch& dispatch) {
  nlohmann::json runs = nlohmann::json::array();
  int64_t begin = 0;
  for (const OwnedChunks& run : dispatch.rank_of_chunk.runs()) {
    runs.push_back({run.end - begin, run.rank});
    begin = run.end;
  }
  return runs;
}

std::string chunks_text(const Dispatch& dispatch) {
  if (dispatch.chunk_size > 1) {
    return fmt::format("{} chunks of {} rows", with_commas(dispatch.num_chunks()), with_commas(dispatch.chunk_size));
  }
  return fmt::format("{} runs, cut at any row", with_commas(std::ssize(dispatch.rank_of_chunk.runs())));
}

void require_reportable(const Plan& plan, const OutputOptions& output) {
  require(!is_standard_stream(output.html) || !output.json,
          "--html -: cannot be combined with --json, which prints too");
  const bool of_head_groups = plan.movement() != nullptr && plan.config.movement.algorithm == Movement::kKv;
  require(output.html.empty() || !of_head_groups,
          "--html: reports show one mask for all heads (got one for each group)");
  require(output.html.empty() || plan.movement() == nullptr, "--html: supports K/V movement only (got --movement {})",
          to_string(plan.config.movement.algorithm));
}

std::string candidates_text(const Plan& plan) {
  if (plan.candidates.empty()) return "";
  std::string text = "\n";
  for (const std::string& reason : strategy_reasons(plan)) text += reason + "\n";
  TextTable table({"strategy", "predicted step", "forward", "backward", "exposed", ""});
  for (const StrategyCandidate& candidate : plan.candidates) {
    const PredictedTime& time = candidate.predicted;
    if (!candidate.impossible.empty()) {
      table.add({describe(candidate.strategy), "–", "–", "–", "–", candidate.impossible});
      continue;
    }
    table.add({describe(candidate.strategy), seconds_text(time.forward_s + time.backward_s),
               seconds_text(time.forward_s), seconds_text(time.backward_s), seconds_text(time.exposed_s), ""});
  }
  return text + table.text();
}

std::string plan_text(const PlanSummary& summary) {
  const Plan& plan = *summary.plan;
  const Mask& mask = plan.mask;
  const HeadConfig& heads = plan.config.heads;
  const double squares = static_cast<double>(plan.q_dispatch.seqlen()) * static_cast<double>(plan.k_dispatch.seqlen()) *
                         static_cast<double>(summary.masks.size());
  std::string text = mask_text(summary) + fmt::format(", {} slice{}, {} visible cells ({:.2f} % of the square)\n",
                                                      with_commas(static_cast<int64_t>(mask.slices().size())),
                                                      mask.slices().size() == 1 ? "" : "s", with_commas(mask.area()),
                                                      100.0 * static_cast<double>(mask.area()) / squares);
  text += padding_text(summary);
  text += fmt::format("heads      {} query, {} key/value, dim {} / {}, {}\n", heads.num_heads_q, heads.num_heads_kv,
                      heads.head_dim, heads.head_dim_v, to_string(heads.dtype));
  text += fmt::format("dispatch   {}, {} over {} ranks\n", to_string(plan.algorithm), chunks_text(plan.q_dispatch),
                      plan.cp_size());
  const std::string because = unbalanced_because(plan);
  text += fmt::format("balance    {:.4f} (largest area / mean){}{}\n", plan.balance(), because.empty() ? "" : ": ",
                      because);
  if (moves_kv_alone(plan)) {
    text += fmt::format("forward    {}\n", stages_text(plan, true));
    text += fmt::format("backward   {}\n", stages_text(plan, false));
  } else {
    text += plan.grid() != nullptr ? fmt::format("strategy   {}\n", grid_text(plan))
                                   : fmt::format("movement   {}\n", movement_text(plan));
  }
  text += fmt::format("planned    in {}\n\n", seconds_text(1e-3 * summary.plan_ms));

  text += ranks_text(summary);

  const std::string predicted = fmt::format(
      "\npredicted  forward {}, backward {}, waiting for transfers {}\n           by a cost model, not measured: {}\n"
      "           priced by visible area; tangram simulate also counts tiles of kernels, and nodes\n",
      seconds_text(plan.predicted.forward_s), seconds_text(plan.predicted.backward_s),
      seconds_text(plan.predicted.exposed_s), constants_text(plan.config));
  if (!moves_kv_alone(plan)) {
    const GridTraffic traffic = planned_traffic(plan);
    return text +
           fmt::format("\nreceived   forward {}, backward {} over all ranks\n",
                       bytes_text(static_cast<double>(traffic.forward_bytes)),
                       bytes_text(static_cast<double>(traffic.backward_bytes))) +
           predicted + candidates_text(plan);
  }
  const double row_bytes = static_cast<double>(kv_row_bytes_of(heads));
  TextTable moved({"K/V rows moved forward", "rows", "bytes", "of Ring"});
  const auto add = [&](const char* name, int64_t rows) {
    moved.add({name, with_commas(rows), bytes_text(static_cast<double>(rows) * row_bytes),
               percent_of(rows, summary.ring_rows)});
  };
  add("this plan", plan.rows_moved());
  add("least for this dispatch", summary.rows_lower_bound);
  add("Ring", summary.ring_rows);
  add("Ulysses (same bytes)", summary.ulysses_rows);
  text += "\n";
  text += moved.text();
  if (has_node_summary(plan)) {
    text += "\n";
    text += nodes_text(plan);
  }
  return text + predicted + candidates_text(plan);
}

nlohmann::json plan_json(const PlanSummary& summary) {
  const Plan& plan = *summary.plan;
  nlohmann::json json{{"version", kVersion},
                      {"mask",
                       {{"name", summary.mask_name},
                        {"seqlen_q", plan.q_dispatch.seqlen()},
                        {"seqlen_k", plan.k_dispatch.seqlen()},
                        {"head_groups", summary.masks.size()},
                        {"slices", plan.mask.slices().size()},
                        {"area", plan.mask.area()}}},
                      {"pad_size_q", summary.pad_q},
                      {"pad_size_k", summary.pad_k},
                      {"cp_size", plan.cp_size()},
                      {"chunk_size", plan.q_dispatch.chunk_size},
                      {"algorithm", std::string(to_string(plan.algorithm))},
                      {"strategy", std::string(to_string(plan.config.strategy.name))},
                      {"balance", plan.balance()},
                      {"rows_ring", summary.ring_rows},
                      {"rows_ulysses", summary.ulysses_rows},
                      {"kv_row_bytes", kv_row_bytes_of(plan.config.heads)},
                      {"dispatch", dispatch_json(plan.q_dispatch)},
                      {"predicted",
                       {{"forward_s", plan.predicted.forward_s},
                        {"backward_s", plan.predicted.backward_s},
                        {"exposed_s", plan.predicted.exposed_s}}},
                      {"plan_ms", summary.plan_ms}};
  if (moves_kv_alone(plan)) {
    json["rows_moved"] = plan.rows_moved();
    json["rows_lower_bound"] = summary.rows_lower_bound;
    json["rows_sent"] = summary.rows_sent.empty() ? nlohmann::json() : nlohmann::json(summary.rows_sent);
    json["stages"] = {{"forward", stages_json(plan, true)}, {"backward", stages_json(plan, false)}};
    for (int r = 0; r < plan.cp_size(); ++r) {
      const RankPlan& rank = plan.ranks()[static_cast<size_t>(r)];
      json["ranks"].push_back({{"rank", r},
                               {"area", rank.area},
                               {"rows", plan.q_dispatch.rows_per_rank()},
                               {"kv_rows", rank.kv_rows},
                               {"rows_received", rank.remote_kv_rows},
                               {"rows_sent", summary.rows_sent_by[static_cast<size_t>(r)]},
                               {"slices", rank.slices.size()},
                               {"peak_bytes", plan.peak_bytes(r)}});
    }
  } else {
    const GridTraffic traffic = planned_traffic(plan);
    nlohmann::json& other = plan.grid() != nullptr ? json["grid"] : json["movement"];
    other = plan.grid() != nullptr
                ? nlohmann::json{{"row_groups", plan.grid()->row_groups},
                                 {"ulysses_degree", plan.ulysses_degree()},
                                 {"head_chunks", plan.grid()->head_chunks},
                                 {"peak_bytes", peak_bytes_of_ranks(plan, plan.cp_size())}}
                : nlohmann::json{{"algorithm", std::string(to_string(plan.config.movement.algorithm))},
                                 {"head_groups", plan.movement()->head_groups},
                                 {"ranks", movement_ranks_json(plan)}};
    other["forward_bytes"] = traffic.forward_bytes;
    other["backward_bytes"] = traffic.backward_bytes;
  }
  if (has_node_summary(plan)) json["nodes"] = nodes_json(plan);
  for (const StrategyCandidate& candidate : plan.candidates) {
    nlohmann::json entry{{"strategy", std::string(to_string(candidate.strategy.name))},
                         {"layout", describe(candidate.strategy)}};
    if (candidate.impossible.empty()) {
      entry.update({{"forward_s", candidate.predicted.forward_s},
                    {"backward_s", candidate.predicted.backward_s},
                    {"exposed_s", candidate.predicted.exposed_s}});
    } else {
      entry["impossible"] = candidate.impossible;
    }
    json["candidates"].push_back(entry);
  }
  for (const std::string& reason : strategy_reasons(plan)) json["strategy_reasons"].push_back(reason);
  if (!(plan.k_dispatch == plan.q_dispatch)) {
    json["chunk_size_k"] = plan.k_dispatch.chunk_size;
    json["dispatch_k"] = dispatch_json(plan.k_dispatch);
  }
  return json;
}

}  // namespace tangram::cli
