// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Prints the masks on which schedules are timed, as JSON: those of the kernel benchmarks, what ranks get of the
// distributed ones, and random packs of causal documents. The file is committed as tests/data/tile_schedule_masks.json,
// since what ranks get changes with the planner.
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <numbers>
#include <random>
#include <string>
#include <vector>

#include "reference/mask_cases.hpp"
#include "tangram/plan.hpp"

namespace {

using namespace tangram;

bool is_first = true;

void print_case(const std::string& name, int64_t seqlen_q, int64_t seqlen_k, int heads_q, int heads_kv, int head_dim,
                const std::vector<AttnSlice>& slices) {
  fmt::print("{}\n  {{\"mask\": \"{}\", \"seqlen_q\": {}, \"seqlen_k\": {}, \"heads_q\": {}, \"heads_kv\": {}, ",
             is_first ? "" : ",", name, seqlen_q, seqlen_k, heads_q, heads_kv);
  fmt::print("\"head_dim\": {}, \"slices\": [", head_dim);
  is_first = false;
  const auto diag = [](int64_t value, int64_t open) { return value == open ? "null" : std::to_string(value); };
  for (size_t i = 0; i < slices.size(); ++i) {
    const AttnSlice& s = slices[i];
    fmt::print("{}[{}, {}, {}, {}, {}, {}]", i == 0 ? "" : ", ", s.q_range.begin, s.q_range.end, s.k_range.begin,
               s.k_range.end, diag(s.min_diag, kOpenMinDiag), diag(s.max_diag, kOpenMaxDiag));
  }
  fmt::print("]}}");
}

void print_whole_masks() {
  for (const reference::MaskCase& c : reference::load_mask_cases("masks.json")) {
    const bool is_one_slice = c.slices.size() == 1;  // full and causal: what work tiles of long masks lose
    if ((c.seqlen > 32768 && !is_one_slice) || c.area > 3'000'000'000) continue;
    print_case(c.name, c.seqlen, c.seqlen, 64, 8, 128, c.slices);
  }
}

void print_masks_of_ranks() {
  for (const reference::MaskCase& c : reference::load_mask_cases("dist_masks.json")) {
    for (const int cp_size : {4, 8}) {
      const int64_t rows = c.seqlen / cp_size;
      if (rows != 4096 && rows != 8192 && rows != 16384) continue;
      if (c.area / cp_size > 300'000'000) continue;
      DistAttnConfig config;
      config.cp_size = cp_size;
      config.heads = {64, 8, 128, 128, DType::kBFloat16};
      const Plan plan = make_plan(Mask(c.seqlen, c.seqlen, c.slices), config);
      const RankPlan& rank = plan.ranks()[static_cast<size_t>(cp_size) / 2];
      print_case(fmt::format("{}:of{}", c.name, cp_size), rows, rank.kv_rows, 64, 8, 128, rank.slices);
    }
  }
}

/// Lengths of documents that fill `rows` rows; the same on every machine.
class Packs {
 public:
  explicit Packs(uint64_t seed) : random_(seed) {}

  std::vector<AttnSlice> uniform(int64_t rows, bool causal) {
    return fill(rows, causal, [&] { return 64 + static_cast<int64_t>(share() * 4096); });
  }
  /// Documents with a median of 700 tokens; one in twenty is longer than 5,000.
  std::vector<AttnSlice> log_normal(int64_t rows, bool causal) {
    return fill(rows, causal, [&] {
      const double normal = std::sqrt(-2 * std::log(1 - share())) * std::cos(2 * std::numbers::pi * share());
      return 1 + static_cast<int64_t>(700 * std::exp(1.2 * normal));
    });
  }

 private:
  double share() { return static_cast<double>(random_() >> 11) * 0x1p-53; }

  template <typename Draw>
  static std::vector<AttnSlice> fill(int64_t rows, bool causal, const Draw& draw) {
    std::vector<AttnSlice> slices;
    for (int64_t begin = 0; begin < rows;) {
      const int64_t end = std::min(rows, begin + draw());
      const Range range{begin, end};
      slices.push_back(causal ? AttnSlice::causal(range, range) : AttnSlice::full(range, range));
      begin = end;
    }
    return slices;
  }

  std::mt19937_64 random_;
};

void print_packs() {
  struct Heads {
    int q, kv, dim;
  };
  uint64_t seed = 0;
  const auto print = [&](int64_t rows, const Heads& heads, bool causal) {
    for (const bool uniform : {true, false}) {
      Packs packs(++seed);
      print_case(fmt::format("{}_{}_{}:{}", uniform ? "uniform" : "log_normal", causal ? "causal" : "full", seed, rows),
                 rows, rows, heads.q, heads.kv, heads.dim,
                 uniform ? packs.uniform(rows, causal) : packs.log_normal(rows, causal));
    }
  };
  for (const int64_t rows : {8192, 16384, 32768}) {
    for (const Heads& heads : {Heads{64, 8, 128}, Heads{64, 8, 128}, Heads{64, 8, 128}, Heads{32, 8, 128},
                               Heads{32, 8, 128}, Heads{16, 16, 128}, Heads{64, 8, 64}, Heads{40, 8, 128}}) {
      print(rows, heads, true);
    }
    print(rows, {64, 8, 128}, false);
  }
  print(131072, {64, 8, 128}, true);
}

}  // namespace

int main() {
  fmt::print(
      "{{\"about\": \"What benchmarks/schedule/make_masks printed: masks on which schedules of the backward pass "
      "are timed. A slice: q begin, q end, k begin, k end, smallest and largest diagonal (null: open).\",\n"
      "\"cases\": [");
  print_whole_masks();
  print_masks_of_ranks();
  print_packs();
  fmt::print("\n]}}\n");
  return 0;
}
