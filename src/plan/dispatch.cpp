// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Choice of a dispatch: names, validation, chunk size, comparison.
#include "plan/dispatch.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <string>

#include "core/require.hpp"
#include "plan/chunk_areas.hpp"

namespace tangram {

namespace {

struct NamedAlgorithm {
  DispatchAlgorithm algorithm;
  std::string_view name;
};
constexpr std::array kAlgorithms{
    NamedAlgorithm{DispatchAlgorithm::kAuto, "auto"},
    NamedAlgorithm{DispatchAlgorithm::kSequential, "sequential"},
    NamedAlgorithm{DispatchAlgorithm::kZigzag, "zigzag"},
    NamedAlgorithm{DispatchAlgorithm::kMinHeap, "min_heap"},
    NamedAlgorithm{DispatchAlgorithm::kSortedSequential, "sorted_sequential"},
    NamedAlgorithm{DispatchAlgorithm::kTangram, "tangram"},
    NamedAlgorithm{DispatchAlgorithm::kLowerBound, "lower_bound"},
    NamedAlgorithm{DispatchAlgorithm::kDynamicProgramming, "dynamic_programming"},
    NamedAlgorithm{DispatchAlgorithm::kBatchTopP, "batch_topp"},
    NamedAlgorithm{DispatchAlgorithm::kRandom, "random"},
};

// The map of a classic algorithm over chunks of a given size.
std::vector<int> classic_ranks(const Mask& mask, const DistAttnConfig& config, int64_t chunk_size) {
  const int64_t num_chunks = mask.seqlen_q() / chunk_size;
  const DispatchAlgorithm algorithm = config.dispatch.algorithm;
  if (algorithm == DispatchAlgorithm::kSequential) return dispatch_sequential(num_chunks, config.cp_size);
  if (algorithm == DispatchAlgorithm::kZigzag) return dispatch_zigzag(num_chunks, config.cp_size);
  const std::vector<int64_t> areas = chunk_areas(mask.slices(), chunk_size, num_chunks);
  switch (algorithm) {
    case DispatchAlgorithm::kMinHeap: return dispatch_min_heap(areas, config.cp_size);
    case DispatchAlgorithm::kSortedSequential: return dispatch_sorted_sequential(areas, config.cp_size);
    default: break;
  }
  require(false, "make_plan: dispatch algorithm {} is not available", to_string(algorithm));
  return {};
}

double imbalance(const Mask& mask, const Dispatch& dispatch) {
  const std::vector<int64_t> areas = chunk_areas(mask.slices(), dispatch.chunk_size, dispatch.num_chunks());
  std::vector<int64_t> of_rank(static_cast<size_t>(dispatch.cp_size));
  for (size_t c = 0; c < areas.size(); ++c) of_rank[static_cast<size_t>(dispatch.rank_of_chunk[c])] += areas[c];
  const int64_t largest = *std::max_element(of_rank.begin(), of_rank.end());
  return mask.area() == 0 ? 1 : static_cast<double>(largest) * dispatch.cp_size / static_cast<double>(mask.area());
}

// Classic algorithms know one chunk size: the coarsest that balances, found by halving.
Dispatch classic_dispatch(const Mask& mask, const DistAttnConfig& config) {
  constexpr double kBalanced = 1.005;
  const int cp_size = config.cp_size;
  if (config.dispatch.chunk_size > 0) {
    return {cp_size, config.dispatch.chunk_size, classic_ranks(mask, config, config.dispatch.chunk_size)};
  }
  const int64_t rows = mask.seqlen_q() / cp_size;
  const int64_t finest = finest_chunk_size(rows);
  Dispatch best;
  double best_imbalance = 0;
  for (int64_t chunks_per_rank = 1; chunks_per_rank <= rows / finest; ++chunks_per_rank) {
    // Sizes between the halvings would cost time and gain little.
    if (rows % chunks_per_rank != 0 || rows / chunks_per_rank % finest != 0) continue;
    if (!best.rank_of_chunk.empty() && best.chunk_size / 2 < rows / chunks_per_rank) continue;
    Dispatch dispatch{cp_size, rows / chunks_per_rank, classic_ranks(mask, config, rows / chunks_per_rank)};
    const double now = imbalance(mask, dispatch);
    if (best.rank_of_chunk.empty() || now < best_imbalance) {
      best = std::move(dispatch);
      best_imbalance = now;
    } else if (best.chunk_size / 2 >= rows / chunks_per_rank && rows / chunks_per_rank == finest) {
      break;
    }
    if (best_imbalance <= kBalanced) break;
  }
  return best;
}

}  // namespace

std::string_view to_string(DispatchAlgorithm algorithm) {
  for (const NamedAlgorithm& entry : kAlgorithms) {
    if (entry.algorithm == algorithm) return entry.name;
  }
  return "unknown";
}

DispatchAlgorithm parse_dispatch_algorithm(std::string_view name) {
  std::string names;
  for (const NamedAlgorithm& entry : kAlgorithms) {
    if (entry.name == name) return entry.algorithm;
    if (!names.empty()) names += ", ";
    names += entry.name;
  }
  require(false, "parse_dispatch_algorithm: name must be one of {} (got '{}')", names, name);
  return {};
}

int64_t finest_chunk_size(int64_t rows_per_rank) {
  for (int64_t size : {int64_t{128}, int64_t{64}}) {
    if (rows_per_rank % size == 0) return size;
  }
  for (int64_t size = 127; size > 1; --size) {
    if (rows_per_rank % size == 0) return size;
  }
  return 1;
}

Dispatch coarsened(const Dispatch& dispatch) {
  // Every border between runs must stay a border between chunks, and the rows of a rank a multiple of the size.
  int64_t step = dispatch.num_chunks() / dispatch.cp_size;
  for (int64_t c = 1; c < dispatch.num_chunks(); ++c) {
    if (dispatch.rank_of_chunk[static_cast<size_t>(c)] != dispatch.rank_of_chunk[static_cast<size_t>(c - 1)]) {
      step = std::gcd(step, c);
    }
  }
  if (step <= 1) return dispatch;
  Dispatch result{dispatch.cp_size, dispatch.chunk_size * step, {}};
  result.rank_of_chunk.reserve(static_cast<size_t>(dispatch.num_chunks() / step));
  for (int64_t c = 0; c < dispatch.num_chunks(); c += step) {
    result.rank_of_chunk.push_back(dispatch.rank_of_chunk[static_cast<size_t>(c)]);
  }
  return result;
}

ChosenDispatch dispatch_queries(const Mask& mask, const DistAttnConfig& config) {
  const DispatchAlgorithm algorithm = config.dispatch.algorithm;
  if (algorithm != DispatchAlgorithm::kAuto && algorithm != DispatchAlgorithm::kTangram) {
    return {algorithm, classic_dispatch(mask, config)};
  }
  const int64_t given = config.dispatch.chunk_size;
  const int64_t chunk_size = given > 0 ? given : finest_chunk_size(mask.seqlen_q() / config.cp_size);
  Dispatch dispatch = dispatch_tangram(mask, config, chunk_size);
  return {DispatchAlgorithm::kTangram, given > 0 ? std::move(dispatch) : coarsened(dispatch)};
}

}  // namespace tangram
