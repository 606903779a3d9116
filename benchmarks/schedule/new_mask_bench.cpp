// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What the host of one GPU does for a mask that it has not seen: Mask, lists of both passes, and the tile schedule of
// the backward pass. new_mask_csv.py writes the figures in the schema of `tangram bench`.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <string>
#include <vector>

#include "core/async_task.hpp"
#include "schedule/extents.hpp"
#include "schedule/mask_image.hpp"
#include "schedule/tile_list.hpp"
#include "schedule/tile_schedule.hpp"
#include "schedule/work_list.hpp"
#include "tangram/mask.hpp"

namespace tangram {
namespace {

constexpr TileShape kForwardTile{128, 128, false};
constexpr TileShape kPackedTile{16, 128, false};  // eight query heads of a key head share a forward tile
constexpr TileShape kBackwardTile{128, 64, true};

struct Case {
  std::string name;
  int64_t rows = 0;
  std::vector<AttnSlice> slices;

  AttnShape shape() const { return {rows, rows, 64, 8, 128, 128, DType::kBFloat16}; }
};

/// Causal documents of log-normal lengths.
Case pack(int64_t rows, int64_t documents) {
  Case result{"packed:" + std::to_string(documents), rows, {}};
  std::mt19937_64 rng(1);
  std::normal_distribution<double> normal;
  std::vector<double> ends{0};
  for (int64_t i = 0; i < documents; ++i) ends.push_back(ends.back() + std::exp(normal(rng)));
  for (size_t i = 0; i + 1 < ends.size(); ++i) {
    const auto at = [&](double end) { return std::llround(end / ends.back() * static_cast<double>(rows)); };
    const Range document{at(ends[i]), at(ends[i + 1])};
    if (!document.empty()) result.slices.push_back(AttnSlice::causal(document, document));
  }
  return result;
}

Case causal(int64_t rows) { return {"causal", rows, {AttnSlice::causal({0, rows}, {0, rows})}}; }

/// Blocks of 128 rows, of which each sees one key block in eight up to its own.
Case blocks(int64_t rows) {
  constexpr int64_t kBlock = 128;
  Case result{"blocks:128", rows, {}};
  std::mt19937_64 rng(1);
  for (int64_t q = 0; q < rows / kBlock; ++q) {
    for (int64_t k = 0; k <= q; ++k) {
      if (k != q && rng() % 8 != 0) continue;
      result.slices.push_back(AttnSlice::full({q * kBlock, (q + 1) * kBlock}, {k * kBlock, (k + 1) * kBlock}));
    }
  }
  return result;
}

TileList backward_list(const Case& c, std::span<const AttnSlice> slices) {
  return schedule::transposed_tile_list(slices, c.rows, c.rows, kBackwardTile);
}

void mask(benchmark::State& state, const Case& c) {
  for (auto _ : state) benchmark::DoNotOptimize(Mask(c.rows, c.rows, c.slices));
}

void tile_list(benchmark::State& state, const Case& c) {
  const Mask checked(c.rows, c.rows, c.slices);
  for (auto _ : state) {
    benchmark::DoNotOptimize(schedule::build_tile_list(checked.slices(), c.rows, c.rows, kForwardTile));
  }
}

void transposed_list(benchmark::State& state, const Case& c) {
  const Mask checked(c.rows, c.rows, c.slices);
  for (auto _ : state) benchmark::DoNotOptimize(backward_list(c, checked.slices()));
}

void extents(benchmark::State& state, const Case& c) {
  const TileList tiles = backward_list(c, Mask(c.rows, c.rows, c.slices).slices());
  const schedule::WorkList work = schedule::make_work_list(tiles, c.slices, c.shape(), {});
  for (auto _ : state) {
    benchmark::DoNotOptimize(schedule::measure_extents(tiles, work.run_tiles));
    benchmark::DoNotOptimize(schedule::length_spread(tiles, work.run_tiles, static_cast<int64_t>(work.q_tiles.size())));
  }
}

void schedule(benchmark::State& state, const Case& c) {
  const TileList tiles = backward_list(c, Mask(c.rows, c.rows, c.slices).slices());
  const schedule::WorkList work = schedule::make_work_list(tiles, c.slices, c.shape(), {});
  const schedule::Extents measured = schedule::measure_extents(tiles, work.run_tiles);
  const double spread = schedule::length_spread(tiles, work.run_tiles, static_cast<int64_t>(work.q_tiles.size()));
  for (auto _ : state) {
    schedule::Extents in_order = measured;
    benchmark::DoNotOptimize(schedule::choose_tile_schedule(in_order, spread, c.shape(), {}));
  }
}

/// Includes extents and the tile schedule.
template <BackwardCalls kCalls>
void work_list(benchmark::State& state, const Case& c) {
  const TileList tiles = backward_list(c, Mask(c.rows, c.rows, c.slices).slices());
  for (auto _ : state) {
    benchmark::DoNotOptimize(schedule::make_work_list(tiles, c.slices, c.shape(), {}, {}, {.calls = kCalls}));
  }
}

/// All that MaskBuffer::set does for a mask that has just been made, the mask included, but for the call that copies:
/// another thread lists the tiles of the forward pass meanwhile. Processor time is that of the thread which calls.
void set(benchmark::State& state, const Case& c) {
  const auto slices = static_cast<int64_t>(c.slices.size());
  const schedule::ImageLayout layout(c.shape(), kPackedTile, kBackwardTile,
                                     {.max_documents = 384, .max_slices = slices});
  std::vector<std::byte> memory(layout.bytes() + 256);
  std::byte* const image = memory.data() + (256 - reinterpret_cast<uintptr_t>(memory.data()) % 256);
  for (auto _ : state) {
    const Mask made(c.rows, c.rows, c.slices);
    TileList tiles;
    AsyncTask beside([&] { tiles = schedule::build_tile_list(made.slices(), c.rows, c.rows, kPackedTile); });
    const schedule::WorkList work = schedule::make_work_list(backward_list(c, made.slices()), made.slices(), c.shape(),
                                                             {}, {}, {.calls = BackwardCalls::kDefault});
    beside.finish();
    layout.check(tiles, work);
    benchmark::DoNotOptimize(layout.write(image, tiles, work));
  }
}

bool register_all() {
  const std::pair<const char*, void (*)(benchmark::State&, const Case&)> parts[] = {
      {"mask", mask},
      {"tile_list", tile_list},
      {"transposed_list", transposed_list},
      {"extents", extents},
      {"schedule", schedule},
      {"work_list", work_list<BackwardCalls::kBoth>},
      {"work_list_default", work_list<BackwardCalls::kDefault>},
      {"work_list_deterministic", work_list<BackwardCalls::kDeterministic>},
      {"set", set}};
  for (const Case& c : {pack(32768, 13), pack(32768, 64), pack(131072, 48), pack(1 << 20, 384), causal(32768),
                        causal(131072), blocks(32768)}) {
    for (const auto& [part, measure] : parts) {
      const std::string name = std::string(part) + "/" + c.name + "/" + std::to_string(c.rows);
      benchmark::RegisterBenchmark(name.c_str(), measure, c)->Unit(benchmark::kMicrosecond);
    }
  }
  return true;
}

const bool kRegistered = register_all();

}  // namespace
}  // namespace tangram
