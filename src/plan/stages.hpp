// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Stages: which remote rows arrive in which stage, and which slices are computed then.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tangram/attn_pass.hpp"
#include "tangram/plan.hpp"

namespace tangram {

/// Numbers of remote stages of both passes.
struct StageCounts {
  int forward = 0;
  int backward = 0;
};

/// Splits the remote rows of a rank into groups of about equal size that are contiguous in buffer order. Sets
/// `stage_fwd` and `stage_bwd` of its segments and cuts segments at the end of a group. With `keep_remote_kv` the last
/// backward group is the last forward group.
void assign_stages(RankPlan& rank, int self, const StageCounts& counts, bool keep_remote_kv);

/// Makes `forward` and `backward` of all ranks from the stages that the segments name.
void build_stages(std::vector<RankPlan>& ranks, const StageCounts& counts, bool keep_remote_kv);

/// Area of each stage of a rank, without making the stages. Its segments must name them; `slices` are the rank's.
std::vector<int64_t> stage_areas(std::span<const KvSegment> segments, std::span<const AttnSlice> slices, int num_stages,
                                 AttnPass pass);

/// The order of a pass's stages. See NOTE [kept stage] in plan.hpp.
std::vector<size_t> stage_order(size_t num_stages, bool starts_with_kept);

/// Appends a copy to a list; joins it with the last one if both sides continue without a gap.
void append_copy(std::vector<RowCopy>& copies, const RowCopy& copy);

}  // namespace tangram
