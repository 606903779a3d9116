// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The report: one HTML file that opens offline, with the mask, who computes what, who sends what, and when.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cli/plan_summary.hpp"
#include "cli/report/timeline.hpp"

namespace tangram::cli {

/// Optional contents of a report beyond the plan.
struct ReportExtras {
  /// Events that a run recorded, begin at 0; empty: the prediction is drawn, and marked as such.
  std::vector<TimelineEvent> measured;
  /// Lines of name and value, e.g. times or errors of a verification.
  std::vector<std::pair<std::string, std::string>> figures;
};

/// The whole file, below 2 MB whatever the mask: where slices are too many, the largest are drawn, and it says so.
std::string html_report(const PlanSummary& summary, const ReportExtras& extras);

}  // namespace tangram::cli
