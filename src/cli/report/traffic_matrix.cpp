// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/report/traffic_matrix.hpp"

namespace tangram::cli {

TrafficMatrix traffic_matrix(const Plan& plan) {
  constexpr int kMaxGroups = 64;
  constexpr int kUsualNode = 8;
  TrafficMatrix matrix;
  const auto num_groups = [&] { return (plan.cp_size() + matrix.group - 1) / matrix.group; };
  while (num_groups() > kMaxGroups) matrix.group = matrix.group == 1 ? kUsualNode : 2 * matrix.group;
  const size_t count = static_cast<size_t>(num_groups());
  matrix.rows.assign(count, std::vector<int64_t>(count, 0));
  const auto group_of = [&](size_t rank) { return rank / static_cast<size_t>(matrix.group); };
  for (size_t rank = 0; rank < plan.ranks().size(); ++rank) {
    for (const Stage& stage : plan.ranks()[rank].forward) {
      for (const RowCopy& copy : stage.exchange.recvs) {
        matrix.rows[group_of(static_cast<size_t>(copy.peer))][group_of(rank)] += copy.rows.size();
      }
    }
  }
  return matrix;
}

}  // namespace tangram::cli
