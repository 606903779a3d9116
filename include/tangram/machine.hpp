// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// One model of a machine: what kernels, links and memory take.
#pragma once

#include <cstdint>
#include <string>

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

/// Constants of the machine in which the planner compares. Defaults are those of one H200 among peers over NVLink;
/// `tangram doctor --measure` measures them.
struct CostModel {
  double forward_flops_per_s = 640e12;   ///< attention forward by visible area
  double backward_flops_per_s = 560e12;  ///< attention backward by visible area
  double link_bytes_per_s = 390e9;       ///< per rank and direction
  double copy_latency_s = 3e-6;          ///< fixed cost of one contiguous copy
  double stage_overhead_s = 8e-6;        ///< fixed cost of one more stage: launch, merge
  /// Query rows of a kernel tile, which a cut elsewhere leaves partly filled on both sides: the dispatch cuts documents
  /// at its multiples, unless that moves so many more rows that the tiles are worth less. 1: all cuts cost the same.
  int64_t tile_rows = 128;
  /// Copies within a rank's memory, read plus written: heads put together, partial results and gradients added up.
  double memory_bytes_per_s = 2.0e12;
  /// What a backward pass takes for a key row that is not of the rank's own shard, for each query head, however few
  /// queries see it.
  double backward_key_row_s = 3.0e-10;

  friend bool operator==(const CostModel&, const CostModel&) = default;
};

/// The flat constants that the planner compares with.
CostModel cost_model_of(const MachineModel& machine);

}  // namespace tangram
