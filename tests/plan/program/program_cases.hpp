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

namespace tangram::testing {

inline constexpr ProgramTarget kOnStreams{};
inline constexpr ProgramTarget kOnHost{.sends_from_anywhere = true, .chunks_ahead = 1, .float_unit = 1};

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
  const bool moves_kv = random.draw(0, 2) == 0;
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
  result.plan = std::make_shared<const Plan>(make_plan(random_mask(random, 24), how));
  const auto result_type = [&] { return random.coin() ? heads.dtype : DType::kFloat32; };
  result.call = {result_type(), heads.dtype, result_type(), result_type(), result_type()};
  result.call.seqlen_sink = random.draw(0, 2);
  result.call.sink_layout = random.coin() ? SinkLayout::kSsh : SinkLayout::kSh;
  result.call.wants_dsink = random.coin();
  result.target = moves_kv || random.coin() ? kOnHost : kOnStreams;
  const bool can_keep = moves_kv ? result.plan->ranks[0].backward.back().kept : result.plan->grid.head_ranks > 1;
  result.kept = can_keep && random.coin();
  result.text = std::string(to_string(strategy)) + " on " + std::to_string(cp_size);
  return result;
}

}  // namespace tangram::testing
