// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The inner loops of the references in float64, compiled with all optimisation and without sanitizers: most of what
// tests of attention compute is in them.
#pragma once

#include <cstdint>

namespace tangram::reference {

/// The sum of a[i] * b[i], in an order of its own.
double dot(const double* a, const double* b, int size);

/// y[i] += factor * x[i].
void add_scaled(double factor, const double* x, double* y, int size);

/// Rows of `dim` numbers of a matrix, `stride` numbers apart.
struct KeyRows {
  const double* first;
  int64_t stride;
  int64_t count;
  int dim;
};

/// scores[i] = scale * the sum of q * keys[i], without softcap; returns the largest of them and of `largest`.
double scores_of(const double* q, const KeyRows& keys, double scale, double largest, double* scores);

/// sums += exp(scores[i] - largest) * values[i]; returns `total` and all of these weights, added in their order.
double add_weighted(const double* scores, double largest, const KeyRows& values, double total, double* sums);

/// One query row of the backward pass against keys that lie `keys.stride` apart in dk, too, as values in dv.
struct QueryRow {
  const double* q;
  const double* dout;
  double scale, softcap, lse, delta;
};
void add_gradients(const QueryRow& row, const KeyRows& keys, const KeyRows& values, double* dq, double* dk, double* dv);

}  // namespace tangram::reference
