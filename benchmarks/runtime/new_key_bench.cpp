// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What block masks that change at every step take the hosts of two GPUs, without GPUs: over the runtime of the tests,
// which counts and computes nothing. Microseconds of one rank, medians and fastest tenths.
//
//   bench_new_key [ROWS BLOCK [SHARE [near|anywhere [HEADS_Q HEADS_KV [KEYS [MOVEMENT]]]]]]
//
// "mask": of the indices; "plan": make_plan; "cache": hash, and the bytes of the plan, as a cache of plans asks for;
// "key": DistAttention; "forward", "backward": the first and the second of a key, and "lists" what is between, until
// lists that other threads make are there. By the processor time of the calling thread, then "all": by that of the
// process, in which both ranks do the same at once, halved.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "runtime/device/counted_ranks.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram {
namespace {

struct Arguments {
  int64_t rows = 16384;
  int64_t block = 128;
  double share = 0.12;
  bool is_near = false;
  int heads_q = 64, heads_kv = 8;
  int keys = 40;
  bool moves_queries = false;
};

Arguments parse(int argc, char** argv) {
  Arguments result;
  const auto text = [&](int i) { return std::string(argv[i]); };
  if (argc > 1) result.rows = std::stoll(text(1));
  if (argc > 2) result.block = std::stoll(text(2));
  if (argc > 3) result.share = std::stod(text(3));
  if (argc > 4) result.is_near = text(4) == "near";
  if (argc > 6) result.heads_q = std::stoi(text(5)), result.heads_kv = std::stoi(text(6));
  if (argc > 7) result.keys = std::stoi(text(7));
  if (argc > 8) result.moves_queries = text(8) == "auto";
  return result;
}

/// Draws equally many key blocks for each query block, its own among them, like benchmarks/python/new_masks_ranks.py.
std::vector<int32_t> draw_blocks(const Arguments& of, unsigned seed) {
  const auto count = static_cast<int32_t>(of.rows / of.block);
  const auto width = std::max<int32_t>(1, static_cast<int32_t>(of.share * count));
  std::mt19937_64 rng(seed);
  std::uniform_real_distribution<double> uniform;
  std::vector<int32_t> indices;
  std::vector<std::pair<double, int32_t>> scores(static_cast<size_t>(count));
  for (int32_t q = 0; q < count; ++q) {
    for (int32_t k = 0; k < count; ++k) {
      const double weight = of.is_near ? std::max(1, std::abs(q - k)) : 1;
      scores[static_cast<size_t>(k)] = {q == k ? -1 : uniform(rng) * weight, k};
    }
    std::nth_element(scores.begin(), scores.begin() + width - 1, scores.end());
    for (int32_t i = 0; i < width; ++i) indices.push_back(scores[static_cast<size_t>(i)].second);
  }
  return indices;
}

double us_of(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

/// By part: of each key, processor time of this thread.
using Figures = std::map<std::string, std::vector<double>>;

template <class Body>
void time_part(Figures& figures, const char* part, const Body& body) {
  const double start = us_of(CLOCK_THREAD_CPUTIME_ID);
  body();
  figures[part].push_back(us_of(CLOCK_THREAD_CPUTIME_ID) - start);
}

/// Memory for passes, touched once: with a new one for each key, its first touches would be most of what is measured.
struct Memory {
  std::optional<counted::Tensors> tensors;
  int64_t work_bytes = 0;

  counted::Tensors& of(const DistAttention& key, const HeadConfig& heads) {
    const int64_t needed = std::max(key.forward_workspace_bytes(), key.backward_workspace_bytes());
    if (needed > work_bytes) {
      work_bytes = needed;
      tensors.emplace(key, true, heads);
    }
    return *tensors;
  }
};

void measure_key(const Arguments& of, unsigned seed, counted::Ranks::Rank& rank, Memory& memory, Figures& figures) {
  const std::vector<int32_t> indices = draw_blocks(of, seed);
  DistAttnConfig config;
  config.cp_size = 2;
  config.heads = {.num_heads_q = of.heads_q, .num_heads_kv = of.heads_kv, .head_dim = 128, .head_dim_v = 128};
  if (of.moves_queries) config.movement.algorithm = Movement::kAuto;
  rank.control.barrier("key");
  const double all = us_of(CLOCK_PROCESS_CPUTIME_ID);
  std::optional<Mask> mask;
  time_part(figures, "1 mask",
            [&] { mask.emplace(mask_from_block_indices({of.rows, of.rows, of.block, of.block, indices, {}, false})); });
  std::shared_ptr<const Plan> plan;
  time_part(figures, "2 plan", [&] { plan = std::make_shared<const Plan>(make_plan(*mask, config)); });
  time_part(figures, "3 cache", [&] {
    if (mask->hash() + static_cast<uint64_t>(memory_bytes(*plan)) == 0) std::abort();
  });
  rank.control.barrier("planned");
  std::optional<DistAttention> key;
  time_part(figures, "4 key", [&] { key.emplace(plan, rank.communicator, rank.backend); });
  counted::Tensors& tensors = memory.of(*key, config.heads);
  time_part(figures, "5 forward", [&] { key->forward(tensors.forward()); });
  time_part(figures, "6 backward", [&] { key->backward(tensors.backward()); });
  rank.control.barrier("first");
  figures["9 all"].push_back((us_of(CLOCK_PROCESS_CPUTIME_ID) - all) / 2);
  time_part(figures, "7 forward, again", [&] { key->forward(tensors.forward()); });
  time_part(figures, "8 backward, again", [&] { key->backward(tensors.backward()); });
}

void measure(const Arguments& of) {
  constexpr int kWarm = 5;
  counted::Ranks(2).run(
      [&](counted::Ranks::Rank& rank) {
        Figures figures;
        Memory memory;
        for (int i = 0; i < of.keys + kWarm; ++i) {
          if (i == kWarm) figures.clear();
          measure_key(of, static_cast<unsigned>(i + 1), rank, memory, figures);
        }
        if (rank.control.rank() != 0) return;
        for (auto& [part, times] : figures) {
          std::sort(times.begin(), times.end());
          std::printf("%-20s %8.0f  %8.0f\n", part.c_str() + 2, times[times.size() / 2], times[times.size() / 10]);
        }
      },
      60);
}

}  // namespace
}  // namespace tangram

int main(int argc, char** argv) {
  tangram::measure(tangram::parse(argc, argv));
  return 0;
}
