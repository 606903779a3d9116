// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "machine/fit.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <vector>

#include "core/require.hpp"

namespace tangram {

namespace {

constexpr size_t kMaxTerms = 5;
using Row = std::array<double, kMaxTerms>;

struct Solution {
  Row values{};
  double squared_error = 0;
};

// Least squares with the terms of `set` alone, by the normal equations; nothing when they do not tell the terms apart.
std::optional<Row> solve(const std::vector<Row>& rows, unsigned set) {
  std::vector<size_t> terms;
  for (size_t t = 0; t < kMaxTerms; ++t) {
    if (set >> t & 1) terms.push_back(t);
  }
  const size_t n = terms.size();
  double a[kMaxTerms][kMaxTerms + 1] = {};
  for (const Row& row : rows) {
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) a[i][j] += row[terms[i]] * row[terms[j]];
      a[i][n] += row[terms[i]];  // every right side is 1: rows are divided by the measured time
    }
  }
  for (size_t i = 0; i < n; ++i) {
    size_t pivot = i;
    for (size_t r = i + 1; r < n; ++r) {
      if (std::abs(a[r][i]) > std::abs(a[pivot][i])) pivot = r;
    }
    if (std::abs(a[pivot][i]) < 1e-12) return std::nullopt;
    std::swap(a[i], a[pivot]);
    for (size_t r = 0; r < n; ++r) {
      if (r == i) continue;
      const double factor = a[r][i] / a[i][i];
      for (size_t c = i; c <= n; ++c) a[r][c] -= factor * a[i][c];
    }
  }
  Row values{};
  for (size_t i = 0; i < n; ++i) values[terms[i]] = a[i][n] / a[i][i];
  return values;
}

// Rows hold each term divided by the measured time. Terms are scaled to like size first. The first is never left out.
Solution solve_not_negative(std::vector<Row> rows) {
  Row scale{};
  for (const Row& row : rows) {
    for (size_t t = 0; t < kMaxTerms; ++t) scale[t] = std::max(scale[t], std::abs(row[t]));
  }
  for (Row& row : rows) {
    for (size_t t = 0; t < kMaxTerms; ++t) row[t] = scale[t] > 0 ? row[t] / scale[t] : 0;
  }
  Solution best;
  bool found = false;
  for (unsigned set = 1; set < 1u << kMaxTerms; set += 2) {
    const std::optional<Row> values = solve(rows, set);
    if (!values || std::any_of(values->begin(), values->end(), [](double v) { return v < 0; })) continue;
    double squared = 0;
    for (const Row& row : rows) {
      double sum = -1;
      for (size_t t = 0; t < kMaxTerms; ++t) sum += row[t] * (*values)[t];
      squared += sum * sum;
    }
    if (found && squared >= best.squared_error) continue;
    found = true;
    best = {*values, squared};
  }
  TANGRAM_ASSERT(found);  // one positive term alone always has a positive solution
  for (size_t t = 0; t < kMaxTerms; ++t) best.values[t] = scale[t] > 0 ? best.values[t] / scale[t] : 0;
  return best;
}

template <class Sample>
void validate(std::span<const Sample> samples, const char* function) {
  require(samples.size() >= 2, "{}: needs at least two samples (got {})", function, samples.size());
  for (const Sample& sample : samples) {
    require(std::isfinite(sample.seconds) && sample.seconds > 0, "{}: times must be positive (got {})", function,
            sample.seconds);
  }
}

}  // namespace

KernelFit fit_kernel(const KernelModel& tiles, std::span<const KernelSample> samples, double flops, int workers) {
  validate(samples, "fit_kernel");
  std::vector<Row> rows;
  for (const KernelSample& sample : samples) {
    require(sample.work.issued > 0, "fit_kernel: samples must have work (got none)");
    rows.push_back({sample.work.issued * sample.num_heads * flops, sample.work.cut * sample.num_heads * flops,
                    sample.work.items * sample.num_heads / workers, 1, sample.work.longest * flops * workers});
    for (double& term : rows.back()) term /= sample.seconds;
  }
  const Solution solution = solve_not_negative(rows);
  const Row& x = solution.values;
  KernelFit fit;
  fit.model = tiles;
  fit.model.flops_per_s = 1 / x[0];
  fit.model.masked_tile_cost = x[1] / x[0];
  fit.model.item_s = x[2];
  fit.model.call_s = x[3];
  fit.model.tail = x[4] / x[0];
  fit.rms_error = std::sqrt(solution.squared_error / static_cast<double>(samples.size()));
  for (const Row& row : rows) {
    double sum = -1;
    for (size_t t = 0; t < kMaxTerms; ++t) sum += row[t] * x[t];
    fit.max_error = std::max(fit.max_error, std::abs(sum));
  }
  return fit;
}

LinkFit fit_link(std::span<const LinkSample> samples) {
  validate(samples, "fit_link");
  std::vector<Row> rows;
  for (const LinkSample& sample : samples) {
    require(sample.bytes > 0, "fit_link: samples must move bytes (got {})", sample.bytes);
    rows.push_back({sample.bytes / sample.seconds, sample.copies / sample.seconds, 1 / sample.seconds, 0, 0});
  }
  const Solution solution = solve_not_negative(rows);
  return {{1 / solution.values[0], solution.values[1]},
          solution.values[2],
          std::sqrt(solution.squared_error / static_cast<double>(samples.size()))};
}

}  // namespace tangram
