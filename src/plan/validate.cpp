// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/validate.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/require.hpp"
#include "machine/head_dim_rates.hpp"
#include "plan/runs.hpp"
#include "tangram/error.hpp"

namespace tangram {

namespace {

constexpr int kMaxRanks = 1 << 16;
constexpr int kMaxStageCount = 64;
constexpr int kMaxSmMargin = 128;
constexpr int kMaxHeads = 1 << 16;
constexpr int64_t kMaxRowElements = 1 << 20;  // so that bytes of 2^31 rows can be added up
constexpr int64_t kMaxTileRows = 1 << 16;

void validate_length(int64_t seqlen, const char* name, const DistAttnConfig& config, const char* function) {
  const int64_t chunk_size = std::max<int64_t>(config.dispatch.chunk_size, 1);
  require(seqlen > 0, "{}: {} must be positive (got {})", function, name, seqlen);
  require(seqlen / config.cp_size >= chunk_size,
          "{}: every rank needs a chunk, so cp_size must not exceed {} / chunk_size (got {}={}, cp_size={}, "
          "chunk_size={})",
          function, name, name, seqlen, config.cp_size, chunk_size);
  require(seqlen % (config.cp_size * chunk_size) == 0,
          "{}: {} must be a multiple of cp_size * chunk_size, pad it by compute_pad_size (got {}={}, cp_size={}, "
          "chunk_size={})",
          function, name, name, seqlen, config.cp_size, chunk_size);
}

}  // namespace

std::optional<UselessParameter> find_useless(const StrategyConfig& strategy) {
  using enum Strategy;
  const auto is_one_of = [&](std::initializer_list<Strategy> names) {
    return std::find(names.begin(), names.end(), strategy.name) != names.end();
  };
  const auto useless = [&](const char* name, const char* having) -> UselessParameter {
    return {name, fmt::format("strategy {} (got {})", having, to_string(strategy.name))};
  };
  if (strategy.name == kAuto) return std::nullopt;
  if (strategy.ulysses_degree != 0 && !is_one_of({kUsp, kLoongTrain}))
    return useless("ulysses_degree", "usp or loong_train");
  if (strategy.inner_ring_size != 0 && !is_one_of({kLoongTrain})) return useless("inner_ring_size", "loong_train");
  if (!strategy.head_chunks.empty() && !is_one_of({kHcms})) return useless("head_chunks", "hcms");
  if (strategy.document_rows != 0 && !is_one_of({kHybridCp})) return useless("document_rows", "hybrid_cp");
  return std::nullopt;
}

std::optional<UselessParameter> find_useless(const MovementConfig& movement) {
  if (movement.head_groups == 0 || movement.algorithm != Movement::kKv) return std::nullopt;
  return UselessParameter{"head_groups", "a movement in which queries move (got kv)"};
}

void validate_heads(const HeadConfig& heads, const char* function) {
  require(heads.num_heads_q >= 1 && heads.num_heads_q <= kMaxHeads && heads.num_heads_kv >= 1 &&
              heads.num_heads_q % heads.num_heads_kv == 0,
          "{}: num_heads_q must be a positive multiple of num_heads_kv (got num_heads_q={}, num_heads_kv={})", function,
          heads.num_heads_q, heads.num_heads_kv);
  require(1 <= heads.head_dim && heads.head_dim <= kMaxHeads && 1 <= heads.head_dim_v && heads.head_dim_v <= kMaxHeads,
          "{}: head dims must be positive (got head_dim={}, head_dim_v={})", function, heads.head_dim,
          heads.head_dim_v);
  require(int64_t{heads.num_heads_q} * std::max(heads.head_dim, heads.head_dim_v) <= kMaxRowElements,
          "{}: rows must not exceed {} elements (got num_heads_q={}, head_dim={}, head_dim_v={})", function,
          kMaxRowElements, heads.num_heads_q, heads.head_dim, heads.head_dim_v);
}

void validate_config(const DistAttnConfig& config, const char* function) {
  require(1 <= config.cp_size && config.cp_size <= kMaxRanks, "{}: cp_size must lie in [1, {}] (got {})", function,
          kMaxRanks, config.cp_size);
  require(config.dispatch.chunk_size >= 0, "{}: dispatch.chunk_size must not be negative (got {})", function,
          config.dispatch.chunk_size);
  validate_heads(config.heads, function);
  const StrategyConfig& strategy = config.strategy;
  require(strategy.name != Strategy::kAuto || (strategy.ulysses_degree == 0 && strategy.inner_ring_size == 0 &&
                                               strategy.head_chunks.empty() && strategy.document_rows == 0),
          "{}: strategy auto chooses ulysses_degree, inner_ring_size, head_chunks and document_rows itself (got "
          "ulysses_degree={}, "
          "inner_ring_size={}, {} head_chunks, document_rows={})",
          function, strategy.ulysses_degree, strategy.inner_ring_size, strategy.head_chunks.size(),
          strategy.document_rows);
  if (const auto useless = find_useless(strategy)) {
    throw InvalidArgument(fmt::format("{}: strategy.{} needs {}", function, useless->name, useless->needs));
  }
  require(strategy.document_rows >= 0, "{}: strategy.document_rows must not be negative (got {})", function,
          strategy.document_rows);
  const HeadConfig& heads = config.heads;
  const MovementConfig& movement = config.movement;
  require(
      movement.algorithm == Movement::kKv || strategy.name == Strategy::kTangram || strategy.name == Strategy::kAuto,
      "{}: movement is a choice of the strategy tangram (got movement.algorithm={}, strategy={})", function,
      to_string(movement.algorithm), to_string(config.strategy.name));
  require(movement.head_groups >= 0 && (movement.head_groups == 0 || heads.num_heads_kv % movement.head_groups == 0),
          "{}: movement.head_groups must be 0 or a divisor of num_heads_kv (got {} and num_heads_kv={})", function,
          movement.head_groups, heads.num_heads_kv);
  const OverlapConfig& overlap = config.overlap;
  for (const int count : {overlap.num_stages_fwd, overlap.num_stages_bwd}) {
    require(0 <= count && count <= kMaxStageCount,
            "{}: numbers of stages must lie in [0, {}] (got num_stages_fwd={}, num_stages_bwd={})", function,
            kMaxStageCount, overlap.num_stages_fwd, overlap.num_stages_bwd);
  }
  require(!overlap.keep_remote_kv || overlap.num_stages_bwd != 1 || overlap.num_stages_fwd == 1,
          "{}: keep_remote_kv with num_stages_bwd=1 needs num_stages_fwd=1, else the rows that are not kept have "
          "no stage (got num_stages_fwd={})",
          function, overlap.num_stages_fwd);
  require(0 <= overlap.sm_margin && overlap.sm_margin <= kMaxSmMargin,
          "{}: overlap.sm_margin must lie in [0, {}] (got {})", function, kMaxSmMargin, overlap.sm_margin);
  require(overlap.sm_margin == 0 || overlap.launch_order == LaunchOrder::kAuto ||
              overlap.launch_order == LaunchOrder::kSmMargin,
          "{}: overlap.sm_margin goes with launch_order auto or sm_margin (got {} and {})", function, overlap.sm_margin,
          to_string(overlap.launch_order));
  const CostModel& cost = config.cost;
  for (const double rate : {cost.forward_flops_per_s, cost.backward_flops_per_s, cost.link_bytes_per_s,
                            cost.memory_bytes_per_s, cost.between_bytes_per_s}) {
    require(std::isfinite(rate) && rate > 0, "{}: rates of the cost model must be finite and positive (got {})",
            function, rate);
  }
  validate_head_dim_rates(cost.head_dim_rates, function, "cost.head_dim_rates");
  for (const double seconds :
       {cost.copy_latency_s, cost.stage_overhead_s, cost.backward_key_row_s, cost.between_message_s}) {
    require(std::isfinite(seconds) && seconds >= 0,
            "{}: times of the cost model must be finite and not negative (got {})", function, seconds);
  }
  require(cost.ranks_per_node >= 0 && (cost.ranks_per_node == 0 || cost.ranks_per_node >= config.cp_size ||
                                       config.cp_size % cost.ranks_per_node == 0),
          "{}: cost.ranks_per_node must divide cp_size, or be 0 for one node (got {} and cp_size={})", function,
          cost.ranks_per_node, config.cp_size);
  require(0 <= cost.between_sms && cost.between_sms < cost.sms,
          "{}: cost.between_sms must lie in [0, cost.sms) (got {} and sms={})", function, cost.between_sms, cost.sms);
  require(0 < cost.tile_rows && cost.tile_rows <= kMaxTileRows, "{}: cost.tile_rows must lie in [1, {}] (got {})",
          function, kMaxTileRows, cost.tile_rows);
}

void validate_config_of_mask(const DistAttnConfig& config, const char* function) {
  validate_config(config, function);
  if (const auto useless = find_useless(config.movement)) {
    throw InvalidArgument(fmt::format("{}: movement.{} needs {}", function, useless->name, useless->needs));
  }
}

void validate_plan_request(const Mask& mask, const DistAttnConfig& config, const char* function) {
  validate_config_of_mask(config, function);
  validate_length(mask.seqlen_q(), "seqlen_q", config, function);
  validate_length(mask.seqlen_k(), "seqlen_k", config, function);
}

void validate_dispatch(const Dispatch& dispatch, int cp_size, int64_t seqlen, const char* what) {
  require(dispatch.cp_size == cp_size, "{}.cp_size must equal config.cp_size (got {} and {})", what, dispatch.cp_size,
          cp_size);
  require(dispatch.chunk_size > 0, "{}.chunk_size must be positive (got {})", what, dispatch.chunk_size);
  require(dispatch.num_chunks() <= seqlen / dispatch.chunk_size && dispatch.seqlen() == seqlen,
          "{} must cover the sequence (got {} chunks of {} rows for {} rows)", what, dispatch.num_chunks(),
          dispatch.chunk_size, seqlen);
  std::vector<int64_t> num_chunks(static_cast<size_t>(cp_size));
  int64_t begin = 0;
  for (const auto& [end, rank] : dispatch.rank_of_chunk.runs()) {
    require(0 <= rank && rank < cp_size, "{}.rank_of_chunk[{}] must lie in [0, {}) (got {})", what, begin, cp_size,
            rank);
    num_chunks[static_cast<size_t>(rank)] += end - begin;
    begin = end;
  }
  for (int rank = 0; rank < cp_size; ++rank) {
    require(num_chunks[static_cast<size_t>(rank)] * cp_size == dispatch.num_chunks(),
            "{} must give every rank equally many chunks (got {} of {} for rank {})", what,
            num_chunks[static_cast<size_t>(rank)], dispatch.num_chunks(), rank);
  }
}

}  // namespace tangram
