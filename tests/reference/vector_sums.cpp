// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "reference/vector_sums.hpp"

#include <algorithm>
#include <cmath>

namespace tangram::reference {

double dot(const double* a, const double* b, int size) {
  double sums[8] = {};  // without a chain of additions that wait for each other
  int i = 0;
  for (; i + 8 <= size; i += 8) {
    for (int part = 0; part < 8; ++part) sums[part] += a[i + part] * b[i + part];
  }
  for (; i < size; ++i) sums[0] += a[i] * b[i];
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

void add_scaled(double factor, const double* x, double* __restrict y, int size) {
  for (int i = 0; i < size; ++i) y[i] += factor * x[i];
}

double scores_of(const double* q, const KeyRows& keys, double scale, double largest, double* scores) {
  for (int64_t i = 0; i < keys.count; ++i) {
    scores[i] = scale * dot(q, keys.first + i * keys.stride, keys.dim);
    largest = std::max(largest, scores[i]);
  }
  return largest;
}

double add_weighted(const double* scores, double largest, const KeyRows& values, double total, double* sums) {
  for (int64_t i = 0; i < values.count; ++i) {
    const double weight = std::exp(scores[i] - largest);
    total += weight;
    add_scaled(weight, values.first + i * values.stride, sums, values.dim);
  }
  return total;
}

void add_gradients(const QueryRow& row, const KeyRows& keys, const KeyRows& values, double* dq, double* dk,
                   double* dv) {
  for (int64_t i = 0; i < keys.count; ++i) {
    const double* const k = keys.first + i * keys.stride;
    const double* const v = values.first + i * values.stride;
    double score = row.scale * dot(row.q, k, keys.dim);
    if (row.softcap > 0) score = row.softcap * std::tanh(score / row.softcap);
    const double weight = std::exp(score - row.lse);
    double dscore = weight * (dot(row.dout, v, values.dim) - row.delta);
    if (row.softcap > 0) dscore *= 1 - (score / row.softcap) * (score / row.softcap);
    add_scaled(weight, row.dout, dv + i * values.stride, values.dim);
    add_scaled(row.scale * dscore, k, dq, keys.dim);
    add_scaled(row.scale * dscore, row.q, dk + i * keys.stride, keys.dim);
  }
}

}  // namespace tangram::reference
