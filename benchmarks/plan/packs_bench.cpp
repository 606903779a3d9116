// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Plans of packs that are new at every step, a CSV line for each kind: processor milliseconds of make_plan, and what
// the plans are worth. So two builds can be compared.
//
//   packs_bench FIRST_SEED LAST_SEED [RANKS]
//
// Documents have log-normal lengths; 64 query and 8 K/V heads. `ms`, `slowest`: median and largest over the seeds,
// every pack planned once. `moved`: remote rows over rows. `balance`: the largest over the seeds. `step`: predicted
// seconds over those of even areas without transfers.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <random>
#include <vector>

#include "plan/cost.hpp"
#include "tangram/mask_builders.hpp"
#include "tangram/plan.hpp"

namespace tangram {
namespace {

double processor_ms() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

// Twelve uniform numbers make about a normal one, alike with every standard library.
Mask pack_of(int64_t rows, int documents, bool is_causal, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<double> ends{0};
  for (int i = 0; i < documents; ++i) {
    double normal = -6;
    for (int n = 0; n < 12; ++n) normal += static_cast<double>(rng() >> 11) * 0x1p-53;
    ends.push_back(ends.back() + std::exp(normal));
  }
  std::vector<int64_t> borders;
  for (const double end : ends) {
    const int64_t border = std::llround(end / ends.back() * static_cast<double>(rows));
    if (borders.empty() || border > borders.back()) borders.push_back(border);
  }
  return varlen_mask(borders, is_causal);
}

void print_kind(int64_t rows, int documents, bool is_causal, int cp_size, uint64_t first, uint64_t last) {
  DistAttnConfig config;
  config.cp_size = cp_size;
  config.heads = {64, 8, 128, 128, DType::kBFloat16};
  std::vector<double> ms;
  double moved = 0, balance = 1, step = 0;
  make_plan(pack_of(rows, documents, is_causal, first + 1'000'000), config);
  for (uint64_t seed = first; seed <= last; ++seed) {
    const Mask mask = pack_of(rows, documents, is_causal, seed);
    const double begin = processor_ms();
    const Plan plan = make_plan(mask, config);
    ms.push_back(processor_ms() - begin);
    moved += static_cast<double>(plan.rows_moved()) / static_cast<double>(rows);
    balance = std::max(balance, plan.balance());
    const int64_t mean_area = mask.area() / cp_size;
    step += (plan.predicted.forward_s + plan.predicted.backward_s) /
            (compute_seconds(config, mean_area, AttnPass::kForward) +
             compute_seconds(config, mean_area, AttnPass::kBackward));
  }
  const auto count = static_cast<double>(ms.size());
  std::sort(ms.begin(), ms.end());
  fmt::print("{},{},{},{},{:.2f},{:.2f},{:.4f},{:.4f},{:.5f}\n", rows, documents, is_causal ? "causal" : "full",
             cp_size, ms[ms.size() / 2], ms.back(), moved / count, balance, step / count);
}

}  // namespace
}  // namespace tangram

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const uint64_t first = std::strtoull(argv[1], nullptr, 10), last = std::strtoull(argv[2], nullptr, 10);
  fmt::print("rows,documents,kind,ranks,ms,slowest,moved,balance,step\n");
  for (const int cp_size : {3, 4, 8, 16, 64}) {
    if (argc > 3 && std::atoi(argv[3]) != cp_size) continue;
    const struct {
      int64_t rows;
      int documents;
    } kinds[] = {{32, 16},  {32, 64},   {64, 5},   {64, 32},   {128, 8},   {128, 48},  {128, 128},
                 {256, 64}, {256, 250}, {512, 32}, {512, 256}, {1024, 64}, {1024, 512}};
    for (const auto& kind : kinds) {
      const int64_t rows = kind.rows * 1024 / cp_size * cp_size / 384 * 384;
      for (const bool is_causal : {true, false}) {
        if (!is_causal && kind.documents != 48 && kind.documents != 64) continue;
        tangram::print_kind(cp_size == 3 ? rows : kind.rows * 1024, kind.documents, is_causal, cp_size, first, last);
      }
    }
  }
}
