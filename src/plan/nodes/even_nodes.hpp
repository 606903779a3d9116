// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Evens what nodes send and receive, of packed documents that have been dispatched to nodes.
//
// NOTE [even nodes]: the search for few rows that cross (refine.hpp) counts them over all nodes. Some dispatches with
// nearly the same count make one node the source of most rows: the node with the first rows of long documents, which
// all nodes with later rows need. So rows of the node that sends or receives most are exchanged for as many rows of
// another node, of about the same area.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tangram/plan.hpp"

namespace tangram {

struct EvenNodesOptions {
  double tolerance = 0;  ///< areas of nodes up to (1 + tolerance) * mean are balanced
  int num_trials = 0;    ///< exchanges that are tried
};

/// Documents of one slice each, that lie apart in rows and keys.
bool is_pack(std::span<const AttnSlice> slices);

/// `dispatch`: of the rows of `mask`, which is_pack, to nodes. Each keeps its number of rows. Deterministic.
Dispatch even_nodes(const Mask& mask, const Dispatch& dispatch, const EvenNodesOptions& options);

}  // namespace tangram
