// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A sort that never changes, beside which figures from unlike machines can be compared by their ratio.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace tangram {

/// Sorts 2^20 random 32-bit numbers.
inline void sort_million(benchmark::State& state) {
  std::mt19937 rng(1);
  std::vector<uint32_t> values(1 << 20);
  for (uint32_t& value : values) value = rng();
  std::vector<uint32_t> sorted;
  for (auto _ : state) {
    sorted = values;
    std::sort(sorted.begin(), sorted.end());
    benchmark::DoNotOptimize(sorted.data());
  }
}

}  // namespace tangram
