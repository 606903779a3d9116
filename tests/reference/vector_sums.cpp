// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "reference/vector_sums.hpp"

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

}  // namespace tangram::reference
