// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What a plan over several nodes moves between them: which node sends what to which, and over which rails.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tangram/plan.hpp"

namespace tangram::cli {

/// Whether there is something to say: K/V move between the ranks of several nodes.
bool has_node_summary(const Plan& plan);

/// A table of nodes, and what crosses in a forward pass.
std::string nodes_text(const Plan& plan);
nlohmann::json nodes_json(const Plan& plan);
/// A section of the report.
std::string nodes_html(const Plan& plan);

}  // namespace tangram::cli
