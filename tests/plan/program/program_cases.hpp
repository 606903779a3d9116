// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Random plans, calls and targets whose programs are verified.
#pragma once

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "plan/program/emit.hpp"
#include "plan/program/grid_plans.hpp"
#include "runtime/movement_tables.hpp"
#include "tangram/head_masks.hpp"

namespace tangram::testing {

inline constexpr ProgramTarget kOnStreams{};
inline constexpr ProgramTarget kOnHost = kHostTarget;

/// What a case is drawn from: `draw(lo, hi)` is a number of [lo, hi].
class Draws {
 public:
  virtual ~Draws() = default;
  virtual int64_t draw(int64_t lo, int64_t hi) = 0;
  bool coin() { return draw(0, 1) == 1; }
  template <class Container>
  auto& one_of(Container& of) {
    return of[static_cast<size_t>(draw(0, std::ssize(of) - 1))];
  }
};

class Random final : public Draws {
 public:
  explicit Random(uint32_t seed) : rng_(seed) {}
  int64_t draw(int64_t lo, int64_t hi) override { return std::uniform_int_distribution<int64_t>(lo, hi)(rng_); }

 private:
  std::mt19937 rng_;
};

/// Documents of random lengths and kinds of mask; some rows see nothing.
inline Mask random_mask(Draws& random, int64_t rows) {
  std::vector<AttnSlice> slices;
  for (int64_t row = 0; row < rows;) {
    const int64_t end = std::min(rows, row + random.draw(1, random.coin() ? rows : 9));
    const Range document{row, end};
    switch (random.draw(0, 4)) {
      case 0: slices.push_back(AttnSlice::full(document, document)); break;
      case 1: slices.push_back(AttnSlice::inv_causal(document, document)); break;
      case 2: slices.push_back({document, document, -random.draw(0, 5), random.draw(0, 5)}); break;
      case 3: break;
      default: slices.push_back(AttnSlice::causal(document, document));
    }
    row = end;
  }
  return Mask(rows, rows, slices);
}

/// Tables that no planner would draw, or one mask for each group of heads, or what a planner chooses.
inline Plan random_movement(Draws& random, DistAttnConfig config, int64_t rows) {
  constexpr Movement kAlgorithms[] = {Movement::kQo,           Movement::kAuto,        Movement::kGreedyRandomGrid,
                                      Movement::kBinaryGreedy, Movement::kNetworkFlow, Movement::kLeastBytes};
  const int groups = random.coin() ? 1 : config.heads.num_heads_kv;
  const int64_t kind = random.draw(0, 3);
  config.movement = {kind == 0 ? random.one_of(kAlgorithms) : Movement::kQo, groups};
  if (config.movement.algorithm == Movement::kAuto) config.movement.head_groups = 0;
  if (kind == 1) {
    std::vector<Mask> masks;
    while (std::ssize(masks) < groups) masks.push_back(random_mask(random, rows));
    return make_plan(masks, config);
  }
  const Mask mask = random_mask(random, rows);
  Plan plan = make_plan(mask, config);
  if (kind == 0) return plan;
  const auto num_stages = static_cast<int>(random.draw(2, 4));
  const auto tables = [&] {
    const auto seed = static_cast<unsigned>(random.draw(0, 255));
    return RandomMovement(mask, plan.q_dispatch, plan.k_dispatch, groups, num_stages, seed).draw();
  };
  plan.tables = MovementPlan{groups, tables(), tables()};
  if (config.overlap.keep_remote_kv) plan.movement()->backward = plan.movement()->forward;
  return plan;
}

struct Case {
  std::shared_ptr<const Plan> plan;
  CallShape call;
  ProgramTarget target;
  bool kept = false;
  std::string text;
};

/// A plan of up to six ranks over 24 rows, a call and a target. Throws InvalidArgument where make_plan refuses.
inline Case random_case(Draws& random) {
  Case result;
  constexpr int kSizes[] = {1, 2, 3, 4, 6};
  const int cp_size = random.one_of(kSizes);
  const int64_t kind = random.draw(0, 5);
  const bool moves_q = kind < 2, moves_kv = kind < 4;
  const Strategy strategy = moves_kv ? Strategy::kTangram : random.one_of(kStrategies);
  constexpr DType kTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
  const HeadConfig heads =
      heads_of(cp_size, static_cast<int>(random.draw(0, 3)), 8, random.coin() ? 8 : 16, random.one_of(kTypes));
  StrategyConfig config{strategy, 0, 0, {}};
  if (strategy == Strategy::kHybridCp) config.document_rows = random.draw(0, 12);
  DistAttnConfig how;
  how.cp_size = cp_size;
  how.heads = heads;
  how.strategy = config;
  how.reduce_dtype = random.one_of(kTypes);
  how.overlap.num_stages_fwd = static_cast<int>(random.draw(0, 3));
  how.overlap.num_stages_bwd = static_cast<int>(random.draw(0, 3));
  how.overlap.keep_remote_kv = moves_kv && how.overlap.num_stages_bwd > 1 && random.coin();
  constexpr int64_t kRows = 24;
  result.plan = std::make_shared<const Plan>(moves_q ? random_movement(random, how, kRows)
                                                     : make_plan(random_mask(random, kRows), how));
  const auto result_type = [&] { return random.coin() ? heads.dtype : DType::kFloat32; };
  result.call = {result_type(), heads.dtype, result_type(), result_type(), result_type()};
  result.call.seqlen_sink = random.draw(0, 2);
  result.call.sink_layout = random.coin() ? SinkLayout::kSsh : SinkLayout::kSh;
  result.call.wants_dsink = random.coin();
  result.target = random.coin() ? kOnHost : kOnStreams;
  if (!result.target.sends_from_anywhere) result.target.ring_buffer_steps = static_cast<int>(random.draw(-1, 2));
  if (moves_kv && result.plan->movement() == nullptr && !result.target.sends_from_anywhere) {
    constexpr KeyCalls kCalls[] = {KeyCalls::kByStage, KeyCalls::kOnce, KeyCalls::kAsTheyCome};
    result.target.forward_calls = random.one_of(kCalls);
    result.target.backward_calls = random.one_of(kCalls);
    result.target.local_kv_halo = random.draw(-1, 2);
    result.target.stores_at_owners = random.coin();
  }
  result.kept = can_keep(*result.plan) && random.coin();
  result.text = std::string(moves_q ? "moved queries" : to_string(strategy)) + " on " + std::to_string(cp_size);
  return result;
}

}  // namespace tangram::testing
