// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/report/html_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/embedded.hpp"
#include "cli/node_summary.hpp"
#include "cli/report/page.hpp"
#include "cli/report/plan_choices.hpp"
#include "cli/report/traffic_matrix.hpp"
#include "plan/program/memory.hpp"
#include "tangram/version.hpp"

namespace tangram::cli {

namespace {

using Json = nlohmann::json;

// Together these keep the file below 2 MB.
constexpr size_t kMaxSlices = 20'000;
constexpr size_t kMaxStageRuns = 30'000;
constexpr size_t kMaxEvents = 12'000;
constexpr size_t kMaxTimelineRanks = 32;

// Six numbers per slice, null for an open diagonal.
Json slices_json(const Mask& mask, int64_t& drawn_area) {
  std::vector<AttnSlice> slices(mask.slices().begin(), mask.slices().end());
  if (slices.size() > kMaxSlices) {
    std::nth_element(slices.begin(), slices.begin() + kMaxSlices, slices.end(),
                     [](const AttnSlice& a, const AttnSlice& b) { return area(a) > area(b); });
    slices.resize(kMaxSlices);
  }
  Json flat = Json::array();
  drawn_area = 0;
  for (const AttnSlice& slice : slices) {
    drawn_area += area(slice);
    for (const int64_t bound : {slice.q_range.begin, slice.q_range.end, slice.k_range.begin, slice.k_range.end}) {
      flat.push_back(bound);
    }
    flat.push_back(slice.min_diag > kOpenMinDiag ? Json(slice.min_diag) : Json(nullptr));
    flat.push_back(slice.max_diag < kOpenMaxDiag ? Json(slice.max_diag) : Json(nullptr));
  }
  return flat;
}

// Per rank, runs [begin, end, stage] of the keys that it needs; null when there are too many to draw.
Json stage_runs_json(const Plan& plan) {
  Json all = Json::array();
  size_t num_runs = 0;
  for (const RankPlan& rank : plan.ranks()) {
    std::vector<std::array<int64_t, 3>> runs;
    for (const KvSegment& segment : rank.segments) {
      if (!runs.empty() && runs.back()[1] == segment.global.begin && runs.back()[2] == segment.stage_fwd) {
        runs.back()[1] = segment.global.end;
      } else {
        runs.push_back({segment.global.begin, segment.global.end, segment.stage_fwd});
      }
    }
    num_runs += runs.size();
    if (num_runs > kMaxStageRuns) return nullptr;
    all.push_back(std::move(runs));
  }
  return all;
}

Json timeline_json(const Plan& plan, const ReportExtras& extras) {
  const bool measured = !extras.measured.empty();
  const std::vector<TimelineEvent> events = measured ? extras.measured : predicted_timeline(plan, kMaxTimelineRanks);
  std::vector<int> ranks = slowest_ranks(events, kMaxTimelineRanks);
  const auto is_shown = [&](const TimelineEvent& event) {
    return std::find(ranks.begin(), ranks.end(), event.rank) != ranks.end();
  };
  // Rather some ranks whole than the beginning of all.
  if (const auto count = static_cast<size_t>(std::ranges::count_if(events, is_shown)); count > kMaxEvents) {
    ranks = slowest_ranks(events, std::max(size_t{1}, ranks.size() * kMaxEvents / count));
  }
  Json list = Json::array();
  size_t num_events = 0;
  for (const TimelineEvent& event : events) {
    if (!is_shown(event) || ++num_events > kMaxEvents) continue;
    const auto micros = [](double seconds) { return std::round(seconds * 1e7) / 10; };
    list.push_back({event.rank, static_cast<int>(event.lane), event.backward ? 1 : 0, event.stage,
                    micros(event.begin_s), micros(event.end_s)});
  }
  return {{"measured", measured}, {"ranks", ranks}, {"events", list}, {"dropped", num_events - list.size()}};
}

Json choices_json(const Plan& plan, const std::vector<PlanChoice>& choices) {
  Json list = Json::array();
  for (const PlanChoice& choice : choices) {
    list.push_back({{"algorithm", std::string(to_string(choice.algorithm))},
                    {"chosen", choice.algorithm == plan.algorithm},
                    {"chunk_size", choice.chunk_size},
                    {"balance", choice.balance},
                    {"rows_moved", choice.rows_moved},
                    {"step_s", choice.step_s},
                    {"exposed_s", choice.exposed_s}});
  }
  return list;
}

// Runs of chunks of one rank: their lengths and ranks in turn. There may be a chunk for every row.
Json flat_runs(const Dispatch& dispatch) {
  Json flat = Json::array();
  int64_t begin = 0;
  for (const OwnedChunks& run : dispatch.rank_of_chunk.runs()) {
    flat.push_back(run.end - begin);
    flat.push_back(run.rank);
    begin = run.end;
  }
  return flat;
}

// Under another strategy every rank receives alike; what it holds is not counted in rows of K/V.
Json grid_ranks_json(const Plan& plan) {
  const std::vector<int64_t> peak_bytes = peak_bytes_of_ranks(plan, plan.cp_size());
  const std::vector<RankPlan> totals = plan.rank_totals();
  Json ranks = Json::array();
  for (int r = 0; r < plan.cp_size(); ++r) {
    ranks.push_back({{"rank", r},
                     {"area", totals[static_cast<size_t>(r)].area},
                     {"rows", plan.q_dispatch.rows_per_rank()},
                     {"peak_bytes", peak_bytes[static_cast<size_t>(r)]}});
  }
  return ranks;
}

// JSON that may stand in a <script>: "</" and "<!--" would end or open something there.
std::string script_safe(const Json& json) {
  std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  for (size_t at = 0; (at = text.find('<', at)) != std::string::npos;) text.replace(at, 1, "\\u003c");
  return text;
}

}  // namespace

std::string html_report(const PlanSummary& summary, const ReportExtras& extras) {
  const Plan& plan = *summary.plan;
  Json data = plan_json(summary);
  data["dispatch"] = flat_runs(plan.q_dispatch);
  if (data.contains("dispatch_k")) data["dispatch_k"] = flat_runs(plan.k_dispatch);
  int64_t drawn_area = 0;
  data["slices"] = slices_json(plan.mask, drawn_area);
  data["drawn_area"] = drawn_area;
  data["timeline"] = timeline_json(plan, extras);
  if (plan.grid() == nullptr) {
    data["stage_runs"] = stage_runs_json(plan);
    const std::vector<PlanChoice> choices = compare_choices(plan);
    data["choices"] = choices_json(plan, choices);
    data["reasons"] = plan_reasons(plan, choices);
    TrafficMatrix matrix = traffic_matrix(plan);
    data["rows_sent"] = std::move(matrix.rows);
    data["rows_sent_group"] = matrix.group;
  } else {
    data["stage_runs"] = nullptr;
    data["ranks"] = grid_ranks_json(plan);
    data["grid"]["text"] = grid_text(plan);
  }
  data["figures"] = extras.figures;
  const HeadConfig& heads = plan.config.heads;
  data["heads"] = {{"q", heads.num_heads_q},
                   {"kv", heads.num_heads_kv},
                   {"dim", heads.head_dim},
                   {"dim_v", heads.head_dim_v},
                   {"dtype", std::string(to_string(heads.dtype))}};

  std::string html(embedded::kReportHtml);
  fill_in(html, "<!--NODES-->", has_node_summary(plan) ? nodes_html(plan) : "");
  fill_in(html, "/*CSS*/", embedded::kReportCss);
  fill_in(html, "/*JS*/", embedded::kReportJs);
  fill_in(html, "/*DATA*/", script_safe(data));
  return html;
}

}  // namespace tangram::cli
