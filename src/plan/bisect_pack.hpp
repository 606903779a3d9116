// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Packed causal documents, assigned to two ranks by counting sets of documents instead of by trying moves. See
// docs/design/dispatch.md, "Packs over two ranks".
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "plan/refine.hpp"
#include "plan/run_list.hpp"
#include "tangram/slice.hpp"

namespace tangram {

/// Whether every slice is a causal document of its own: its rows are its keys, and no other slice has any of them.
/// `slices`: canonical, sorted by first row.
bool is_causal_pack(std::span<const AttnSlice> slices);

/// Runs of rows by rank, 0 or 1, that cover `num_rows` in order. Each rank has half of the rows and at most (1 +
/// tolerance) times the mean area; of the assignments found, it moves the fewest rows. Nothing where no such halves
/// were found. `slices`: a causal pack. Rows that no slice has go where rows are missing. Deterministic; O(documents),
/// a tenth to a quarter of a millisecond.
std::optional<std::vector<RankRun>> bisect_pack(std::span<const AttnSlice> slices, int64_t num_rows, double tolerance,
                                                const CutCost& cuts);

}  // namespace tangram
