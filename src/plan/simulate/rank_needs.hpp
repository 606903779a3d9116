// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Rows that a rank of a Tangram plan needs from others, counted from ranges. Neither segments nor exchange tables are
// made, whose number grows with the square of the ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/runs.hpp"
#include "plan/simulate/strategies.hpp"

namespace tangram::sim {

/// Key runs in global order, and those of each node.
struct KeyRuns {
  std::vector<OwnedRun> all;
  std::vector<std::vector<OwnedRun>> of_rank;
  std::vector<std::vector<OwnedRun>> of_node;
};
KeyRuns key_runs(const Dispatch& k_dispatch, const SimInput& input);

/// A range of rows that others own.
struct RemotePiece {
  Range global;
  int64_t row = 0;  // first row in the rank's K/V buffer
};

struct RankNeeds {
  std::vector<AttnSlice> slices;  // shard rows, buffer rows
  std::vector<Range> local;       // buffer rows that are its own
  std::vector<RemotePiece> remote;
  int64_t buffer_rows = 0;
  int64_t remote_rows = 0;
};
/// `slices` as cut_by_rank gives them.
RankNeeds needs_of(std::vector<AttnSlice> slices, const KeyRuns& runs, int rank);

/// Rows and copies, as `bytes` and `copies`, of a range that a rank of `node` needs.
Transfer rows_of_piece(const Range& rows, const KeyRuns& runs, int node);

/// Work and rows of each stage when the remote rows are cut into `num_stages` groups of equal size; entry 0 is local.
struct StagedNeeds {
  std::vector<Work> work;
  std::vector<Transfer> rows;
};
StagedNeeds split_stages(const RankNeeds& needs, const KeyRuns& runs, int node, int num_stages,
                         const KernelModel& kernel);

/// Stages over nodes with relays. Entry 1: rows that other ranks of the node own; later entries: parts of the rest,
/// which end at `ends` (NOTE [one stage a node]). Without parts entry 1 is all. Rows are counted as the rank receives
/// them, all inside its node.
StagedNeeds split_node_stages(const RankNeeds& needs, const KeyRuns& runs, int node, const std::vector<int64_t>& ends,
                              int num_stages, const KernelModel& kernel);

/// Rows and copies that every rank sends.
std::vector<Transfer> sent_rows(const std::vector<RankNeeds>& ranks, const KeyRuns& runs, const SimInput& input);

}  // namespace tangram::sim
