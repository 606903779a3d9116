// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A plan as JSON, exactly: what is read again is equal.
#include <algorithm>
#include <string>
#include <utility>

#include "plan/json_reader.hpp"
#include "plan/program/emit.hpp"
#include "tangram/plan.hpp"

namespace tangram {

namespace {

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
Json encode(const HeadDimRate& rate);

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

// By runs of chunks where that is shorter: cut at any row, a long sequence has a million chunks.
Json encode(const Dispatch& dispatch) {
  const RankOfChunk& ranks = dispatch.rank_of_chunk;
  if (4 * ranks.runs().size() >= ranks.size() || dispatch.num_chunks() > kMaxChunksOfRuns) {
    return {{"chunk_size", dispatch.chunk_size}, {"rank_of_chunk", ranks.expanded()}};
  }
  Json runs = Json::array();
  int64_t begin = 0;
  for (const OwnedChunks& run : ranks.runs()) {
    runs.push_back({run.end - begin, run.rank});
    begin = run.end;
  }
  return {{"chunk_size", dispatch.chunk_size}, {"runs", std::move(runs)}};
}

Json encode(const StrategyConfig& strategy) {
  Json json = {{"name", std::string(to_string(strategy.name))},
               {"ulysses_degree", strategy.ulysses_degree},
               {"inner_ring_size", strategy.inner_ring_size},
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

Json encode(const HeadDimRate& rate) {
  return {{"head_dim", rate.head_dim},
          {"head_dim_v", rate.head_dim_v},
          {"forward", rate.forward},
          {"backward", rate.backward}};
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
                 {"stage_overhead_s", config.cost.stage_overhead_s},
                 {"tile_rows", config.cost.tile_rows},
                 {"memory_bytes_per_s", config.cost.memory_bytes_per_s},
                 {"backward_key_row_s", config.cost.backward_key_row_s},
                 {"head_dim_rates", encode(config.cost.head_dim_rates)}}},
               {"reduce_dtype", std::string(to_string(config.reduce_dtype))}};
  // Left out where they are as in plans from before there were others.
  if (config.strategy != StrategyConfig{}) json["strategy"] = encode(config.strategy);
  if (config.movement != MovementConfig{}) json["movement"] = encode(config.movement);
  if (config.cost.ranks_per_node != 0) {
    json["cost"]["nodes"] = {{"ranks_per_node", config.cost.ranks_per_node},
                             {"between_bytes_per_s", config.cost.between_bytes_per_s},
                             {"between_message_s", config.cost.between_message_s},
                             {"between_sms", config.cost.between_sms},
                             {"sms", config.cost.sms}};
  }
  if (config.overlap.launch_order != LaunchOrder::kAuto) {
    json["overlap"]["launch_order"] = std::string(to_string(config.overlap.launch_order));
  }
  if (config.overlap.sm_margin != 0) json["overlap"]["sm_margin"] = config.overlap.sm_margin;
  return json;
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
               {"ranks", encode(moves_kv_alone(plan) ? plan.ranks() : plan.rank_totals())},
               {"predicted", encode(plan.predicted)}};
  if (!plan.candidates.empty()) json["candidates"] = encode(plan.candidates);
  return json.dump();
}

}  // namespace tangram
