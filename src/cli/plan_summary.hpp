// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A plan with its mask, its planning time and figures of traffic and balance, as text and JSON.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/options.hpp"
#include "tangram/plan.hpp"

namespace tangram::cli {

struct PlanSummary {
  std::string mask_name;
  int64_t pad_q = 0;
  int64_t pad_k = 0;
  std::shared_ptr<const Plan> plan;
  /// Masks of the plan: one mask for all heads, or one for each group of them. Padded.
  std::vector<Mask> masks;
  /// Median milliseconds of processor time of make_plan, from a validated mask to the whole plan of all ranks.
  double plan_ms = 0;
  int64_t rows_lower_bound = 0;
  /// K/V rows that cross ranks in a forward pass of Ring, in which all K/V visits every rank, and the bytes that
  /// Ulysses moves, as K/V rows. Ulysses moves q, k, v and out; K/V heads are repeated if there are fewer than ranks.
  int64_t ring_rows = 0;
  int64_t ulysses_rows = 0;
  /// K/V rows that each rank sends.
  std::vector<int64_t> rows_sent_by;
  /// rows_sent[a][b]: K/V rows that rank a sends to rank b. Empty with more than kMaxMatrixRanks ranks: the square of
  /// 65,536 of them takes 32 GiB.
  static constexpr int kMaxMatrixRanks = 1024;
  std::vector<std::vector<int64_t>> rows_sent;
};

/// Loads the mask, pads it, plans it. Throws InvalidArgument as its steps do.
PlanSummary make_plan_summary(const MaskOptions& mask_options, const DistOptions& dist_options);
PlanSummary make_plan_summary(const NamedMask& named, const DistAttnConfig& config);

/// Throws InvalidArgument if `output` asks for a report of a plan with QO communication: reports draw K/V alone.
void require_reportable(const Plan& plan, const OutputOptions& output);

/// Text that names the machine of the predicted times.
std::string constants_text(const DistAttnConfig& config);

/// Text like `8 chunks of 128 rows`, or `124 runs, cut at any row` if chunks have one row.
std::string chunks_text(const Dispatch& dispatch);

/// Bytes of K and V of one row of all heads.
int64_t kv_row_bytes_of(const HeadConfig& heads);

/// Text like `hcms, 1 row group x 4 head ranks, K/V heads in chunks of 1+2+1`, for a plan with a grid.
std::string grid_text(const Plan& plan);
/// Text like `qo, 1 head group; forward 1,024 query and 0 K/V rows in 1 stage; ...`, for a plan with QO communication.
std::string movement_text(const Plan& plan);
/// Whether a step hands on what forward fetched to backward. Strategies that exchange heads do so as published.
bool keeps_inputs(const Plan& plan);
/// Bytes that all ranks receive in a step with results in the inputs' dtype; not of a plan that moves K/V alone.
GridTraffic planned_traffic(const Plan& plan);
/// Candidates of --strategy auto, best first, with reasons; empty if a strategy was named.
std::string candidates_text(const Plan& plan);
std::string plan_text(const PlanSummary& summary);
nlohmann::json plan_json(const PlanSummary& summary);

/// `causal: 4,096 x 4,096 tokens`, or of how many head groups there are masks.
std::string mask_text(const PlanSummary& summary);
/// `padding: 24 rows appended ...` and a newline, or nothing.
std::string padding_text(const PlanSummary& summary);

}  // namespace tangram::cli
