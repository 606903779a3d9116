// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Reading trusts nothing. It limits size and depth and requires exact keys (json_reader.hpp). Every derived part is
// computed anew and must equal the text (plan_check.hpp).
#include <array>
#include <cmath>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/require.hpp"
#include "plan/json_reader.hpp"
#include "plan/plan_check.hpp"
#include "plan/validate.hpp"
#include "tangram/plan.hpp"

namespace tangram {

namespace {

constexpr size_t kMaxBytes = size_t{1} << 30;
constexpr int kMaxDepth = 12;
constexpr int64_t kMaxRow = int64_t{1} << 31;

void read(const JsonReader& in, AttnSlice& slice) {
  in.expect_tuple(6);
  const auto row = [&](size_t i) { return in[i].integer(0, kMaxRow); };
  slice.q_range = {row(0), row(1)};
  slice.k_range = {row(2), row(3)};
  slice.min_diag = in[4].is_null() ? kOpenMinDiag : in[4].integer(-kMaxRow, kMaxRow);
  slice.max_diag = in[5].is_null() ? kOpenMaxDiag : in[5].integer(-kMaxRow, kMaxRow);
}

void read(const JsonReader& in, RowCopy& copy) {
  in.expect_tuple(4);
  copy = {in[size_t{0}].small(), {in[1].row(), in[2].row()}, in[3].row()};
}

void read(const JsonReader& in, KvSegment& s) {
  in.expect_tuple(7);
  s = {{in[size_t{0}].row(), in[1].row()}, in[2].row(), in[3].small(), in[4].row(), in[5].small(), in[6].small()};
}

void read(const JsonReader& in, Stage& stage);
void read(const JsonReader& in, RankPlan& rank);
void read(const JsonReader& in, StrategyCandidate& candidate);
void read(const JsonReader& in, HeadDimRate& rate);

template <class T>
void read(const JsonReader& in, std::vector<T>& list) {
  list.resize(in.array_size());
  for (size_t i = 0; i < list.size(); ++i) read(in[i], list[i]);
}

void read(const JsonReader& in, Stage& stage) {
  in.expect_keys({"area", "kept", "slices", "sends", "recvs"});
  stage.area = in["area"].count();
  stage.kept = in["kept"].flag();
  read(in["slices"], stage.slices);
  read(in["sends"], stage.exchange.sends);
  read(in["recvs"], stage.exchange.recvs);
}

void read(const JsonReader& in, RankPlan& rank) {
  in.expect_keys({"area", "kv_rows", "remote_kv_rows", "slices", "segments", "forward", "backward"});
  rank.area = in["area"].count();
  rank.kv_rows = in["kv_rows"].count();
  rank.remote_kv_rows = in["remote_kv_rows"].count();
  read(in["slices"], rank.slices);
  read(in["segments"], rank.segments);
  read(in["forward"], rank.forward);
  read(in["backward"], rank.backward);
}

Dispatch read_dispatch(const JsonReader& in, int cp_size) {
  in.expect_keys({"chunk_size"}, {"rank_of_chunk", "runs"});
  require(in.has("rank_of_chunk") != in.has("runs"),
          "plan_from_json: {} must have either the key 'rank_of_chunk' or the key 'runs'", in.path());
  Dispatch dispatch{cp_size, in["chunk_size"].integer(1, kMaxRow), {}};
  if (in.has("runs")) {
    const JsonReader runs = in["runs"];
    for (size_t i = 0; i < runs.array_size(); ++i) {
      runs[i].expect_tuple(2);
      const int64_t num_chunks = runs[i][size_t{0}].integer(1, kMaxChunksOfRuns - dispatch.num_chunks());
      dispatch.rank_of_chunk.append(num_chunks, runs[i][1].small());
    }
    return dispatch;
  }
  const JsonReader ranks = in["rank_of_chunk"];
  for (size_t i = 0; i < ranks.array_size(); ++i) dispatch.rank_of_chunk.push_back(ranks[i].small());
  return dispatch;
}

StrategyConfig read_strategy(const JsonReader& in) {
  StrategyConfig strategy;
  if (in.has("document_rows")) {
    in.expect_keys({"name", "ulysses_degree", "inner_ring_size", "head_chunks", "document_rows"});
    strategy.document_rows = in["document_rows"].integer(0, kMaxRow);
  } else {
    in.expect_keys({"name", "ulysses_degree", "inner_ring_size", "head_chunks"});
  }
  strategy.name = parse_strategy(in["name"].text());
  strategy.ulysses_degree = in["ulysses_degree"].small();
  strategy.inner_ring_size = in["inner_ring_size"].small();
  const JsonReader chunks = in["head_chunks"];
  for (size_t i = 0; i < chunks.array_size(); ++i) strategy.head_chunks.push_back(chunks[i].small());
  return strategy;
}

PredictedTime read_predicted(const JsonReader& in) {
  in.expect_keys({"forward_s", "backward_s", "exposed_s"});
  const PredictedTime time{in["forward_s"].number(), in["backward_s"].number(), in["exposed_s"].number()};
  for (const double seconds : {time.forward_s, time.backward_s, time.exposed_s}) {
    require(std::isfinite(seconds) && seconds >= 0, "plan_from_json: predicted times must not be negative (got {})",
            seconds);
  }
  return time;
}

void read(const JsonReader& in, StrategyCandidate& candidate) {
  in.expect_keys({"strategy", "impossible", "predicted"});
  candidate = {read_strategy(in["strategy"]), in["impossible"].text(), read_predicted(in["predicted"])};
}

void read(const JsonReader& in, HeadDimRate& rate) {
  in.expect_keys({"head_dim", "head_dim_v", "forward", "backward"});
  rate = {in["head_dim"].small(), in["head_dim_v"].small(), in["forward"].number(), in["backward"].number()};
}

DistAttnConfig read_config(const JsonReader& in) {
  DistAttnConfig config;
  in.expect_keys({"cp_size", "heads", "dispatch", "overlap", "cost", "reduce_dtype"}, {"strategy", "movement"});
  if (in.has("strategy")) config.strategy = read_strategy(in["strategy"]);
  if (in.has("movement")) {
    const JsonReader movement = in["movement"];
    movement.expect_keys({"algorithm", "head_groups"});
    config.movement = {parse_movement(movement["algorithm"].text()), movement["head_groups"].small()};
  }
  config.cp_size = in["cp_size"].small();
  const JsonReader heads = in["heads"];
  heads.expect_keys({"num_heads_q", "num_heads_kv", "head_dim", "head_dim_v", "dtype"});
  config.heads = {heads["num_heads_q"].small(), heads["num_heads_kv"].small(), heads["head_dim"].small(),
                  heads["head_dim_v"].small(), parse_dtype(heads["dtype"].text())};
  const JsonReader dispatch = in["dispatch"];
  dispatch.expect_keys({"algorithm", "chunk_size", "seed"});
  config.dispatch = {parse_dispatch_algorithm(dispatch["algorithm"].text()), dispatch["chunk_size"].integer(0, kMaxRow),
                     dispatch["seed"].unsigned_integer()};
  const JsonReader overlap = in["overlap"];
  overlap.expect_keys({"num_stages_fwd", "num_stages_bwd", "keep_remote_kv"}, {"launch_order", "sm_margin"});
  config.overlap = {overlap["num_stages_fwd"].small(), overlap["num_stages_bwd"].small(),
                    overlap["keep_remote_kv"].flag()};
  if (overlap.has("launch_order")) config.overlap.launch_order = parse_launch_order(overlap["launch_order"].text());
  if (overlap.has("sm_margin")) config.overlap.sm_margin = overlap["sm_margin"].small();
  const JsonReader cost = in["cost"];
  cost.expect_keys(
      {"forward_flops_per_s", "backward_flops_per_s", "link_bytes_per_s", "copy_latency_s", "stage_overhead_s"},
      {"tile_rows", "memory_bytes_per_s", "backward_key_row_s", "head_dim_rates", "nodes"});
  config.cost = {cost["forward_flops_per_s"].number(), cost["backward_flops_per_s"].number(),
                 cost["link_bytes_per_s"].number(), cost["copy_latency_s"].number(), cost["stage_overhead_s"].number()};
  // Plans written by older versions omit parameters that had these values.
  constexpr int64_t kTileRows = 128;
  constexpr double kMemoryBytesPerS = 2.0e12, kBackwardKeyRow_s = 3.0e-10;
  config.cost.tile_rows = cost.has("tile_rows") ? cost["tile_rows"].integer(1, kMaxRow) : kTileRows;
  config.cost.memory_bytes_per_s =
      cost.has("memory_bytes_per_s") ? cost["memory_bytes_per_s"].number() : kMemoryBytesPerS;
  config.cost.backward_key_row_s =
      cost.has("backward_key_row_s") ? cost["backward_key_row_s"].number() : kBackwardKeyRow_s;
  config.cost.head_dim_rates.clear();  // as it was when they were left out: one rate for all head dims
  if (cost.has("head_dim_rates")) read(cost["head_dim_rates"], config.cost.head_dim_rates);
  if (cost.has("nodes")) {
    const JsonReader nodes = cost["nodes"];
    nodes.expect_keys({"ranks_per_node", "between_bytes_per_s", "between_message_s", "between_sms", "sms"});
    config.cost.ranks_per_node = nodes["ranks_per_node"].small();
    config.cost.between_bytes_per_s = nodes["between_bytes_per_s"].number();
    config.cost.between_message_s = nodes["between_message_s"].number();
    config.cost.between_sms = nodes["between_sms"].small();
    config.cost.sms = nodes["sms"].small();
  }
  config.reduce_dtype = parse_dtype(in["reduce_dtype"].text());
  return config;
}

Mask read_mask(const JsonReader& in) {
  in.expect_keys({"seqlen_q", "seqlen_k", "slices"});
  std::vector<AttnSlice> slices;
  read(in["slices"], slices);
  return Mask(in["seqlen_q"].count(), in["seqlen_k"].count(), std::move(slices));
}

// Builds values, but no deeper than a plan is: the depth of the text is not the caller's to choose. Nor may a key come
// twice: of two values one would be dropped in silence.
Json parse_bounded(std::string_view text) {
  require(text.size() <= kMaxBytes, "plan_from_json: text must not exceed {} bytes (got {})", kMaxBytes, text.size());
  std::array<std::set<std::string>, kMaxDepth + 2> keys;  // of the open object at each depth
  const auto check = [&keys](int depth, Json::parse_event_t event, Json& value) {
    require(depth <= kMaxDepth, "plan_from_json: text must not nest deeper than {}", kMaxDepth);
    std::set<std::string>& seen = keys[static_cast<size_t>(depth)];
    if (event == Json::parse_event_t::object_end) keys[static_cast<size_t>(depth) + 1].clear();
    if (event != Json::parse_event_t::key) return true;
    const auto& key = value.get_ref<const std::string&>();
    require(seen.insert(key).second, "plan_from_json: text must not repeat the key '{}'", key.substr(0, 80));
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), check);
  } catch (const Json::exception& error) {
    constexpr size_t kMaxReason = 200;  // it quotes what was read last, however long
    require(false, "plan_from_json: text must be JSON ({})", std::string(error.what()).substr(0, kMaxReason));
  }
  return {};
}

}  // namespace

Plan plan_from_json(std::string_view text) {
  const Json json = parse_bounded(text);
  const JsonReader in(json, "plan");
  require(json.is_object() && json.contains("format_version"),
          "plan_from_json: plan must have the key 'format_version'");
  const int64_t version = in["format_version"].count();
  require(version == kPlanFormatVersion,
          "plan_from_json: format_version must be {} (got {}): save the plan anew with this version",
          kPlanFormatVersion, version);
  in.expect_keys({"format_version", "mask", "config", "algorithm", "q_dispatch", "k_dispatch", "ranks", "predicted"},
                 {"candidates"});
  Plan plan;
  plan.mask = read_mask(in["mask"]);
  plan.config = read_config(in["config"]);
  validate_config(plan.config, "plan_from_json");
  require(plan.config.strategy.name != Strategy::kAuto, "plan_from_json: config.strategy.name must be the chosen one");
  plan.algorithm = parse_dispatch_algorithm(in["algorithm"].text());
  plan.q_dispatch = read_dispatch(in["q_dispatch"], plan.config.cp_size);
  plan.k_dispatch = read_dispatch(in["k_dispatch"], plan.config.cp_size);
  read(in["ranks"], plan.tables.emplace<std::vector<RankPlan>>());
  plan.predicted = read_predicted(in["predicted"]);
  if (in.has("candidates")) {
    read(in["candidates"], plan.candidates);
    require(!plan.candidates.empty() && plan.candidates[0].impossible.empty() &&
                plan.candidates[0].strategy == plan.config.strategy,
            "plan_from_json: candidates must begin with the strategy of the plan");
  }
  check_consistent(plan);
  return plan;
}

}  // namespace tangram
