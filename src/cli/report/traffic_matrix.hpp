// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Who sends what in a forward pass, no finer than a picture can show.
#pragma once

#include <cstdint>
#include <vector>

#include "tangram/plan.hpp"

namespace tangram::cli {

struct TrafficMatrix {
  /// Neighbouring ranks that are one row and one column; the last ones may be fewer.
  int group = 1;
  /// K/V rows by group that sends and group that receives. On the diagonal what moves inside a group.
  std::vector<std::vector<int64_t>> rows;
};

/// Rows and columns are ranks up to 64 ranks, then groups of 8 (most nodes' size), or larger ones: at most 64 groups.
TrafficMatrix traffic_matrix(const Plan& plan);

}  // namespace tangram::cli
