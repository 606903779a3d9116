// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The one typed configuration of distributed attention. Every default is right for most users.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tangram/dtype.hpp"
#include "tangram/machine.hpp"

namespace tangram {

/// How chunks are assigned to ranks. Every algorithm gives every rank the same number of chunks.
enum class DispatchAlgorithm : int {
  kAuto = 0,          ///< the cheapest by the cost model
  kSequential,        ///< contiguous runs of chunks in order
  kZigzag,            ///< 0 1 .. R-1 R-1 .. 1 0 and so on
  kMinHeap,           ///< heaviest chunk first to the least loaded rank that has room
  kSortedSequential,  ///< chunks sorted by area, assigned zigzag
  kTangram,           ///< ours: keeps documents and windows together while area stays balanced
  // Published algorithms to compare with.
  kLowerBound,          ///< min_heap, then exchanges of chunks until the lower bound of the largest area is met
  kDynamicProgramming,  ///< rank by rank the chunks whose area is nearest to the mean, by subset sums
  kBatchTopP,           ///< heaviest first in batches of cp_size; of the lightest ranks one that has a neighbour
  kRandom,              ///< a seeded shuffle
};
std::string_view to_string(DispatchAlgorithm algorithm);
/// Accepts the names that `to_string` gives (`auto`, `sequential`, `zigzag`, `min_heap`, `sorted_sequential`,
/// `tangram`, `lower_bound`, `dynamic_programming`, `batch_topp`, `random`); anything else throws InvalidArgument with
/// the list.
DispatchAlgorithm parse_dispatch_algorithm(std::string_view name);

struct DispatchConfig {
  DispatchAlgorithm algorithm = DispatchAlgorithm::kAuto;
  /// Rows of a chunk; 0 lets the planner cut where it likes (see CostModel::tile_rows) and call the largest unit that
  /// expresses its cuts a chunk. A multiple of 64 keeps kernel tiles whole.
  int64_t chunk_size = 0;
  /// Only for kRandom.
  uint64_t seed = 0;

  friend bool operator==(const DispatchConfig&, const DispatchConfig&) = default;
};

/// How transfers between GPUs come to run beside attention kernels that fill the device. Beside these, a process may be
/// started with CUDA_DEVICE_MAX_CONNECTIONS=1, so that kernels of all streams start in the order of the calls.
enum class LaunchOrder : int {
  kAuto = 0,       ///< kCopyEngine where the transport has them, else kSmMargin
  kCopyEngine,     ///< copy engines move rows: no multiprocessor, no order
  kSmMargin,       ///< attention leaves OverlapConfig::sm_margin multiprocessors to transfers
  kHighPriority,   ///< attention takes all; transfers come first where both could start
  kKernelBarrier,  ///< attention takes all, but starts on the device only when the transfer beside it is about to
};
/// `auto`, `copy_engine`, `sm_margin`, `high_priority`, `kernel_barrier`.
std::string_view to_string(LaunchOrder order);
/// Throws InvalidArgument for anything else, with the list.
LaunchOrder parse_launch_order(std::string_view name);

struct OverlapConfig {
  /// Remote stages of a pass; stage 0, the local one, is not counted. 0 lets the cost model choose.
  int num_stages_fwd = 0;
  int num_stages_bwd = 0;
  /// Keeps the remote K/V of the last forward stage for the backward pass, which starts with them. Their gradients then
  /// move while local work remains, and the tail of the pass is hidden. Costs that stage's rows of memory.
  bool keep_remote_kv = false;
  /// Between GPUs.
  LaunchOrder launch_order = LaunchOrder::kAuto;
  /// Multiprocessors that kAuto and kSmMargin leave to the transport, in [0, 128]; 0: as many as the transport takes.
  /// Where copy engines move rows there is none.
  int sm_margin = 0;

  friend bool operator==(const OverlapConfig&, const OverlapConfig&) = default;
};

/// Heads and sizes of attention; together with the mask they say what a step costs.
struct HeadConfig {
  int num_heads_q = 1;
  int num_heads_kv = 1;
  int head_dim = 128;
  int head_dim_v = head_dim;  ///< of v and out
  DType dtype = DType::kBFloat16;

  friend bool operator==(const HeadConfig&, const HeadConfig&) = default;
};

/// How attention is split over the ranks. See docs/design/strategies.md.
enum class Strategy : int {
  kAuto = -1,    ///< whichever of the others the cost model finds fastest for the mask
  kTangram = 0,  ///< rows sharded by the mask; only K/V rows that are needed move
  kUlysses,      ///< all-to-all from rows to heads and back; every rank computes all rows of some heads
  kHcms,         ///< Ulysses in chunks of heads: the exchange of one chunk behind the attention of another
  kRing,         ///< K/V shards move from neighbour to neighbour, rows assigned zigzag
  kAllGather,    ///< every rank gathers all of K/V; gradients are reduce-scattered
  kUsp,          ///< Ulysses inside groups of `ulysses_degree` ranks, Ring among the groups
  kLoongTrain,   ///< as USP, with an inner and an outer ring
  kHybridCp,     ///< documents on sub-groups of ranks by their length, Ring in each; short ones without communication
};
std::string_view to_string(Strategy strategy);
/// Accepts what `to_string` gives (`auto`, `tangram`, `ulysses`, `hcms`, `ring`, `all_gather`, `usp`, `loong_train`,
/// `hybrid_cp`); anything else throws InvalidArgument with the list.
Strategy parse_strategy(std::string_view name);

/// Planning refuses a parameter that the strategy does not have. With kAuto the planner chooses them all.
struct StrategyConfig {
  Strategy name = Strategy::kTangram;
  /// USP, LoongTrain: ranks that exchange heads for rows. 0: the largest proper divisor of cp_size that divides the
  /// numbers of heads.
  int ulysses_degree = 0;
  /// LoongTrain: row groups of an inner ring. 0: the largest divisor of their number up to its square root.
  int inner_ring_size = 0;
  /// HCMS: K/V heads of each chunk, each with all of its query heads; they add up to the K/V heads of a rank. Empty:
  /// the chunks with the least predicted time.
  std::vector<int> head_chunks;
  /// HybridCP: the longest document, in rows, that stays whole on one rank; twice as long ones go to two ranks and so
  /// on. 0: what the cost model finds fastest, at most the rows of a rank.
  int64_t document_rows = 0;

  friend bool operator==(const StrategyConfig&, const StrategyConfig&) = default;
};

/// `usp, 4 head ranks`: the name and the parameters that are set.
std::string describe(const StrategyConfig& strategy);

/// Which rows move between ranks, and by which algorithm the work is assigned. See docs/design/movement.md.
enum class Movement : int {
  kKv = 0,  ///< K/V rows move to the queries
  kQo,      ///< queries move to the keys, partial results back
  kAuto,    ///< ours: clusters of ranks share queries, heads and keys where that is cheaper than moving K/V alone
  // Published algorithms to compare with. (Without communication of q and out it is `kv`.)
  kGreedyRandomGrid,  ///< jobs drawn at random to ranks that have their rows, again and again
  kBinaryGreedy,      ///< least traffic under which jobs can be assigned greedily, by bisection
  kNetworkFlow,       ///< the same, assigned by a maximum flow
  kLeastBytes,        ///< ours: of plans that balance work as well as can be, the one that moves least, however long
};
std::string_view to_string(Movement movement);
/// Accepts what `to_string` gives (`kv`, `qo`, `auto`, `greedy_random_grid`, `binary_greedy`,
/// `network_flow`, `least_bytes`); anything else throws InvalidArgument with the list.
Movement parse_movement(std::string_view name);

struct MovementConfig {
  Movement algorithm = Movement::kKv;
  /// Groups of heads whose work is assigned separately, a divisor of num_heads_kv. 0 lets the planner choose, and must
  /// be left where only K/V move.
  int head_groups = 0;

  friend bool operator==(const MovementConfig&, const MovementConfig&) = default;
};

struct DistAttnConfig {
  int cp_size = 1;
  HeadConfig heads;
  DispatchConfig dispatch;
  OverlapConfig overlap;
  CostModel cost;
  /// dtype in which partial dk and dv move and are summed.
  DType reduce_dtype = DType::kFloat32;
  StrategyConfig strategy;
  MovementConfig movement;

  friend bool operator==(const DistAttnConfig&, const DistAttnConfig&) = default;
};

}  // namespace tangram
