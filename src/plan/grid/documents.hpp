// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Documents: the parts of a mask that nothing connects, and how HybridCP assigns them to sub-groups of ranks.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "plan/runs.hpp"
#include "tangram/plan.hpp"

namespace tangram {

/// Slices that share rows, directly or over other slices, and all rows that they touch. In self-attention a token is
/// one row, as query and as key. In cross attention slices alone connect queries and keys.
struct MaskDocument {
  std::vector<Range> q_rows;  ///< in units, sorted, not touching each other
  std::vector<Range> k_rows;  ///< equal to q_rows in self-attention
  std::vector<size_t> slices;
  int64_t area = 0;

  int64_t q_size() const;
  int64_t k_size() const;
};

/// The documents by first row. A unit of `unit` rows belongs to one document whole: documents that meet in one count as
/// one. Rows of no document are in none. O(slices log slices).
std::vector<MaskDocument> find_documents(const Mask& mask, int64_t unit);

/// Sizes of the sub-groups that HybridCP forms: 1, then ever more ranks by the prime factors of cp_size, up to all.
/// Rank r is in group r / size of each.
std::vector<int> sub_group_sizes(int cp_size);

/// Rows of queries and keys by owner, in global order.
struct AssignedRows {
  std::vector<OwnedRun> q;
  std::vector<OwnedRun> k;    ///< equal to q in self-attention
  int64_t document_rows = 0;  ///< up to which a document stays whole: given, or chosen
};
/// Assigns documents to sub-groups by their length: a short one whole to a rank, longer ones zigzag over the ranks of a
/// group. See docs/design/strategies.md, "HybridCP". Throws InvalidArgument, as a function of make_plan, where the
/// configuration names another way to assign rows.
AssignedRows assign_document_rows(const Mask& mask, const DistAttnConfig& config);
/// Like assign_document_rows, as the dispatches of queries and keys.
std::pair<Dispatch, Dispatch> assign_documents(const Mask& mask, const DistAttnConfig& config);

}  // namespace tangram
