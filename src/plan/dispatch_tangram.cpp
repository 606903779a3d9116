// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Our dispatch: packs the blocks of the mask in several ways and improves the most promising by exchanges. See pack.hpp
// and refine.hpp for the two halves.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "plan/assign_pack.hpp"
#include "plan/bisect_pack.hpp"
#include "plan/chunk_areas.hpp"
#include "plan/cost.hpp"
#include "plan/dispatch.hpp"
#include "plan/exchange_areas.hpp"
#include "plan/pack.hpp"
#include "plan/pair_by_area.hpp"
#include "plan/refine.hpp"

namespace tangram {

namespace {

// Documents of one slice each.
bool is_pack(std::span<const AttnSlice> slices) {
  const auto meet = [](const AttnSlice& a, const AttnSlice& b) {
    return b.q_range.begin < a.q_range.end || b.k_range.begin < a.k_range.end;
  };
  return slices.size() > 1 && std::adjacent_find(slices.begin(), slices.end(), meet) == slices.end();
}

// Packs are new at every training step. For two or three ranks few assignments differ much
// (docs/devlog/2026-11-23-new-masks.md), so the work grows with the square of the ranks. It ends if next to nothing
// moves.
constexpr int64_t kRanksOfPack = 4;       // from which on packs are searched as long as all masks
constexpr int64_t kRowsOfPack = 8 << 10;  // of a rank: shorter steps lose more by a bad cut
constexpr double kNegligible = 0x1p-10;   // of all rows

bool is_searched_briefly(const Mask& mask, const DistAttnConfig& config) {
  return config.cp_size < kRanksOfPack && mask.seqlen_q() / config.cp_size >= kRowsOfPack && is_pack(mask.slices());
}

// Improving candidates, see RefineOptions: about as many nanoseconds. With many ranks and rows the rest of planning
// takes longer. A faster step could not win back a long search. A plan serves the layers of a model, so its search
// takes no longer than attention of some of them, or than planning takes anyway. A power of two, so that plans do not
// change whenever the machine is measured again.
int64_t search_work(const Mask& mask, const DistAttnConfig& config) {
  constexpr int64_t kLong = 1 << 19;
  constexpr double kLayers = 16;
  constexpr double kNanosecondsOfSlice = 250;
  int64_t most =
      std::clamp<int64_t>(80'000'000 / config.cp_size, 2'000'000, mask.seqlen_q() < kLong ? 7'500'000 : 3'700'000);
  if (is_searched_briefly(mask, config)) {
    most = most * config.cp_size * config.cp_size / (kRanksOfPack * kRanksOfPack);
  }
  const int64_t area = mask.area() / config.cp_size;
  const double step_s = compute_seconds(config, area, AttnPass::kForward) +
                        compute_seconds(config, area, AttnPass::kBackward) +
                        2 * (config.cost.stage_overhead_s + config.cost.copy_latency_s);
  const double worth =
      std::max(1e9 * kLayers * step_s, kNanosecondsOfSlice * static_cast<double>(mask.slices().size()));
  return static_cast<int64_t>(std::min(static_cast<double>(most), std::exp2(std::floor(std::log2(worth)))));
}

// Price of an overload in rows, for comparing candidates: of all rows, for an overload of a whole mean area. A small
// overload is repaired cheaply, a large one is not.
constexpr double kPriceOfOverload = 0.3;
constexpr double kPriceOfOverloadSquared = 8;

// With shared prefixes a rank that takes area over needs the keys of whole prefixes for it.
constexpr double kPriceOfOverloadOfPrefixes = 2.4;
// Moves of such masks are counted by two ranks alone, and still take longer than they are counted as. Over few ranks
// there is time for the search of other masks, which moves fewer rows.
constexpr double kWorkOfPrefixes = 2, kWorkOfPrefixesOfManyRanks = 0.65;

constexpr double kMendable = 0.05;

constexpr int kManyRanks = 16;

// The search proceeds in rounds, each with its share of the work, over the best of the round before. With many ranks
// there is time for few candidates.
struct Round {
  double share;
  size_t num_candidates;
};
constexpr Round kRounds[] = {{0.35, 4}, {0.3, 2}, {0.35, 1}};
constexpr Round kOneRound[] = {{1, 1}};
// If there are so many blocks, most are small, and the search improves any packing to about the same result.
constexpr size_t kManyBlocks = 2000;

constexpr int64_t kMaxChunks = 1 << 20;
// Chunks as fine as this let the improvement put cuts where documents begin and end. It costs nothing: runs count, not
// chunks.
constexpr int64_t kFinest = 64;

// Numbers ranks by their first chunk, so that neighbours in the sequence tend to be neighbours in the group.
void renumber(std::vector<RankRun>& map, int cp_size) {
  std::vector<int> number(static_cast<size_t>(cp_size), -1);
  int next = 0;
  for (RankRun& run : map) {
    int& mine = number[static_cast<size_t>(run.rank)];
    if (mine < 0) mine = next++;
    run.rank = mine;
  }
}

struct Candidate {
  std::vector<RankRun> map;
  Refiner::Score score;
  double price = 0;
};

// First rows of what no slice connects with the rows before.
std::vector<int64_t> document_begins(std::span<const AttnSlice> slices) {
  std::vector<int64_t> begins;
  int64_t end = 0;
  for (const AttnSlice& slice : slices) {  // sorted by first row
    if (slice.q_range.begin >= end) begins.push_back(slice.q_range.begin);
    end = std::max(end, slice.q_range.end);
  }
  return begins;
}

// Turns a map of chunks into one of `parts` finer chunks each. A border that was put behind a document for want of a
// finer chunk moves back to where the document ends.
std::vector<RankRun> refined(const std::vector<int>& ranks, int64_t chunk_size, int64_t parts,
                             std::span<const int64_t> begins) {
  std::vector<RankRun> map;
  const int64_t fine = chunk_size / parts;
  auto begin = begins.begin();
  for (size_t c = 0; c < ranks.size(); ++c) {
    const int64_t row = static_cast<int64_t>(c) * chunk_size;
    int border = static_cast<int>(row / fine);
    if (!map.empty() && map.back().rank != ranks[c]) {
      begin = std::lower_bound(begin, begins.end(), row);
      if (begin != begins.begin() && *(begin - 1) > row - chunk_size) {
        border = static_cast<int>((*(begin - 1) + fine - 1) / fine);
        map.back().end = border;
      }
    }
    const int end = static_cast<int>((row + chunk_size) / fine);
    if (!map.empty() && map.back().rank == ranks[c]) {
      map.back().end = end;
    } else {
      map.push_back({border, end, ranks[c]});
    }
  }
  return map;
}

// Packings of chunks of one size, and the plain order of the sequence unless blocks are many. A brief search has time
// for one alone, the one that keeps most blocks whole. With shared prefixes they compete with what balances; over many
// ranks one does.
std::vector<std::vector<int>> make_candidates(const PackProblem& problem, bool shares_prefixes, bool is_brief) {
  std::vector<std::vector<int>> candidates;
  if (shares_prefixes) candidates.push_back(pair_by_area(problem.areas, problem.cp_size));
  if (shares_prefixes && problem.cp_size >= kManyRanks) {
    candidates.push_back(pack(problem, {std::max(1, problem.per_rank() / 32), 0}));
    return candidates;
  }
  const int per_rank = problem.per_rank();
  if (is_brief) {
    candidates.push_back(pack(problem, {std::max(1, per_rank / 8), 0}));
    return candidates;
  }
  const bool are_many = problem.blocks.size() >= kManyBlocks;
  for (const int part_of_shard : are_many ? std::vector<int>{32} : std::vector<int>{8, 32, 128}) {
    candidates.push_back(pack(problem, {std::max(1, per_rank / part_of_shard), 0}));
  }
  if (problem.cp_size >= kManyRanks && !are_many) {
    for (const int min_whole : {per_rank / 8, per_rank + 1}) candidates.push_back(pack(problem, {min_whole, 1.5}));
  }
  if (!are_many) candidates.push_back(dispatch_sequential(problem.num_chunks(), problem.cp_size));
  return candidates;
}

// The map with the largest chunks that express it, or with those that were asked for.
Dispatch to_dispatch(const std::vector<RankRun>& map, int cp_size, int64_t chunk_size, bool may_change) {
  const int num_chunks = map.back().end;
  int step = may_change ? num_chunks / cp_size : 1;
  for (const RankRun& run : map) step = std::gcd(step, run.end);
  Dispatch dispatch{cp_size, chunk_size * step, {}};
  for (const RankRun& run : map) dispatch.rank_of_chunk.append(run.size() / step, run.rank);
  return dispatch;
}

// Masks of scattered blocks, as models choose them: rows of a block see the same keys, in many slices. Of chunks finer
// than a block each would have all keys of its block once more. 1 for other masks. The last block may be shorter, and
// need not end with the sequence.
int64_t rows_of_scattered_block(const Mask& mask) {
  constexpr int64_t kFewSlices = 4;  // that a row sees
  int64_t last = 0;
  for (const AttnSlice& slice : mask.slices()) last = std::max(last, slice.q_range.end);
  int64_t rows = 0;
  for (const AttnSlice& slice : mask.slices()) {
    rows = std::gcd(rows, slice.q_range.begin);
    if (slice.q_range.end < last) rows = std::gcd(rows, slice.q_range.end);
    if (rows == 1) return 1;
  }
  if (rows == 0) return 1;
  const int64_t num_blocks = (last + rows - 1) / rows;
  return std::ssize(mask.slices()) < kFewSlices * num_blocks ? 1 : rows;
}

// Masks with shared prefixes (trees): rows of several slices, and not of scattered blocks. The keys that a rank needs
// there follow from the slices of each of its chunks, so a search over finer chunks takes proportionally longer.
bool has_shared_prefixes(const Mask& mask) {
  int64_t end = 0;
  for (const AttnSlice& slice : mask.slices()) {  // sorted by first row
    if (slice.q_range.begin < end) return rows_of_scattered_block(mask) == 1;
    end = slice.q_range.end;
  }
  return false;
}

// Chunks this fine let cuts lie where documents begin and end. It costs little: runs count, not chunks.
int64_t search_chunk_size(const Mask& mask, int64_t chunk_size) {
  const int64_t finest = rows_of_scattered_block(mask);
  while (chunk_size % 2 == 0 && chunk_size > finest && mask.seqlen_q() / (chunk_size / 2) <= kMaxChunks) {
    chunk_size /= 2;
  }
  return chunk_size;
}

// A cut leaves half a tile empty on average, for which the kernels walk all keys that are seen there. A power of two,
// so that plans do not change whenever the machine is measured again.
CutCost cut_cost(const DistAttnConfig& config) {
  // Where cuts are free, coarse ones still lead sooner to what is good.
  constexpr int64_t kCoarse = 128;
  if (config.cost.tile_rows == 1) return {kCoarse, 0};
  const auto cell_seconds = [&](AttnPass pass) { return compute_seconds(config, 1, pass); };
  const double key_seconds = static_cast<double>(config.cost.tile_rows) / 2 *
                             (cell_seconds(AttnPass::kForward) + cell_seconds(AttnPass::kBackward));
  return {config.cost.tile_rows, std::exp2(std::round(std::log2(key_seconds / visible_row_seconds(config))))};
}

// By rows and overload. But if that would keep what stays unbalanced, of a mask that is one component, estimated
// seconds decide: ranks that compute for long have time for many rows.
void sort_by_price(std::vector<Candidate>& candidates, const Mask& mask, const DistAttnConfig& config,
                   bool is_connected, bool holds_areas) {
  const auto sort = [&](const auto& price) {
    for (Candidate& candidate : candidates) candidate.price = price(candidate.score);
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Candidate& a, const Candidate& b) { return a.price < b.price; });
  };
  if (holds_areas) {
    return sort([&](const Refiner::Score& score) {
      return static_cast<double>(score.remote_rows) +
             static_cast<double>(mask.seqlen_q()) * score.overload * kPriceOfOverloadOfPrefixes;
    });
  }
  sort([&](const Refiner::Score& score) {
    return static_cast<double>(score.remote_rows) + static_cast<double>(mask.seqlen_q()) * score.overload *
                                                        (kPriceOfOverload + kPriceOfOverloadSquared * score.overload);
  });
  if (!is_connected || candidates.front().score.overload <= kMendable || is_short_step(config, mask.area())) return;
  sort([&](const Refiner::Score& score) {
    const auto mean_area = static_cast<double>(mask.area()) / config.cp_size;
    return step_seconds(config, static_cast<int64_t>((1 + score.overload) * mean_area),
                        static_cast<double>(score.remote_rows) / config.cp_size);
  });
}

// Searches in rounds; the best candidate comes first.
void improve(std::vector<Candidate>& candidates, Refiner& refiner, const Mask& mask, const DistAttnConfig& config,
             double tolerance, bool is_connected, bool holds_areas, double all_work) {
  const auto rounds = config.cp_size < kManyRanks ? std::span<const Round>(kRounds) : kOneRound;
  const double negligible = is_searched_briefly(mask, config) ? kNegligible * static_cast<double>(mask.seqlen_q()) : 0;
  for (const Round& round : rounds) {
    candidates.resize(std::min(candidates.size(), round.num_candidates));
    const double work = all_work * round.share;
    const RefineOptions options{.max_work = static_cast<int64_t>(work / static_cast<double>(candidates.size())),
                                .tolerance = tolerance,
                                .negligible_rows = negligible,
                                .mends = &round == &rounds.back(),
                                .is_loose_at_first = !holds_areas};
    for (Candidate& candidate : candidates) {
      candidate.score = refiner.run(candidate.map, options);
      if (candidate.score.remote_rows == 0 && candidate.score.overload == 0) break;  // there is no better one
      if (static_cast<double>(candidate.score.remote_rows) <= negligible && candidate.score.overload == 0) {
        std::swap(candidates.front(), candidate);
        return;
      }
    }
    sort_by_price(candidates, mask, config, is_connected, holds_areas);
  }
}

// Chunks over the border of a document go with the rows before it, which may leave ranks unequally many rows.
bool has_equal_rows(const std::vector<RankRun>& map, int cp_size) {
  std::vector<int64_t> rows(static_cast<size_t>(cp_size));
  for (const RankRun& run : map) rows[static_cast<size_t>(run.rank)] += run.size();
  return std::all_of(rows.begin(), rows.end(), [&](int64_t count) { return count == rows[0]; });
}

// Brings areas within the tolerance after a short search.
void level(std::vector<RankRun>& map, const Mask& mask, int cp_size, int64_t chunk_size, double tolerance) {
  const double mean = static_cast<double>(mask.area()) / cp_size;
  const RowAreas areas(mask.slices(), mask.seqlen_q());
  exchange_areas(map, areas, chunk_size, cp_size, static_cast<int64_t>((1 + tolerance) * mean));
}

// The best dispatch that is found from chunks of one size. `overload`: what is left above the tolerance.
Dispatch dispatch_chunks(const Mask& mask, const DistAttnConfig& config, int64_t chunk_size, bool may_change,
                         double share_of_work, double& overload) {
  const int cp_size = config.cp_size;
  const PackProblem problem = make_pack_problem(mask.slices(), chunk_size, mask.seqlen_q() / chunk_size, cp_size);
  const double tolerance = balance_tolerance(mask.seqlen_q() / cp_size);
  const bool is_one_block = problem.blocks.size() == 1;
  const bool shares_prefixes = has_shared_prefixes(mask);
  const bool holds_areas = shares_prefixes && cp_size >= kManyRanks;  // from the start of the search
  const bool is_refined = may_change && !is_one_block && !shares_prefixes;
  const int64_t fine = is_refined ? search_chunk_size(mask, chunk_size) : chunk_size;
  const std::vector<int64_t> begins = document_begins(mask.slices());
  const bool is_brief = share_of_work < 1 && !is_one_block && !shares_prefixes;
  std::vector<Candidate> candidates;
  for (const std::vector<int>& ranks : make_candidates(problem, shares_prefixes, is_brief)) {
    candidates.push_back({refined(ranks, chunk_size, chunk_size / fine, begins), {}});
  }
  chunk_size = fine;
  // Cross attention has its keys sharded later; what a query row needs is remote to it or not whatever we do here.
  Refiner refiner(mask.slices(), mask.is_self_attention(), chunk_size, mask.seqlen_q() / chunk_size, cp_size,
                  may_change ? cut_cost(config) : CutCost{});
  const bool is_connected = refiner.num_components() == 1;
  for (Candidate& candidate : candidates) candidate.score = refiner.score(candidate.map, tolerance);
  // One block in plain order is nearly balanced, as a window, or would have to be sharded anew by exchanges.
  if (is_one_block && !holds_areas && candidates.back().score.overload > kMendable) candidates.pop_back();
  sort_by_price(candidates, mask, config, is_connected, holds_areas);
  // A mask of one block is cut as it must be; exchanges could only mend its balance, and give ranks equally many rows.
  const Candidate& first = candidates.front();
  const bool is_final = is_connected && !shares_prefixes && first.score.overload == 0;
  if (cp_size > 1 && (!is_final || !has_equal_rows(first.map, cp_size))) {
    const double work = static_cast<double>(search_work(mask, config)) * share_of_work *
                        (holds_areas       ? kWorkOfPrefixesOfManyRanks
                         : shares_prefixes ? kWorkOfPrefixes
                                           : 1);
    improve(candidates, refiner, mask, config, tolerance, is_connected, holds_areas, work);
  }
  Candidate& best = candidates.front();
  overload = best.score.overload;
  renumber(best.map, cp_size);
  return to_dispatch(best.map, cp_size, chunk_size, may_change);
}

// Packed causal documents over a few ranks, which training shards anew at every step.
std::optional<Dispatch> assigned_pack(const Mask& mask, const DistAttnConfig& config) {
  constexpr int64_t kFineCuts = 8;  // where they cost nothing, which finer ones hardly improve
  const int cp_size = config.cp_size;
  const bool is_asked = cp_size > 1 && config.dispatch.chunk_size == 0 && mask.is_self_attention();
  if (!is_asked || mask.seqlen_q() > kMaxChunks || mask.slices().size() < 2 || !is_causal_pack(mask.slices()))
    return {};
  CutCost cuts = cut_cost(config);
  if (cuts.rows_per_key == 0) cuts.tile_rows = kFineCuts;
  const double tolerance = balance_tolerance(mask.seqlen_q() / cp_size);
  auto map = cp_size == 2 ? bisect_pack(mask.slices(), mask.seqlen_q(), tolerance, cuts)
                          : assign_pack(mask.slices(), mask.seqlen_q(), cp_size, tolerance, cuts);
  if (!map) return {};
  renumber(*map, cp_size);
  return to_dispatch(*map, cp_size, 1, true);
}

}  // namespace

// The longer the shards, the less a percent of area can hide behind rounding to tiles.
double balance_tolerance(int64_t rows_per_rank) {
  constexpr int64_t kLongShard = 32 * 1024;
  return rows_per_rank >= kLongShard ? 0.0048 : 0.0095;
}

Dispatch dispatch_tangram(const Mask& mask, const DistAttnConfig& config, const DispatchEffort& effort) {
  if (auto assigned = assigned_pack(mask, config)) return *std::move(assigned);
  double overload = 0;
  if (config.dispatch.chunk_size > 0) {
    return dispatch_chunks(mask, config, config.dispatch.chunk_size, false, effort.share_of_work, overload);
  }
  // The coarsest chunks that balance; long shards need no fine ones.
  constexpr int64_t kCoarsest = 512;
  constexpr int64_t kUsual = 128;
  constexpr int64_t kChunksPerRank = 128;
  const int64_t rows = mask.seqlen_q() / config.cp_size;
  int64_t chunk_size = finest_chunk_size(rows);
  while (chunk_size >= kUsual && chunk_size < kCoarsest && rows % (2 * chunk_size) == 0 &&
         rows / (2 * chunk_size) >= kChunksPerRank) {
    chunk_size *= 2;
  }
  // One chunk must not weigh so much that exchanges of chunks cannot balance; this bound is a matter of experience.
  constexpr double kMaxShareOfChunk = 15;  // tolerances
  const auto too_heavy = [&] {
    const std::vector<int64_t> areas = chunk_areas(mask.slices(), chunk_size, mask.seqlen_q() / chunk_size);
    const double mean = static_cast<double>(mask.area()) / config.cp_size;
    return static_cast<double>(*std::max_element(areas.begin(), areas.end())) >
           kMaxShareOfChunk * balance_tolerance(rows) * mean;
  };
  while (chunk_size > kFinest && chunk_size % 2 == 0 && too_heavy()) chunk_size /= 2;
  Dispatch best = dispatch_chunks(mask, config, chunk_size, true, effort.share_of_work, overload);
  // Finer chunks cost copies and partly filled tiles.
  const double negligible = std::max(effort.negligible_overload, balance_tolerance(rows) / 4);
  while (overload > negligible && chunk_size > kFinest && chunk_size % 2 == 0) {
    chunk_size /= 2;
    double finer_overload = 0;
    Dispatch finer = dispatch_chunks(mask, config, chunk_size, true, effort.share_of_work, finer_overload);
    if (finer_overload >= overload) continue;
    best = std::move(finer);
    overload = finer_overload;
  }
  return best;
}

Dispatch dispatch_inside_node(const NodeDispatch& node, const DistAttnConfig& config) {
  const int cp_size = config.cp_size;
  const int64_t num_rows = node.mask.seqlen_q();
  const int64_t rows_per_rank = num_rows / cp_size;
  const bool may_change = config.dispatch.chunk_size == 0;
  const bool shares_prefixes = has_shared_prefixes(node.mask);
  const int64_t finest = may_change ? finest_chunk_size(rows_per_rank) : config.dispatch.chunk_size;
  PackProblem problem = make_pack_problem(node.mask.slices(), finest, num_rows / finest, cp_size);
  const bool is_one_block = problem.blocks.size() == 1;
  const bool is_refined = may_change && !is_one_block && !shares_prefixes;
  const int64_t fine = is_refined ? search_chunk_size(node.mask, finest) : finest;
  Refiner refiner(node.mask.slices(), node.own_keys, fine, num_rows / fine, cp_size,
                  may_change ? cut_cost(config) : CutCost{});
  std::vector<Candidate> candidates;
  const auto add = [&](const std::vector<int>& ranks, int64_t chunk_size) {
    // Borders stay where they are, unlike in refined(): ranks have equally many rows.
    const int parts = static_cast<int>(chunk_size / fine);
    std::vector<RankRun> map;
    for (int c = 0; c < static_cast<int>(ranks.size()); ++c) {
      const int rank = ranks[static_cast<size_t>(c)];
      if (map.empty() || map.back().rank != rank) map.push_back({c * parts, 0, rank});
      map.back().end = (c + 1) * parts;
    }
    candidates.push_back({std::move(map), {}});
    candidates.back().score = refiner.score(candidates.back().map, node.tolerance);
  };
  if (shares_prefixes) add(pair_by_area(problem.areas, cp_size), finest);
  add(dispatch_sequential(problem.num_chunks(), cp_size), finest);
  // Short chunks balance at once, at the price of cuts inside of tiles.
  for (int64_t chunk_size = finest; chunk_size >= fine && chunk_size >= finest / 8; chunk_size /= 8) {
    if (chunk_size < finest) {
      problem = make_pack_problem(node.mask.slices(), chunk_size, num_rows / chunk_size, cp_size);
    }
    add(pack(problem, {std::max(1, problem.per_rank() / 32), 0}), chunk_size);
    if (candidates.back().score.overload == 0) break;
  }
  const auto is_better = [](const Candidate& a, const Candidate& b) {
    return std::pair(a.score.overload, a.score.remote_rows) < std::pair(b.score.overload, b.score.remote_rows);
  };
  std::swap(candidates.front(), *std::min_element(candidates.begin(), candidates.end(), is_better));
  Candidate& best = candidates.front();
  const bool is_final = is_one_block && best.score.overload == 0;
  if (!is_final || !has_equal_rows(best.map, cp_size)) {
    best.score = refiner.run(
        best.map, {.max_work = node.max_work, .tolerance = node.tolerance, .mends = false, .is_loose_at_first = false});
  }
  if (best.score.overload > 0) level(best.map, node.mask, cp_size, fine, node.tolerance);
  renumber(best.map, cp_size);
  return to_dispatch(best.map, cp_size, fine, may_change);
}

}  // namespace tangram
