// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Stages over several nodes.
//
// NOTE [one stage a node]: a row that crosses to a node has one stage there, the same for all ranks of the node, since
// it crosses once. Stage 1 has the rows that ranks of one node have from each other, unless it is the only stage. Each
// later stage has a part of the crossing rows, in global order, about equally many of each node.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/nodes/node_rows.hpp"
#include "plan/stages.hpp"
#include "tangram/attn_pass.hpp"

namespace tangram {

/// assign_stages of all ranks (stages.hpp), over one node or several. `rows`: node_rows of the ranks, on rails of their
/// owners; they are not looked at where there is one node.
void assign_stages(std::vector<RankPlan>& ranks, const NodeShape& nodes, const NodeRows& rows,
                   const StageCounts& counts, bool keep_remote_kv);

/// Pieces of a cast by stage: [remote stages].
using StagedNodeRows = std::vector<NodeRows>;
/// `rows` of `ranks` (node_rows), cut by the stages that their segments name. Throws InvalidArgument where a row has
/// two stages on one node.
StagedNodeRows by_stage(const NodeRows& rows, const std::vector<RankPlan>& ranks, const NodeShape& nodes, AttnPass pass,
                        int num_stages);

/// Ends of the parts of crossing rows that `num_stages` remote stages bring, as global rows: [nodes][parts]. Empty with
/// one stage, which brings them all.
std::vector<std::vector<int64_t>> part_ends(const NodeRows& rows, int num_stages);
/// Segments of rank `self` with the forward stages that parts with these `ends` of its node make.
void forward_stages_in_parts(std::span<const KvSegment> segments, int self, const NodeShape& nodes,
                             const std::vector<int64_t>& ends, std::vector<KvSegment>& result);
/// `rows` by the stage of their parts.
StagedNodeRows by_parts(const NodeRows& rows, const std::vector<std::vector<int64_t>>& ends, int num_stages);

/// The pieces that each node needs, from the segments of finished ranks.
NodeRows node_rows(const std::vector<RankPlan>& ranks, const NodeShape& nodes);

}  // namespace tangram
