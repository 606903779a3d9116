// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A time line as a picture that stands alone, for documents.
#pragma once

#include <string>
#include <vector>

#include "cli/report/timeline.hpp"

namespace tangram::cli {

/// Two rows a rank: what it computes, and below it what moves to it and what it sends back. Colours are stages
/// (chunks of heads, steps of a ring). The 16 slowest ranks; says how many are left out.
std::string svg_timeline(const std::vector<TimelineEvent>& events, const std::string& title);

}  // namespace tangram::cli
