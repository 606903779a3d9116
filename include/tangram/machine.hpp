// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// One model of a machine: what kernels, links and memory take.
#pragma once

#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace tangram {

/// How long attention takes on one device, from how the mask meets kernel tiles:
///
///   call_s + [ (issued + masked_tile_cost * cut) * heads * FLOPs per cell / flops_per_s
///              + work tiles * heads * item_s / workers ] + tail * (time of the longest work tile on one worker)
///
/// `issued`: cells of computed tiles, visible or not. `cut`: cells of tiles that a diagonal crosses. A work tile is a
/// block of `item_rows` query rows (or key rows, see items_by_keys) of one slice.
struct KernelModel {
  int tile_rows = 64;
  int tile_cols = 64;
  int item_rows = 128;
  double flops_per_s = 0;       ///< on whole tiles, all workers together
  double masked_tile_cost = 0;  ///< what a tile cut by a diagonal costs beyond a whole one, as a share of it
  double item_s = 0;
  double call_s = 0;
  double tail = 0;
  /// A work tile is a block of key rows instead, as where gradients of keys stay with the worker that computes them.
  bool items_by_keys = false;

  friend bool operator==(const KernelModel&, const KernelModel&) = default;
};

/// Rates of kernels compiled for a class of head dims, as factors of a model's rates. Dimensions belong to the first
/// class of a list that holds both. A call takes as long as one of the class's own dimensions; dimensions above all
/// classes use the factors of the last.
struct HeadDimRate {
  int head_dim = 0;     ///< of q and k
  int head_dim_v = 0;   ///< of v and out
  double forward = 1;   ///< of the FLOPs a second
  double backward = 1;  ///< likewise

  friend bool operator==(const HeadDimRate&, const HeadDimRate&) = default;
};

/// One direction of a rank's link.
struct LinkModel {
  double bytes_per_s = 0;
  double latency_s = 0;  ///< of each contiguous copy

  friend bool operator==(const LinkModel&, const LinkModel&) = default;
};

/// Engine that moves rows between the ranks of a node.
enum class CommEngine : int {
  kCopyEngine = 0,  ///< copy engines, which leave the workers of kernels alone
  kWorkers,         ///< `comm_workers` workers, missing from kernels all through a pass in which rows move
  kHostThreads,     ///< threads that share the cores with the kernels: moving takes the time from computing
};

/// The default machine, H200 nodes: what planner, simulator and schedules know of hardware, each value once. Where it
/// comes from, and how to find it again: docs/design/cost_model.md.
namespace h200 {

inline constexpr int kMultiprocessors = 132;
inline constexpr int64_t kL2Bytes = int64_t{60} << 20;
inline constexpr double kMemoryBytesPerS = 4.9e12;  ///< of its pins
inline constexpr int64_t kMemoryBytes = 141'000'000'000;
inline constexpr std::string_view kBackend = "sm90";  ///< whose kernels the following are of
/// Kernel constants of head dim 128 in bfloat16, fitted to docs/results/data/sm90_h200.csv.
inline constexpr KernelModel kForward{64, 64, 128, 710.6e12, 0.169, 0.800e-6, 5.15e-6, 0.0616};
inline constexpr KernelModel kBackward{64, 64, 128, 670.5e12, 0.352, 6.30e-6, 18.8e-6, 0.164, true};
/// Relative to head dim 128, measured on a causal mask of 16,384 rows: 96 and (192, 128) by `tangram doctor --measure`.
/// Backward of the last two is relative to earlier kernels (docs/design/kernel_variants.md).
inline constexpr HeadDimRate kHeadDimRates[] = {
    {32, 32, 0.526, 0.579}, {64, 64, 0.810, 0.795},  {96, 96, 0.889, 0.861},
    {128, 128, 1, 1},       {192, 128, 1.12, 0.913}, {256, 256, 1.18, 0.681},
};
/// Copy engines over NVLink, fitted to one direction of docs/results/data/links_h200.csv.
inline constexpr LinkModel kInside{390e9, 2.45e-6};
/// Assumed: 400 Gbit/s a GPU.
inline constexpr LinkModel kBetween{50e9, 10e-6};
/// Assumed: blocks that NCCL takes on each rank for transfers between nodes.
inline constexpr int kBetweenBlocks = 4;
/// Blocks that NCCL takes, and what each of them moves.
inline constexpr int kTransferBlocks = 24;
inline constexpr double kTransferBlockBytesPerS = 11.5e9;
inline constexpr double kStageOverhead_s = 8e-6;
/// Rates of the kernels on a causal mask, FLOP/s by visible area, from cost_model_of.
inline constexpr double kForwardFlopsPerS = 696e12, kBackwardFlopsPerS = 643e12;
/// Bytes per second of a kernel that only reads and writes memory, alone on the device.
inline constexpr double kStreamBytesPerS = 3.8e12;
/// Bytes per second at which rows are packed, unpacked and added, counted as read plus written
/// (src/plan/grid/grid_bytes.hpp). Half of the rate above, because attention and transfers use the memory too.
inline constexpr double kRowBytesPerS = 2.0e12;

}  // namespace h200

/// Constants of a machine. The defaults are those of H200 nodes; `tangram doctor --measure` measures others.
struct MachineModel {
  std::string name = "H200 nodes";
  std::string kernels = "sm90, bfloat16, head dim 128";  ///< which kernels `forward` and `backward` are of
  KernelModel forward = h200::kForward;
  KernelModel backward = h200::kBackward;
  int head_dim = 128;         ///< of q and k, in the calls whose times made `forward` and `backward`
  int head_dim_v = head_dim;  ///< of v and out
  /// Rates of kernels of other head dims relative to these; empty: one rate for all.
  std::vector<HeadDimRate> head_dim_rates{std::begin(h200::kHeadDimRates), std::end(h200::kHeadDimRates)};
  int workers = h200::kMultiprocessors;  ///< multiprocessors or threads that share a rank's work tiles
  int ranks_per_node = 8;                ///< ranks further apart use `between`
  int devices_per_node = 8;              ///< ranks of a node beyond this many share devices
  LinkModel inside = h200::kInside;
  LinkModel between = h200::kBetween;  ///< one network card
  /// Network cards of a node, which its ranks share in order; 0: one for each rank.
  int nics_per_node = 0;
  /// Capacity of the network between nodes, as a share of the rates of all cards; 1: no bottleneck.
  double spine = 1;
  int between_sms = h200::kBetweenBlocks;            ///< workers that transfers between nodes take from kernels
  double stage_overhead_s = h200::kStageOverhead_s;  ///< of each further stage of a pass: launch, merge
  /// Rows of a rank that are copied or added during a step, read plus written.
  double memory_bytes_per_s = h200::kRowBytesPerS;
  int64_t memory_bytes = h200::kMemoryBytes;  ///< of one rank
  CommEngine engine = CommEngine::kCopyEngine;
  int comm_workers = h200::kTransferBlocks;  ///< taken from kernels while rows move, with kWorkers
  /// Bytes per second that one worker moves; the link bounds their sum.
  double worker_link_bytes_per_s = h200::kTransferBlockBytesPerS;

  friend bool operator==(const MachineModel&, const MachineModel&) = default;
};

/// Constants of the machine in which the planner compares. Defaults are those of the default MachineModel;
/// `tangram doctor --measure` measures others.
struct CostModel {
  double forward_flops_per_s = h200::kForwardFlopsPerS;    ///< attention forward by visible area
  double backward_flops_per_s = h200::kBackwardFlopsPerS;  ///< attention backward by visible area
  double link_bytes_per_s = h200::kInside.bytes_per_s;     ///< per rank and direction
  double copy_latency_s = h200::kInside.latency_s;         ///< fixed cost of one contiguous copy
  double stage_overhead_s = h200::kStageOverhead_s;        ///< fixed cost of one more stage: launch, merge
  /// Query rows of a kernel tile. A cut elsewhere leaves a tile partly filled on both sides. So the dispatch cuts
  /// documents at multiples, unless that moves too many more rows to pay. 1: all cuts cost the same.
  int64_t tile_rows = h200::kForward.item_rows;
  /// Rows of a rank that are copied or added during a step, read plus written: heads put together, partial results and
  /// gradients added up.
  double memory_bytes_per_s = h200::kRowBytesPerS;
  /// Backward seconds for each remote key row and query head, however few queries see the row.
  double backward_key_row_s = h200::kBackward.item_s / h200::kBackward.item_rows / h200::kMultiprocessors;
  /// Rate factors of head-dim classes. Both rates hold for the class whose factors are 1 (H200 nodes: head dim 128).
  /// Empty: the same rates for all head dims.
  std::vector<HeadDimRate> head_dim_rates{std::begin(h200::kHeadDimRates), std::end(h200::kHeadDimRates)};
  /// Ranks [n * ranks_per_node, (n + 1) * ranks_per_node) are node n. 0, or at least cp_size: all ranks are one node,
  /// and the fields below say nothing.
  int ranks_per_node = 0;
  double between_bytes_per_s = h200::kBetween.bytes_per_s;  ///< between nodes, per rank and direction
  double between_message_s = h200::kBetween.latency_s;      ///< fixed cost of one message between nodes
  int between_sms = h200::kBetweenBlocks;  ///< of `sms`, taken from attention in passes with transfers between nodes
  int sms = h200::kMultiprocessors;        ///< multiprocessors of a rank

  friend bool operator==(const CostModel&, const CostModel&) = default;
};

/// The flat constants that the planner compares with. Rates are those of a causal mask of 16,384 rows and 64 heads,
/// what a rank often has, to three digits. All ranks are one node; see with_nodes.
CostModel cost_model_of(const MachineModel& machine);
/// Cost model of ranks on several nodes: node size of the machine, and a rank's part of its node's network cards.
CostModel with_nodes(const CostModel& cost, const MachineModel& machine);

}  // namespace tangram
