// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Skeleton: what of a program takes time or waits for others, in its order.
//
// NOTE [skeleton]: all ranks have the same skeleton. It depends on the shape of a plan alone: its number of stages, row
// groups and chunks of heads. What ranks differ in, rows and areas, are loads (clock.hpp). So a pass is timed in the
// order in which its program was written, for plans that exist and for those that are only compared.
#pragma once

#include <memory>
#include <vector>

#include "plan/grid_shape.hpp"
#include "plan/program/program.hpp"
#include "plan/stages.hpp"

namespace tangram {

struct Skeleton {
  enum class Kind { kPost, kWait, kAttend };
  struct Op {
    Kind kind = Kind::kAttend;
    int index = 0;  ///< of the cast, or AttendOp::step
  };
  struct CastOfStep {
    int step = 0;
    bool results = false;
    bool exchanges_heads = false;
  };

  std::vector<Op> ops;
  std::vector<CastOfStep> casts;
  int num_attends = 0;
};
Skeleton skeleton_of(const Program& program);

using SharedSkeleton = std::shared_ptr<const Skeleton>;

/// Skeletons of the programs of a pass, from plans of one rank that have the shape and nothing else. Made once a
/// process, since planning asks for the same ones again and again; any thread may call.
/// Of a K/V plan with `num_stages` remote stages. `kept_first`: see NOTE [kept stage] in plan.hpp.
SharedSkeleton kv_skeleton(AttnPass pass, int num_stages, bool kept_first);
/// Skeleton of a plan with QO communication.
SharedSkeleton movement_skeleton(AttnPass pass, int num_stages);
/// Not of kSubRings. The heads of a rank are exchanged in `num_chunks` chunks.
SharedSkeleton grid_skeleton(AttnPass pass, const GridShape& shape, int num_chunks);
/// Skeleton of HybridCP with `num_steps` steps.
SharedSkeleton sub_ring_skeleton(AttnPass pass, int num_steps);

}  // namespace tangram
