// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Line charts as SVG that stands alone: readable on light and dark pages, in print and in a README.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tangram::cli {

struct ChartSeries {
  std::string name;
  std::vector<std::pair<double, double>> points;  // sorted by x
};

enum class AxisUnit : int { kNumber, kSeconds, kBytes, kPercent };

/// One panel. x is logarithmic (base 2), y logarithmic unless a percentage.
struct Chart {
  std::string title;
  std::string x_label;
  AxisUnit y_unit = AxisUnit::kNumber;
  std::vector<ChartSeries> series;
  /// A horizontal mark, 0 for none, and its name.
  double limit = 0;
  std::string limit_name;
};

/// The panels side by side, `columns` a row, under one title with one legend (series of one name share a colour).
std::string svg_charts(const std::vector<Chart>& charts, const std::string& title, int columns);

}  // namespace tangram::cli
