// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Masks in JSON files.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tangram/mask.hpp"

namespace tangram::cli {

/// Reads one mask:
///   {"seqlen": N | "seqlen_q": N, "seqlen_k": M, "q_ranges": [[b, e], ...], "k_ranges": [[b, e], ...],
///    "attn_types": [0..3 or full, causal, inv_causal, bi_causal, ...] | "bands": [[min|null, max|null], ...]}
/// or, from a file with a list "cases" of such, the one that `which` names as NAME:SEQLEN (NAME alone where it is the
/// only one); or, from {"head_masks": [mask, mask, ...]}, the mask of each group of heads. Both lists missing: all
/// full. A stated "area" must be the mask's. Throws InvalidArgument, starting with `what`, for anything else, unknown
/// keys included.
std::vector<Mask> parse_masks_json(std::string_view text, const std::string& which, std::string_view what);

}  // namespace tangram::cli
