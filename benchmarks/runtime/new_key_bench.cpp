// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What block masks that change at every step take the hosts of two GPUs, without GPUs: over the runtime of the tests,
// which counts and computes nothing. Microseconds of one rank, medians and fastest tenths.
//
//   bench_new_key [ROWS BLOCK [SHARE [near|anywhere [HEADS_Q HEADS_KV [KEYS [MOVEMENT]]]]]]
//   bench_new_key nodes [RANKS RANKS_PER_NODE [DOCUMENTS [KEYS]]]
//
// "nodes": packs of documents, 16,384 rows a rank, in turns over ranks of one node and of nodes. Between nodes copy
// engines stand in for NCCL. The last column is the ratio of the medians.
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

void measure_key(const DistAttnConfig& config, const std::function<Mask()>& make_mask, counted::Ranks::Rank& rank,
                 Memory& memory, Figures& figures) {
  rank.control.barrier("key");
  const double all = us_of(CLOCK_PROCESS_CPUTIME_ID);
  std::optional<Mask> mask;
  time_part(figures, "1 mask", [&] { mask.emplace(make_mask()); });
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
  figures["9 all"].push_back((us_of(CLOCK_PROCESS_CPUTIME_ID) - all) / config.cp_size);
  time_part(figures, "7 forward, again", [&] { key->forward(tensors.forward()); });
  time_part(figures, "8 backward, again", [&] { key->backward(tensors.backward()); });
}

void measure(const Arguments& of) {
  constexpr int kWarm = 5;
  DistAttnConfig config;
  config.cp_size = 2;
  config.heads = {.num_heads_q = of.heads_q, .num_heads_kv = of.heads_kv, .head_dim = 128, .head_dim_v = 128};
  if (of.moves_queries) config.movement.algorithm = Movement::kAuto;
  counted::Ranks(2).run(
      [&](counted::Ranks::Rank& rank) {
        Figures figures;
        Memory memory;
        for (int i = 0; i < of.keys + kWarm; ++i) {
          if (i == kWarm) figures.clear();
          const std::vector<int32_t> indices = draw_blocks(of, static_cast<unsigned>(i + 1));
          measure_key(
              config,
              [&] { return mask_from_block_indices({of.rows, of.rows, of.block, of.block, indices, {}, false}); }, rank,
              memory, figures);
        }
        if (rank.control.rank() != 0) return;
        for (auto& [part, times] : figures) {
          std::sort(times.begin(), times.end());
          std::printf("%-20s %8.0f  %8.0f\n", part.c_str() + 2, times[times.size() / 2], times[times.size() / 10]);
        }
      },
      60);
}

struct NodeArguments {
  int ranks = 2, ranks_per_node = 1, documents = 64, keys = 40;
};

/// Figures of rank 0, with ranks of one node or of several.
Figures measure_packs(const NodeArguments& of, bool has_nodes, unsigned first_seed, int num_keys) {
  DistAttnConfig config;
  config.cp_size = of.ranks;
  config.heads = {.num_heads_q = 64, .num_heads_kv = 8, .head_dim = 128, .head_dim_v = 128};
  if (has_nodes) config.cost.ranks_per_node = of.ranks_per_node;
  Figures result;
  counted::Ranks(of.ranks, false, has_nodes ? of.ranks_per_node : 0)
      .run(
          [&](counted::Ranks::Rank& rank) {
            Figures figures;
            Memory memory;
            for (int i = 0; i < num_keys; ++i) {
              if (i == num_keys / 4) figures.clear();
              measure_key(
                  config,
                  [&] {
                    return counted::make_documents(first_seed + static_cast<unsigned>(i), int64_t{16384} * of.ranks,
                                                   of.documents);
                  },
                  rank, memory, figures);
            }
            if (rank.control.rank() == 0) result = std::move(figures);
          },
          60);
  return result;
}

void measure_nodes(const NodeArguments& of) {
  constexpr int kTurns = 4;
  testing::set_moves_large(false);  // which is not the host's to do
  std::map<std::string, std::vector<double>> times[2];
  for (int turn = 0; turn < kTurns; ++turn) {
    for (const bool has_nodes : {turn % 2 == 0, turn % 2 != 0}) {
      const auto seed = static_cast<unsigned>(1 + turn * of.keys);
      for (const auto& [part, values] : measure_packs(of, has_nodes, seed, of.keys)) {
        std::vector<double>& all = times[has_nodes ? 1 : 0][part];
        all.insert(all.end(), values.begin(), values.end());
      }
    }
  }
  for (auto& [part, flat] : times[0]) {
    std::vector<double>& nodes = times[1][part];
    for (std::vector<double>* of_part : {&flat, &nodes}) std::sort(of_part->begin(), of_part->end());
    const double before = flat[flat.size() / 2], after = nodes[nodes.size() / 2];
    std::printf("%-20s %8.0f  %8.0f  %6.2f\n", part.c_str() + 2, before, after, after / before);
  }
}

}  // namespace
}  // namespace tangram

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "nodes") {
    tangram::NodeArguments of;
    int* const values[] = {&of.ranks, &of.ranks_per_node, &of.documents, &of.keys};
    for (int i = 2; i < argc && i < 6; ++i) *values[i - 2] = std::stoi(argv[i]);
    tangram::measure_nodes(of);
    return 0;
  }
  tangram::measure(tangram::parse(argc, argv));
  return 0;
}
