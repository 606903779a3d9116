// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Packed causal documents, assigned to a few ranks by several short searches at once. See docs/design/dispatch.md,
// "Packs over three to eight ranks".
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "plan/refine.hpp"
#include "plan/run_list.hpp"
#include "tangram/slice.hpp"

namespace tangram {

/// Runs of rows by rank that cover `num_rows` in order. Each rank has equally many rows and at most (1 + tolerance)
/// times the mean area; of the assignments found, it moves the fewest rows. Nothing if no such assignment was found, or
/// if the pack is of a kind that this search suits badly: many documents, ranks or rows. `slices`: a causal pack.
/// Deterministic, however many threads there are: a quarter of a millisecond on each of fifteen.
std::optional<std::vector<RankRun>> assign_pack(std::span<const AttnSlice> slices, int64_t num_rows, int cp_size,
                                                double tolerance, const CutCost& cuts);

}  // namespace tangram
