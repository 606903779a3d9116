// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The simulator: what a step would take on a machine of which a few constants are known, for Tangram and for other
// ways to split attention over ranks, up to thousands of them. Nothing is executed and no full plan is built.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tangram/config.hpp"
#include "tangram/mask.hpp"

namespace tangram {

/// How long attention takes on one device, from how the mask meets kernel tiles:
///
///   call_s + [ (issued + masked_tile_cost * cut) * heads * FLOPs per cell / flops_per_s
///              + items * heads * item_s / workers ] + tail * (time of the longest item on one worker)
///
/// `issued` are the cells of tiles that are computed, visible or not; `cut` those of tiles that a diagonal crosses;
/// an item is a block of `item_rows` query rows (or key rows, see items_by_keys) of one slice.
struct KernelModel {
  int tile_rows = 64;
  int tile_cols = 64;
  int item_rows = 128;
  double flops_per_s = 0;       ///< on whole tiles, all workers together
  double masked_tile_cost = 0;  ///< what a tile cut by a diagonal costs beyond a whole one, as a share of it
  double item_s = 0;
  double call_s = 0;
  double tail = 0;
  /// An item is a block of key rows instead, as where gradients of keys stay with whoever computes them.
  bool items_by_keys = false;

  friend bool operator==(const KernelModel&, const KernelModel&) = default;
};

/// One direction of a rank's link.
struct LinkModel {
  double bytes_per_s = 0;
  double latency_s = 0;  ///< of each contiguous copy

  friend bool operator==(const LinkModel&, const LinkModel&) = default;
};

/// What moves rows between the ranks of a node.
enum class CommEngine : int {
  kCopyEngine = 0,  ///< copy engines, which leave the workers of kernels alone
  kWorkers,         ///< `comm_workers` workers, missing from kernels all through a pass in which rows move
  kHostThreads,     ///< threads that share the cores with the kernels: moving takes the time from computing
};

/// Constants of a machine. The defaults are those of H200 nodes: kernels fitted to docs/results/sm90_h200.csv, links
/// inside a node measured, links between nodes assumed (400 Gbit/s a GPU). `tangram doctor --measure` measures others.
struct MachineModel {
  std::string name = "H200 nodes";
  std::string kernels = "sm90, bfloat16, head dim 128";  ///< which kernels `forward` and `backward` are of
  KernelModel forward{64, 64, 128, 685e12, 0.17, 0.96e-6, 7.3e-6, 0.43};
  KernelModel backward{64, 64, 128, 636e12, 0, 11.6e-6, 1.9e-6, 0.52, true};
  int workers = 132;         ///< multiprocessors or threads that share a rank's items
  int ranks_per_node = 8;    ///< ranks further apart use `between`
  int devices_per_node = 8;  ///< ranks of a node beyond this many share devices
  LinkModel inside{390e9, 3e-6};
  LinkModel between{50e9, 10e-6};
  double stage_overhead_s = 8e-6;       ///< of each further stage of a pass: launch, merge
  double memory_bytes_per_s = 3.5e12;   ///< copies within a rank's memory, read plus written
  int64_t memory_bytes = 141000000000;  ///< of one rank
  CommEngine engine = CommEngine::kCopyEngine;
  int comm_workers = 24;                    ///< taken from kernels while rows move, with kWorkers
  double worker_link_bytes_per_s = 11.5e9;  ///< what one of these moves; the link bounds their sum

  friend bool operator==(const MachineModel&, const MachineModel&) = default;
};

/// The flat constants that the planner compares with.
CostModel cost_model_of(const MachineModel& machine);

/// What one strategy would take. Times are of the slowest rank.
struct StrategyPrediction {
  std::string strategy;
  /// Empty, or why the strategy cannot run here; everything below is 0 then.
  std::string infeasible;
  /// With "auto": the strategy that plans have, and its layout. Empty otherwise.
  std::string chosen;
  double forward_s = 0;
  double backward_s = 0;
  double compute_s = 0;  ///< of kernels, both passes, on the rank that computes longest
  double exposed_s = 0;  ///< when nothing but transfers went on, both passes, on the slowest rank
  /// Received over all ranks.
  double forward_bytes = 0;
  double backward_bytes = 0;
  double between_bytes = 0;   ///< the part that crosses nodes, both passes
  double max_rank_bytes = 0;  ///< largest of one rank, both passes
  int64_t kv_rows_moved = 0;  ///< K/V rows in the forward pass, where K/V is what moves; else 0
  double peak_bytes = 0;      ///< memory of the rank that needs most, equal to Plan::peak_bytes of the same plan
  double balance = 1;         ///< largest area of a rank / mean

  double step_s() const { return forward_s + backward_s; }
};

/// Names of the strategies that can be simulated, Tangram first.
std::vector<std::string_view> simulated_strategies();

/// Predicts a step of `strategy`, one of these or "auto", for `config.cp_size` ranks. `config.cost` is ignored in
/// favour of `machine`, and so is `config.strategy.name`; its head_ranks, inner_ring, head_chunks and
/// document_rows are for the strategies that have them, its dispatch algorithm for those that can deal rows so (the
/// others deal as by default). Throws InvalidArgument for an unknown strategy, constants that are not positive, or a
/// mask that make_plan refuses.
StrategyPrediction simulate(const Mask& mask, const DistAttnConfig& config, const MachineModel& machine,
                            std::string_view strategy);

}  // namespace tangram
