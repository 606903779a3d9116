// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Reference for verified results: attention of single rows in float64, with a visibility test of its own. Or the same
// with every intermediate rounded to a dtype, as a straightforward pass in that dtype would.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "cli/step_inputs.hpp"
#include "tangram/mask.hpp"

namespace tangram::cli {

/// Values of `rows` in float64, each `[rows.size(), heads, dim]`.
struct DenseRows {
  std::vector<int64_t> q_rows;
  std::vector<int64_t> k_rows;
  std::vector<double> out;  // of q_rows
  std::vector<double> lse;  // of q_rows, [q_rows.size(), num_heads_q]
  std::vector<double> dq;   // of q_rows
  std::vector<double> dk;   // of k_rows
  std::vector<double> dv;   // of k_rows
  /// Sums of absolute contributions to a row of dq and dk: what rounding is measured by where gradients cancel.
  double dq_magnitude = 0;
  double dk_magnitude = 0;
};

/// lse and delta = rowsum(dout * out) of all query rows, `[seqlen_q, num_heads_q]`: what gradients of keys need.
struct RowStatistics {
  std::vector<double> lse;
  std::vector<double> delta;
};

struct DenseProblem {
  std::span<const Mask> masks;  // one, or one for each group of heads
  HeadConfig heads;
  double softmax_scale = 1;
  double softcap = 0;
  const StepInputs* inputs = nullptr;
  /// kFloat32: float64 throughout. Otherwise scores, probabilities, their gradients and results are rounded to it.
  DType rounding = DType::kFloat32;
  int num_threads = 1;
  /// Hears of each row of a head that is done, from several threads; may be empty.
  std::function<void()> on_row = {};
};

/// Computes the given rows. When `q_rows` are all rows, key gradients use the statistics computed here; otherwise
/// `statistics` must hold them.
DenseRows dense_rows(const DenseProblem& problem, std::vector<int64_t> q_rows, std::vector<int64_t> k_rows,
                     const RowStatistics* statistics);

}  // namespace tangram::cli
