// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Sequences that share prefixes, from a file: the mask of their prefix tree, as tangram.trees of Python makes it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tangram/mask.hpp"

namespace tangram::cli {

/// Sequences as a forest of shared prefixes, each shared token one row.
struct PrefixTree {
  /// Rows in preorder; each row sees itself and its ancestors.
  Mask mask;
  int64_t num_sequences = 0;
  /// Tokens of all sequences, shared ones counted in each.
  int64_t sequence_tokens = 0;
};

/// Parses `{"sequences": [[1, 2, 3], [1, 2, 4]], "min_shared": 64}` or `{"lengths": [2, 1, 1], "parents": [-1, 0, 0]}`.
///
/// sequences: tokens, any whole numbers. Sequences share rows only if they have `min_shared` tokens (default 64) or
/// more in common behind their last shared node. lengths, parents: rows of each node and the number of its parent, -1
/// for a root; a sequence ends at each node without children. Siblings are in the order of their first sequence, or of
/// their numbers.
///
/// Throws InvalidArgument, starting with `what`, for malformed text, parents that are no nodes or form a cycle, no row
/// at all, and more than 2^31 rows or tokens.
PrefixTree parse_sequences_json(std::string_view json, std::string_view what);

}  // namespace tangram::cli
