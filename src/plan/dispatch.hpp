// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Dispatch algorithms: every one maps chunk areas to ranks, with equally many chunks for each rank.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tangram/plan.hpp"

namespace tangram {

/// A dispatch together with the algorithm that it came from.
struct ChosenDispatch {
  DispatchAlgorithm algorithm = DispatchAlgorithm::kSequential;
  Dispatch dispatch;
};

/// Why kAuto chose what does not balance; empty where it does, or where it was not asked.
std::string unbalanced_because(const Plan& plan);

/// Shards the query rows of `mask` by `config.dispatch`. kAuto takes the cheapest by the cost model.
ChosenDispatch dispatch_queries(const Mask& mask, const DistAttnConfig& config);

/// Shards the key rows of a cross-attention mask so that most keys lie where they are seen.
Dispatch dispatch_keys(const Mask& mask, const Dispatch& q_dispatch, const DistAttnConfig& config);

/// Rows of a chunk when the planner chooses: 128, 64 or else the largest divisor of `rows_per_rank` below.
int64_t finest_chunk_size(int64_t rows_per_rank);

/// Assignment of rows to ranks equal to `dispatch`, with the largest chunks that can express it.
Dispatch coarsened(const Dispatch& dispatch);

// The published algorithms. `areas` has a multiple of `cp_size` entries; the result is the rank of each chunk.
// All are deterministic: ties go to the lower chunk, then to the lower rank.
std::vector<int> dispatch_sequential(int64_t num_chunks, int cp_size);
std::vector<int> dispatch_zigzag(int64_t num_chunks, int cp_size);
std::vector<int> dispatch_min_heap(std::span<const int64_t> areas, int cp_size);
std::vector<int> dispatch_sorted_sequential(std::span<const int64_t> areas, int cp_size);
std::vector<int> dispatch_lower_bound(std::span<const int64_t> areas, int cp_size);
std::vector<int> dispatch_dynamic_programming(std::span<const int64_t> areas, int cp_size);
std::vector<int> dispatch_batch_topp(std::span<const int64_t> areas, int cp_size);
std::vector<int> dispatch_random(int64_t num_chunks, int cp_size, uint64_t seed);

/// Cost of a dispatch, before stages are made.
struct DispatchCost {
  double seconds = 0;   // to compare dispatches of one mask
  double excess_s = 0;  // of them, what the largest area takes beyond 1.02 times the mean
  double balance = 1;   // largest area / mean
  int64_t remote_rows = 0;
};
DispatchCost dispatch_cost(const Mask& mask, const DistAttnConfig& config, const Dispatch& dispatch);

/// How long dispatch_tangram() searches.
struct DispatchEffort {
  double share_of_work = 1;        ///< of the usual search
  double negligible_overload = 0;  ///< above the tolerance, for which finer chunks are not tried; 0: the usual
};

/// Ours. See docs/design/dispatch.md.
Dispatch dispatch_tangram(const Mask& mask, const DistAttnConfig& config, const DispatchEffort& effort = {});

/// Rows and areas up to so much above the mean count as balanced.
double balance_tolerance(int64_t rows_per_rank);

/// Rows of a node, to be dispatched to its ranks.
struct NodeDispatch {
  /// Visible pairs of the node's rows, rows numbered through the node; keys are global.
  const Mask& mask;
  /// The part of it that the node's own keys are, numbered as its rows are.
  std::span<const AttnSlice> own_keys;
  double tolerance = 0;  ///< of areas
  int64_t max_work = 0;  ///< of the search, in nanoseconds
};
/// Assigns the rows of a node to its ranks, by one short search: transfers inside a node cost little.
Dispatch dispatch_inside_node(const NodeDispatch& node, const DistAttnConfig& config);

}  // namespace tangram
