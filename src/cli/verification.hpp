// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Results of a step against the float64 reference: errors, bounds, verdict.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/step.hpp"

namespace tangram::cli {

/// One output: relative L2 error over the verified rows, and its bound.
struct OutputError {
  std::string name;
  double error = 0;
  double bound = 0;
  /// Error of a naive pass in the dtype; negative in float32, where there is none.
  double naive_error = -1;
  int64_t num_rows = 0;
  bool ok = false;
};

struct Verification {
  std::vector<OutputError> outputs;
  bool sampled = false;
  double seconds = 0;

  bool ok() const;
};

/// Sequences up to this length are verified in every row, longer ones in kNumSampledRows.
inline constexpr int64_t kMaxRowsInFull = 16384;
inline constexpr int64_t kNumSampledRows = 4096;

/// Bounds: float32 1e-5; bfloat16 and float16 twice the error of a naive pass in that dtype, but never below 1e-5.
/// Sampled key gradients take lse and delta of the queries from the results, whose own rows are verified as well.
Verification verify_step(const PlanSummary& summary, const StepInputs& inputs, const StepOptions& options,
                         const StepResult& result);

std::string verification_text(const Verification& verification);
nlohmann::json verification_json(const Verification& verification);

}  // namespace tangram::cli
