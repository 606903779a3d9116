// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A plan as JSON. Writing is exact; reading trusts nothing: limits on size and depth, exact keys, and then every
// derived part is made again from mask, dispatches and stages, and must be what the text says.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "core/require.hpp"
#include "plan/grid/grid.hpp"
#include "plan/rank_plan.hpp"
#include "plan/stages.hpp"
#include "plan/validate.hpp"
#include "tangram/plan.hpp"

namespace tangram {

namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxBytes = size_t{1} << 30;
constexpr int kMaxDepth = 12;

// ---- writing ----

// An open diagonal is null, as in the mask files of the command line.
Json encode(const AttnSlice& slice) {
  return {slice.q_range.begin,
          slice.q_range.end,
          slice.k_range.begin,
          slice.k_range.end,
          slice.min_diag > kOpenMinDiag ? Json(slice.min_diag) : Json(nullptr),
          slice.max_diag < kOpenMaxDiag ? Json(slice.max_diag) : Json(nullptr)};
}

Json encode(const RowCopy& copy) { return {copy.peer, copy.rows.begin, copy.rows.end, copy.peer_row}; }

Json encode(const KvSegment& s) {
  return {s.global.begin, s.global.end, s.row, s.owner, s.owner_row, s.stage_fwd, s.stage_bwd};
}

Json encode(const Stage& stage);
Json encode(const RankPlan& rank);
Json encode(const StrategyCandidate& candidate);

template <class T>
Json encode(const std::vector<T>& list) {
  Json result = Json::array();
  for (const T& item : list) result.push_back(encode(item));
  return result;
}

Json encode(const Stage& stage) {
  return {{"area", stage.area},
          {"kept", stage.kept},
          {"slices", encode(stage.slices)},
          {"sends", encode(stage.exchange.sends)},
          {"recvs", encode(stage.exchange.recvs)}};
}

Json encode(const RankPlan& rank) {
  return {{"area", rank.area},
          {"kv_rows", rank.kv_rows},
          {"remote_kv_rows", rank.remote_kv_rows},
          {"slices", encode(rank.slices)},
          {"segments", encode(rank.segments)},
          {"forward", encode(rank.forward)},
          {"backward", encode(rank.backward)}};
}

// As many chunks as runs may stand for in a text, which says how long it is but not how much memory it takes.
constexpr int64_t kMaxChunksOfRuns = 1 << 24;

// By runs of chunks where that is shorter: cut at any row, a long sequence has a million chunks.
Json encode(const Dispatch& dispatch) {
  const std::vector<int>& ranks = dispatch.rank_of_chunk;
  Json runs = Json::array();
  for (auto begin = ranks.begin(); begin != ranks.end();) {
    const auto end = std::find_if(begin, ranks.end(), [&](int rank) { return rank != *begin; });
    runs.push_back({end - begin, *begin});
    begin = end;
  }
  if (4 * runs.size() >= ranks.size() || dispatch.num_chunks() > kMaxChunksOfRuns) {
    return {{"chunk_size", dispatch.chunk_size}, {"rank_of_chunk", ranks}};
  }
  return {{"chunk_size", dispatch.chunk_size}, {"runs", std::move(runs)}};
}

Json encode(const StrategyConfig& strategy) {
  Json json = {{"name", std::string(to_string(strategy.name))},
               {"head_ranks", strategy.head_ranks},
               {"inner_ring", strategy.inner_ring},
               {"head_chunks", strategy.head_chunks}};
  if (strategy.document_rows != 0) json["document_rows"] = strategy.document_rows;
  return json;
}

Json encode(const PredictedTime& time) {
  return {{"forward_s", time.forward_s}, {"backward_s", time.backward_s}, {"exposed_s", time.exposed_s}};
}

Json encode(const StrategyCandidate& candidate) {
  return {{"strategy", encode(candidate.strategy)},
          {"impossible", candidate.impossible},
          {"predicted", encode(candidate.predicted)}};
}

Json encode(const MovementConfig& movement) {
  return {{"algorithm", std::string(to_string(movement.algorithm))}, {"head_groups", movement.head_groups}};
}

Json encode(const DistAttnConfig& config) {
  Json json = {{"cp_size", config.cp_size},
               {"heads",
                {{"num_heads_q", config.heads.num_heads_q},
                 {"num_heads_kv", config.heads.num_heads_kv},
                 {"head_dim", config.heads.head_dim},
                 {"head_dim_v", config.heads.head_dim_v},
                 {"dtype", std::string(to_string(config.heads.dtype))}}},
               {"dispatch",
                {{"algorithm", std::string(to_string(config.dispatch.algorithm))},
                 {"chunk_size", config.dispatch.chunk_size},
                 {"seed", config.dispatch.seed}}},
               {"overlap",
                {{"num_stages_fwd", config.overlap.num_stages_fwd},
                 {"num_stages_bwd", config.overlap.num_stages_bwd},
                 {"keep_remote_kv", config.overlap.keep_remote_kv}}},
               {"cost",
                {{"forward_flops_per_s", config.cost.forward_flops_per_s},
                 {"backward_flops_per_s", config.cost.backward_flops_per_s},
                 {"link_bytes_per_s", config.cost.link_bytes_per_s},
                 {"copy_latency_s", config.cost.copy_latency_s},
                 {"stage_overhead_s", config.cost.stage_overhead_s}}},
               {"reduce_dtype", std::string(to_string(config.reduce_dtype))}};
  // Left out where they are as in plans from before there were others.
  if (config.cost.tile_rows != CostModel{}.tile_rows) json["cost"]["tile_rows"] = config.cost.tile_rows;
  if (config.strategy != StrategyConfig{}) json["strategy"] = encode(config.strategy);
  if (config.movement != MovementConfig{}) json["movement"] = encode(config.movement);
  if (config.overlap.launch_order != LaunchOrder::kAuto) {
    json["overlap"]["launch_order"] = std::string(to_string(config.overlap.launch_order));
  }
  if (config.overlap.sm_margin != 0) json["overlap"]["sm_margin"] = config.overlap.sm_margin;
  return json;
}

// ---- reading ----

// A value with the path that led to it, for messages.
class Reader {
 public:
  Reader(const Json& value, std::string path) : value_(&value), path_(std::move(path)) {}

  // An object with these keys, and perhaps the optional ones.
  void expect_keys(std::initializer_list<const char*> keys, std::initializer_list<const char*> optional = {}) const {
    require(value_->is_object(), "plan_from_json: {} must be an object (got {})", path_, value_->type_name());
    for (const auto& item : value_->items()) {
      const auto known = [&](const auto& list) {
        return std::find(list.begin(), list.end(), item.key()) != list.end();
      };
      require(known(keys) || known(optional), "plan_from_json: {} has an unknown key '{}'", path_, item.key());
    }
    for (const char* key : keys) {
      require(value_->contains(key), "plan_from_json: {} must have the key '{}'", path_, key);
    }
  }
  Reader operator[](const char* key) const { return {value_->at(key), path_ + "." + key}; }
  Reader operator[](size_t i) const { return {(*value_)[i], path_ + "[" + std::to_string(i) + "]"}; }
  size_t array_size() const {
    require(value_->is_array(), "plan_from_json: {} must be an array (got {})", path_, value_->type_name());
    return value_->size();
  }
  bool has(const char* key) const { return value_->is_object() && value_->contains(key); }
  bool is_null() const { return value_->is_null(); }

  int64_t integer(int64_t min, int64_t max) const {
    require(value_->is_number_integer() && !(value_->is_number_unsigned() && value_->get<uint64_t>() > INT64_MAX),
            "plan_from_json: {} must be a whole number of 64 bits (got {})", path_, value_->dump());
    const int64_t number = value_->get<int64_t>();
    require(min <= number && number <= max, "plan_from_json: {} must lie in [{}, {}] (got {})", path_, min, max,
            number);
    return number;
  }
  uint64_t unsigned_integer() const {
    require(value_->is_number_unsigned(), "plan_from_json: {} must be a whole number, not negative (got {})", path_,
            value_->dump());
    return value_->get<uint64_t>();
  }
  int small(int max = 1 << 30) const { return static_cast<int>(integer(0, max)); }
  int64_t count() const { return integer(0, INT64_MAX); }
  double number() const {
    require(value_->is_number(), "plan_from_json: {} must be a number (got {})", path_, value_->type_name());
    return value_->get<double>();
  }
  bool flag() const {
    require(value_->is_boolean(), "plan_from_json: {} must be true or false (got {})", path_, value_->type_name());
    return value_->get<bool>();
  }
  const std::string& text() const {
    require(value_->is_string(), "plan_from_json: {} must be a string (got {})", path_, value_->type_name());
    return value_->get_ref<const std::string&>();
  }
  // A list of numbers of a given length.
  void expect_tuple(size_t size) const {
    require(array_size() == size, "plan_from_json: {} must have {} entries (got {})", path_, size, value_->size());
  }
  const std::string& path() const { return path_; }

 private:
  const Json* value_;
  std::string path_;
};

constexpr int64_t kMaxRow = int64_t{1} << 31;

void read(const Reader& in, AttnSlice& slice) {
  in.expect_tuple(6);
  const auto row = [&](size_t i) { return in[i].integer(0, kMaxRow); };
  slice.q_range = {row(0), row(1)};
  slice.k_range = {row(2), row(3)};
  slice.min_diag = in[4].is_null() ? kOpenMinDiag : in[4].integer(-kMaxRow, kMaxRow);
  slice.max_diag = in[5].is_null() ? kOpenMaxDiag : in[5].integer(-kMaxRow, kMaxRow);
}

void read(const Reader& in, RowCopy& copy) {
  in.expect_tuple(4);
  copy = {in[size_t{0}].small(), {in[1].count(), in[2].count()}, in[3].count()};
}

void read(const Reader& in, KvSegment& s) {
  in.expect_tuple(7);
  s = {{in[size_t{0}].count(), in[1].count()},
       in[2].count(),
       in[3].small(),
       in[4].count(),
       in[5].small(),
       in[6].small()};
}

void read(const Reader& in, Stage& stage);
void read(const Reader& in, RankPlan& rank);
void read(const Reader& in, StrategyCandidate& candidate);

template <class T>
void read(const Reader& in, std::vector<T>& list) {
  list.resize(in.array_size());
  for (size_t i = 0; i < list.size(); ++i) read(in[i], list[i]);
}

void read(const Reader& in, Stage& stage) {
  in.expect_keys({"area", "kept", "slices", "sends", "recvs"});
  stage.area = in["area"].count();
  stage.kept = in["kept"].flag();
  read(in["slices"], stage.slices);
  read(in["sends"], stage.exchange.sends);
  read(in["recvs"], stage.exchange.recvs);
}

void read(const Reader& in, RankPlan& rank) {
  in.expect_keys({"area", "kv_rows", "remote_kv_rows", "slices", "segments", "forward", "backward"});
  rank.area = in["area"].count();
  rank.kv_rows = in["kv_rows"].count();
  rank.remote_kv_rows = in["remote_kv_rows"].count();
  read(in["slices"], rank.slices);
  read(in["segments"], rank.segments);
  read(in["forward"], rank.forward);
  read(in["backward"], rank.backward);
}

Dispatch read_dispatch(const Reader& in, int cp_size) {
  in.expect_keys({"chunk_size"}, {"rank_of_chunk", "runs"});
  require(in.has("rank_of_chunk") != in.has("runs"),
          "plan_from_json: {} must have either the key 'rank_of_chunk' or the key 'runs'", in.path());
  Dispatch dispatch{cp_size, in["chunk_size"].integer(1, kMaxRow), {}};
  if (in.has("runs")) {
    const Reader runs = in["runs"];
    for (size_t i = 0; i < runs.array_size(); ++i) {
      runs[i].expect_tuple(2);
      const int64_t num_chunks = runs[i][size_t{0}].integer(1, kMaxChunksOfRuns - dispatch.num_chunks());
      dispatch.rank_of_chunk.insert(dispatch.rank_of_chunk.end(), static_cast<size_t>(num_chunks), runs[i][1].small());
    }
    return dispatch;
  }
  const Reader ranks = in["rank_of_chunk"];
  dispatch.rank_of_chunk.resize(ranks.array_size());
  for (size_t i = 0; i < dispatch.rank_of_chunk.size(); ++i) dispatch.rank_of_chunk[i] = ranks[i].small();
  return dispatch;
}

StrategyConfig read_strategy(const Reader& in) {
  StrategyConfig strategy;
  if (in.has("document_rows")) {
    in.expect_keys({"name", "head_ranks", "inner_ring", "head_chunks", "document_rows"});
    strategy.document_rows = in["document_rows"].integer(0, kMaxRow);
  } else {
    in.expect_keys({"name", "head_ranks", "inner_ring", "head_chunks"});
  }
  strategy.name = parse_strategy(in["name"].text());
  strategy.head_ranks = in["head_ranks"].small();
  strategy.inner_ring = in["inner_ring"].small();
  const Reader chunks = in["head_chunks"];
  for (size_t i = 0; i < chunks.array_size(); ++i) strategy.head_chunks.push_back(chunks[i].small());
  return strategy;
}

PredictedTime read_predicted(const Reader& in) {
  in.expect_keys({"forward_s", "backward_s", "exposed_s"});
  const PredictedTime time{in["forward_s"].number(), in["backward_s"].number(), in["exposed_s"].number()};
  for (const double seconds : {time.forward_s, time.backward_s, time.exposed_s}) {
    require(std::isfinite(seconds) && seconds >= 0, "plan_from_json: predicted times must not be negative (got {})",
            seconds);
  }
  return time;
}

void read(const Reader& in, StrategyCandidate& candidate) {
  in.expect_keys({"strategy", "impossible", "predicted"});
  candidate = {read_strategy(in["strategy"]), in["impossible"].text(), read_predicted(in["predicted"])};
}

DistAttnConfig read_config(const Reader& in) {
  DistAttnConfig config;
  in.expect_keys({"cp_size", "heads", "dispatch", "overlap", "cost", "reduce_dtype"}, {"strategy", "movement"});
  if (in.has("strategy")) config.strategy = read_strategy(in["strategy"]);
  if (in.has("movement")) {
    const Reader movement = in["movement"];
    movement.expect_keys({"algorithm", "head_groups"});
    config.movement = {parse_movement(movement["algorithm"].text()), movement["head_groups"].small()};
  }
  config.cp_size = in["cp_size"].small();
  const Reader heads = in["heads"];
  heads.expect_keys({"num_heads_q", "num_heads_kv", "head_dim", "head_dim_v", "dtype"});
  config.heads = {heads["num_heads_q"].small(), heads["num_heads_kv"].small(), heads["head_dim"].small(),
                  heads["head_dim_v"].small(), parse_dtype(heads["dtype"].text())};
  const Reader dispatch = in["dispatch"];
  dispatch.expect_keys({"algorithm", "chunk_size", "seed"});
  config.dispatch = {parse_dispatch_algorithm(dispatch["algorithm"].text()), dispatch["chunk_size"].integer(0, kMaxRow),
                     dispatch["seed"].unsigned_integer()};
  const Reader overlap = in["overlap"];
  overlap.expect_keys({"num_stages_fwd", "num_stages_bwd", "keep_remote_kv"}, {"launch_order", "sm_margin"});
  config.overlap = {overlap["num_stages_fwd"].small(), overlap["num_stages_bwd"].small(),
                    overlap["keep_remote_kv"].flag()};
  if (overlap.has("launch_order")) config.overlap.launch_order = parse_launch_order(overlap["launch_order"].text());
  if (overlap.has("sm_margin")) config.overlap.sm_margin = overlap["sm_margin"].small();
  const Reader cost = in["cost"];
  cost.expect_keys(
      {"forward_flops_per_s", "backward_flops_per_s", "link_bytes_per_s", "copy_latency_s", "stage_overhead_s"},
      {"tile_rows"});
  config.cost = {cost["forward_flops_per_s"].number(), cost["backward_flops_per_s"].number(),
                 cost["link_bytes_per_s"].number(), cost["copy_latency_s"].number(), cost["stage_overhead_s"].number()};
  if (cost.has("tile_rows")) config.cost.tile_rows = cost["tile_rows"].integer(1, kMaxRow);
  config.reduce_dtype = parse_dtype(in["reduce_dtype"].text());
  return config;
}

Mask read_mask(const Reader& in) {
  in.expect_keys({"seqlen_q", "seqlen_k", "slices"});
  std::vector<AttnSlice> slices;
  read(in["slices"], slices);
  return Mask(in["seqlen_q"].count(), in["seqlen_k"].count(), std::move(slices));
}

// Stages are the planner's choice and cannot be derived, but they must be numbered as stages are.
StageCounts check_stage_numbers(const Plan& plan) {
  const StageCounts counts{static_cast<int>(plan.ranks[0].forward.size()) - 1,
                           static_cast<int>(plan.ranks[0].backward.size()) - 1};
  require(counts.forward >= 0 && counts.backward >= 0, "plan_from_json: both passes must have a local stage");
  const bool keep = plan.config.overlap.keep_remote_kv;
  for (int r = 0; r < plan.cp_size(); ++r) {
    for (const KvSegment& segment : plan.ranks[static_cast<size_t>(r)].segments) {
      const auto fits = [&](int stage, int count) {
        return segment.owner == r ? stage == 0 : 1 <= stage && stage <= count;
      };
      require(
          fits(segment.stage_fwd, counts.forward) && fits(segment.stage_bwd, counts.backward),
          "plan_from_json: local rows must be in stage 0 and remote rows in a remote stage (got stages {} and {} of "
          "rank {} for rows [{}, {}))",
          segment.stage_fwd, segment.stage_bwd, r, segment.global.begin, segment.global.end);
      require(!keep || segment.owner == r ||
                  (segment.stage_fwd == counts.forward) == (segment.stage_bwd == counts.backward),
              "plan_from_json: with keep_remote_kv the last stage of both passes must hold the same rows (rank {})", r);
    }
  }
  return counts;
}

// The segments as they were before stages cut them.
std::vector<KvSegment> without_stages(const std::vector<KvSegment>& segments) {
  std::vector<KvSegment> result;
  for (KvSegment segment : segments) {
    segment.stage_fwd = segment.stage_bwd = 0;
    if (!result.empty()) {
      KvSegment& last = result.back();
      if (last.global.end == segment.global.begin && last.row + last.global.size() == segment.row &&
          last.owner == segment.owner && last.owner_row + last.global.size() == segment.owner_row) {
        last.global.end = segment.global.end;
        continue;
      }
    }
    result.push_back(segment);
  }
  return result;
}

// A grid and moved work are not written but made again; what is written of them must fit.
void check_remade(Plan& plan) {
  Plan expected = make_plan(plan.mask, plan.config, plan.q_dispatch, plan.k_dispatch);
  require(plan.ranks == expected.ranks,
          "plan_from_json: ranks must follow from the mask, the dispatches and the strategy, but differ");
  plan.grid = std::move(expected.grid);
  plan.movement = std::move(expected.movement);
}

// Makes everything that follows from mask, dispatches and stage numbers, and compares.
void check_consistent(Plan& plan) {
  validate_dispatch(plan.q_dispatch, plan.cp_size(), plan.mask.seqlen_q(), "plan_from_json: q_dispatch");
  validate_dispatch(plan.k_dispatch, plan.cp_size(), plan.mask.seqlen_k(), "plan_from_json: k_dispatch");
  require(static_cast<int>(plan.ranks.size()) == plan.cp_size(),
          "plan_from_json: ranks must have cp_size entries (got {} and cp_size={})", plan.ranks.size(), plan.cp_size());
  if (plan.config.strategy.name != Strategy::kTangram || plan.config.movement.algorithm != Movement::kKv) {
    check_remade(plan);
    return;
  }
  const StageCounts counts = check_stage_numbers(plan);
  std::vector<RankPlan> expected = make_rank_plans(plan.mask, plan.q_dispatch, plan.k_dispatch);
  for (size_t r = 0; r < expected.size(); ++r) {
    require(without_stages(plan.ranks[r].segments) == expected[r].segments,
            "plan_from_json: ranks[{}].segments must follow from the mask and the dispatches, but differ", r);
    expected[r].segments = plan.ranks[r].segments;
  }
  build_stages(expected, counts, plan.config.overlap.keep_remote_kv);
  for (size_t r = 0; r < expected.size(); ++r) {
    require(expected[r] == plan.ranks[r],
            "plan_from_json: ranks[{}] must follow from the mask and the dispatches, but differs", r);
  }
}

// Builds values, but no deeper than a plan is: the depth of the text is not the caller's to choose.
Json parse_bounded(std::string_view text) {
  require(text.size() <= kMaxBytes, "plan_from_json: text must not exceed {} bytes (got {})", kMaxBytes, text.size());
  const auto limit_depth = [](int depth, Json::parse_event_t, Json&) {
    require(depth <= kMaxDepth, "plan_from_json: text must not nest deeper than {}", kMaxDepth);
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), limit_depth);
  } catch (const Json::exception& error) {
    require(false, "plan_from_json: text must be JSON ({})", error.what());
  }
  return {};
}

}  // namespace

std::string plan_to_json(const Plan& plan) {
  Json json = {{"format_version", kPlanFormatVersion},
               {"mask",
                {{"seqlen_q", plan.mask.seqlen_q()},
                 {"seqlen_k", plan.mask.seqlen_k()},
                 {"slices", encode(std::vector<AttnSlice>(plan.mask.slices().begin(), plan.mask.slices().end()))}}},
               {"config", encode(plan.config)},
               {"algorithm", std::string(to_string(plan.algorithm))},
               {"q_dispatch", encode(plan.q_dispatch)},
               {"k_dispatch", encode(plan.k_dispatch)},
               {"ranks", encode(plan.ranks)},
               {"predicted", encode(plan.predicted)}};
  if (!plan.candidates.empty()) json["candidates"] = encode(plan.candidates);
  return json.dump();
}

Plan plan_from_json(std::string_view text) {
  const Json json = parse_bounded(text);
  const Reader in(json, "plan");
  require(json.is_object() && json.contains("format_version"),
          "plan_from_json: plan must have the key 'format_version'");
  const int64_t version = in["format_version"].count();
  require(version == kPlanFormatVersion, "plan_from_json: format_version must be {} (got {})", kPlanFormatVersion,
          version);
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
  read(in["ranks"], plan.ranks);
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
