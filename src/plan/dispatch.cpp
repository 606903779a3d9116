// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Choice of a dispatch: names, validation, chunk size, comparison.
#include "plan/dispatch.hpp"

#include <algorithm>
#include <numeric>
#include <string>

#include "core/names.hpp"
#include "core/require.hpp"
#include "plan/chunk_areas.hpp"
#include "plan/cost.hpp"
#include "plan/nodes/dispatch_nodes.hpp"
#include "plan/nodes/node_rows.hpp"
#include "plan/runs.hpp"

namespace tangram {

namespace {

constexpr Names<DispatchAlgorithm, 10> kAlgorithms = {{{DispatchAlgorithm::kAuto, "auto"},
                                                       {DispatchAlgorithm::kSequential, "sequential"},
                                                       {DispatchAlgorithm::kZigzag, "zigzag"},
                                                       {DispatchAlgorithm::kMinHeap, "min_heap"},
                                                       {DispatchAlgorithm::kSortedSequential, "sorted_sequential"},
                                                       {DispatchAlgorithm::kTangram, "tangram"},
                                                       {DispatchAlgorithm::kLowerBound, "lower_bound"},
                                                       {DispatchAlgorithm::kDynamicProgramming, "dynamic_programming"},
                                                       {DispatchAlgorithm::kBatchTopP, "batch_topp"},
                                                       {DispatchAlgorithm::kRandom, "random"}}};

// Rank of each chunk, for chunks of a given size, by a classic algorithm: any but tangram. Most were published
// elsewhere.
std::vector<int> classic_ranks(const Mask& mask, const DistAttnConfig& config, int64_t chunk_size) {
  const int64_t num_chunks = mask.seqlen_q() / chunk_size;
  const DispatchAlgorithm algorithm = config.dispatch.algorithm;
  if (algorithm == DispatchAlgorithm::kSequential) return dispatch_sequential(num_chunks, config.cp_size);
  if (algorithm == DispatchAlgorithm::kZigzag) return dispatch_zigzag(num_chunks, config.cp_size);
  if (algorithm == DispatchAlgorithm::kRandom) return dispatch_random(num_chunks, config.cp_size, config.dispatch.seed);
  const std::vector<int64_t> areas = chunk_areas(mask.slices(), chunk_size, num_chunks);
  switch (algorithm) {
    case DispatchAlgorithm::kMinHeap: return dispatch_min_heap(areas, config.cp_size);
    case DispatchAlgorithm::kSortedSequential: return dispatch_sorted_sequential(areas, config.cp_size);
    case DispatchAlgorithm::kLowerBound: return dispatch_lower_bound(areas, config.cp_size);
    case DispatchAlgorithm::kDynamicProgramming: return dispatch_dynamic_programming(areas, config.cp_size);
    case DispatchAlgorithm::kBatchTopP: return dispatch_batch_topp(areas, config.cp_size);
    default: break;
  }
  require(false, "make_plan: dispatch algorithm must be a known one (got {})", static_cast<int>(algorithm));
  return {};
}

// A dispatch counts as balanced up to this ratio of largest to mean area. Only its estimated time then counts.
constexpr double kBalanced = 1.02;

double imbalance(const Mask& mask, const Dispatch& dispatch) {
  const std::vector<int64_t> areas = chunk_areas(mask.slices(), dispatch.chunk_size, dispatch.num_chunks());
  std::vector<int64_t> of_rank(static_cast<size_t>(dispatch.cp_size));
  size_t chunk = 0;
  for (const int rank : dispatch.rank_of_chunk) of_rank[static_cast<size_t>(rank)] += areas[chunk++];
  const int64_t largest = *std::max_element(of_rank.begin(), of_rank.end());
  return mask.area() == 0 ? 1 : static_cast<double>(largest) * dispatch.cp_size / static_cast<double>(mask.area());
}

// What the rows of a rank see.
struct RankView {
  int64_t area = 0;
  std::vector<Range> keys;
};

// A dispatch by a classic algorithm, with the given chunk size or one that is searched. The search begins with one
// chunk a rank and takes a smaller size if it is at most half the best size and balances better. It ends once the areas
// of ranks are nearly even, or at the finest size.
Dispatch classic_dispatch(const Mask& mask, const DistAttnConfig& config) {
  constexpr double kFineEnough = 1.005;
  const int cp_size = config.cp_size;
  const int64_t given = config.dispatch.chunk_size;
  if (given > 0) return {cp_size, given, classic_ranks(mask, config, given)};
  const int64_t rows = mask.seqlen_q() / cp_size;
  const int64_t finest = finest_chunk_size(rows);
  Dispatch best{cp_size, rows, classic_ranks(mask, config, rows)};
  if (config.dispatch.algorithm == DispatchAlgorithm::kSequential) return best;  // the same with any chunks
  double best_imbalance = imbalance(mask, best);
  for (int64_t parts = 2; best_imbalance > kFineEnough && parts <= rows / finest; ++parts) {
    const int64_t chunk_size = rows / parts;
    if (rows % parts != 0 || chunk_size % finest != 0 || chunk_size > best.chunk_size / 2) continue;
    Dispatch finer{cp_size, chunk_size, classic_ranks(mask, config, chunk_size)};
    const double finer_imbalance = imbalance(mask, finer);
    if (finer_imbalance >= best_imbalance) continue;
    best = std::move(finer);
    best_imbalance = finer_imbalance;
  }
  return best;
}

}  // namespace

std::string_view to_string(DispatchAlgorithm algorithm) { return name_in(kAlgorithms, algorithm); }

DispatchAlgorithm parse_dispatch_algorithm(std::string_view name) {
  return value_in(kAlgorithms, name, "parse_dispatch_algorithm");
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
  for (const OwnedChunks& run : dispatch.rank_of_chunk.runs()) step = std::gcd(step, run.end);
  if (step <= 1) return dispatch;
  Dispatch result{dispatch.cp_size, dispatch.chunk_size * step, {}};
  int64_t begin = 0;
  for (const OwnedChunks& run : dispatch.rank_of_chunk.runs()) {
    result.rank_of_chunk.append((run.end - begin) / step, run.rank);
    begin = run.end;
  }
  return result;
}

namespace {

// Seconds that the network card of each rank takes for a step, with one message from each node to each other on a rail.
std::vector<double> rail_seconds(const DistAttnConfig& config, const std::vector<std::vector<Range>>& needed,
                                 const std::vector<OwnedRun>& runs, int64_t row_bytes, int num_transfers) {
  const NodeShape nodes = node_shape(config);
  NodeRows rows = node_rows(needed, runs, nodes);
  even_rails(rows, nodes);
  const NodeTraffic traffic = traffic_of(rows, nodes);
  std::vector<double> seconds;
  for (size_t r = 0; r < traffic.sent.size(); ++r) {
    const int64_t most = std::max(traffic.sent[r], traffic.received[r]);
    seconds.push_back(static_cast<double>(most) * static_cast<double>(row_bytes) / config.cost.between_bytes_per_s +
                      num_transfers * config.cost.between_message_s * traffic.messages[r]);
  }
  return seconds;
}

void take_slower(std::vector<double>& seconds, const std::vector<double>& others) {
  for (size_t i = 0; i < seconds.size(); ++i) seconds[i] = std::max(seconds[i], others[i]);
}

}  // namespace

DispatchCost dispatch_cost(const Mask& mask, const DistAttnConfig& config, const Dispatch& dispatch) {
  const std::vector<OwnedRun> runs = owned_runs(dispatch);
  std::vector<RankView> views(static_cast<size_t>(dispatch.cp_size));
  for_each_row_piece(mask, runs, [&](size_t run, const AttnSlice& piece) {
    RankView& view = views[static_cast<size_t>(runs[run].owner)];
    view.area += area(piece);
    append_range(view.keys, piece.k_range);
  });
  DispatchCost cost;
  int64_t max_area = 0;
  std::vector<double> transfer_s(views.size());
  // Transfers of a step: K/V in both passes, and gradients back.
  constexpr int kNumTransfers = 3;
  const int64_t row_bytes = 2 * kv_row_bytes(config.heads) + kv_grad_row_bytes(config.heads, config.reduce_dtype);
  for (int r = 0; r < dispatch.cp_size; ++r) {
    RankView& view = views[static_cast<size_t>(r)];
    join_ranges(view.keys);
    int64_t rows = 0;
    int64_t num_copies = 0;
    auto run = runs.begin();
    for (const Range& keys : view.keys) {
      rows += keys.size();
      run =
          std::upper_bound(run, runs.end(), keys.begin, [](int64_t k, const OwnedRun& o) { return k < o.global.end; });
      for (auto at = run; at != runs.end() && at->global.begin < keys.end; ++at) {
        if (at->owner == r) {
          rows -= intersect(keys, at->global).size();
        } else {
          ++num_copies;
        }
      }
    }
    max_area = std::max(max_area, view.area);
    transfer_s[static_cast<size_t>(r)] = transfer_seconds(config.cost, rows, row_bytes, kNumTransfers * num_copies);
    cost.remote_rows += rows;
  }
  if (has_nodes(config)) {
    std::vector<std::vector<Range>> needed;
    for (RankView& view : views) needed.push_back(std::move(view.keys));
    take_slower(transfer_s, rail_seconds(config, needed, runs, row_bytes, kNumTransfers));
  }
  const double transfers_s = std::accumulate(transfer_s.begin(), transfer_s.end(), 0.0);
  const double longest_transfer_s = *std::max_element(transfer_s.begin(), transfer_s.end());
  const double mean_area = static_cast<double>(mask.area()) / dispatch.cp_size;
  cost.balance = mask.area() > 0 ? static_cast<double>(max_area) / mean_area : 1;
  const double slowest_s = step_seconds(config, max_area, 0);
  cost.excess_s = std::max(0.0, slowest_s - kBalanced * step_seconds(config, mask.area() / dispatch.cp_size, 0));
  // A step takes at least as long as the transfers of the busiest link, which may outlast the kernels.
  cost.seconds = std::max(slowest_s + kVisibleShare * transfers_s / dispatch.cp_size, longest_transfer_s);
  return cost;
}

std::string unbalanced_because(const Plan& plan) {
  const bool is_chosen = plan.config.dispatch.algorithm == DispatchAlgorithm::kAuto && plan.grid() == nullptr;
  if (!is_chosen || plan.balance() <= kBalanced) return "";
  return "what balances better is estimated to be slower, since it moves more, or there is none";
}

ChosenDispatch dispatch_queries(const Mask& mask, const DistAttnConfig& config) {
  const DispatchAlgorithm algorithm = config.dispatch.algorithm;
  const bool may_know_nodes = algorithm == DispatchAlgorithm::kAuto || algorithm == DispatchAlgorithm::kTangram;
  if (may_know_nodes && has_nodes(config) && mask.is_self_attention()) return dispatch_over_nodes(mask, config);
  if (algorithm == DispatchAlgorithm::kTangram) return {algorithm, dispatch_tangram(mask, config)};
  if (algorithm != DispatchAlgorithm::kAuto) return {algorithm, classic_dispatch(mask, config)};
  // Three algorithms compete by estimated time. Among equal estimates the first, which is the simplest, wins. The other
  // algorithms balance area only; they never win. Areas are exact, but rates are estimates. So the seconds that an
  // imbalance beyond kBalanced costs are added once more, times kDoubt.
  constexpr double kDoubt = 1;
  const bool is_short = is_short_step(config, mask.area());  // balance decides, then time
  ChosenDispatch best;
  std::pair<double, double> best_price;
  for (const DispatchAlgorithm candidate :
       {DispatchAlgorithm::kSequential, DispatchAlgorithm::kZigzag, DispatchAlgorithm::kTangram}) {
    DistAttnConfig trial = config;
    trial.dispatch.algorithm = candidate;
    // With more chunks than this zigzag scatters what belongs together.
    const int64_t half_shard = mask.seqlen_q() / config.cp_size / 2;
    if (candidate == DispatchAlgorithm::kZigzag && trial.dispatch.chunk_size == 0) {
      if (half_shard == 0 || mask.seqlen_q() % (half_shard * 2 * config.cp_size) != 0) continue;
      trial.dispatch.chunk_size = half_shard;
    }
    ChosenDispatch chosen = dispatch_queries(mask, trial);
    const DispatchCost cost = dispatch_cost(mask, config, chosen.dispatch);
    const double excess = std::max(0.0, cost.balance - kBalanced);
    const std::pair price =
        is_short ? std::pair(excess, cost.seconds) : std::pair(cost.seconds + kDoubt * cost.excess_s, 0.0);
    if (best.dispatch.rank_of_chunk.empty() || price < best_price) {
      best = std::move(chosen);
      best_price = price;
    }
  }
  return best;
}

}  // namespace tangram
