// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The inner loops of the references in float64, compiled with all optimisation and without sanitizers: most of what
// tests of attention compute is in them.
#pragma once

namespace tangram::reference {

/// The sum of a[i] * b[i], in an order of its own.
double dot(const double* a, const double* b, int size);

/// y[i] += factor * x[i].
void add_scaled(double factor, const double* x, double* y, int size);

}  // namespace tangram::reference
