// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/verification.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "cli/dense_rows.hpp"
#include "cli/progress.hpp"
#include "cli/text_table.hpp"

namespace tangram::cli {

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kFloatBound = 1e-5;
constexpr double kNaiveFactor = 2;

// All rows, or a sorted sample without repetition that is the same in every run.
std::vector<int64_t> rows_to_verify(int64_t num_rows) {
  std::vector<int64_t> rows;
  if (num_rows <= kMaxRowsInFull) {
    for (int64_t row = 0; row < num_rows; ++row) rows.push_back(row);
    return rows;
  }
  std::mt19937_64 random(static_cast<uint64_t>(num_rows));
  // One row out of each of equal strata, so that every part of the sequence is seen.
  for (int64_t n = 0; n < kNumSampledRows; ++n) {
    const int64_t begin = n * num_rows / kNumSampledRows;
    const int64_t end = (n + 1) * num_rows / kNumSampledRows;
    rows.push_back(begin + static_cast<int64_t>(random() % static_cast<uint64_t>(end - begin)));
  }
  return rows;
}

std::vector<double> rows_of(const HostTensor& tensor, const std::vector<int64_t>& rows) {
  std::vector<double> values;
  for (const int64_t row : rows) {
    for (int head = 0; head < tensor.heads(); ++head) {
      for (int d = 0; d < tensor.dim(); ++d) values.push_back(tensor.at(row, head, d));
    }
  }
  return values;
}

// ||a - b|| / ||b||; where b cancels to nothing against `magnitude`, relative to that. Infinite values must agree
// exactly, and NaN makes the result NaN, which no bound admits.
double relative_error(const std::vector<double>& a, const std::vector<double>& b, double magnitude) {
  constexpr double kCancelled = 1e-9;
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isinf(a[i]) || std::isinf(b[i])) {
      if (a[i] != b[i]) return kInf;
      continue;
    }
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  norm = std::sqrt(norm);
  if (norm <= kCancelled * magnitude) norm = magnitude;
  const double error = std::sqrt(difference);
  return norm > 0 ? error / norm : error;
}

RowStatistics statistics_of(const StepInputs& inputs, const StepResult& result) {
  RowStatistics statistics;
  statistics.lse.assign(result.lse.data<float>(), result.lse.data<float>() + result.lse.size());
  for (int64_t row = 0; row < result.out.rows(); ++row) {
    for (int head = 0; head < result.out.heads(); ++head) {
      double delta = 0;
      for (int d = 0; d < result.out.dim(); ++d) {
        delta += static_cast<double>(result.out.at(row, head, d)) * inputs.dout.at(row, head, d);
      }
      statistics.delta.push_back(delta);
    }
  }
  return statistics;
}

}  // namespace

bool Verification::ok() const {
  return std::all_of(outputs.begin(), outputs.end(), [](const OutputError& output) { return output.ok; });
}

Verification verify_step(const PlanSummary& summary, const StepInputs& inputs, const StepOptions& options,
                         const StepResult& result) {
  const auto begin = std::chrono::steady_clock::now();
  const Plan& plan = *summary.plan;
  const AttnOptions attn = make_attn_options(options);
  DenseProblem problem;
  problem.masks = summary.masks;
  problem.heads = plan.config.heads;
  problem.softmax_scale = attn.softmax_scale ? *attn.softmax_scale : 1 / std::sqrt(double(problem.heads.head_dim));
  problem.softcap = attn.softcap;
  problem.inputs = &inputs;
  problem.num_threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));

  const std::vector<int64_t> q_rows = rows_to_verify(plan.q_dispatch.seqlen());
  const std::vector<int64_t> k_rows = rows_to_verify(plan.k_dispatch.seqlen());
  Verification verification;
  const bool q_sampled = static_cast<int64_t>(q_rows.size()) < plan.q_dispatch.seqlen();
  verification.sampled = q_sampled || static_cast<int64_t>(k_rows.size()) < plan.k_dispatch.seqlen();
  RowStatistics sampled_statistics;
  if (q_sampled) sampled_statistics = statistics_of(inputs, result);
  const RowStatistics* statistics = q_sampled ? &sampled_statistics : nullptr;
  const bool has_naive = problem.heads.dtype != DType::kFloat32;
  const double passes = static_cast<double>(q_rows.size() + k_rows.size()) * problem.heads.num_heads_q;
  ProgressBar bar((has_naive ? 2 : 1) * passes, "comparing with the reference");
  problem.on_row = [&bar] { bar.advance(1); };
  const DenseRows exact = dense_rows(problem, q_rows, k_rows, statistics);
  DenseRows naive;
  if (has_naive) {
    problem.rounding = problem.heads.dtype;
    naive = dense_rows(problem, q_rows, k_rows, statistics);
  }

  const auto add = [&](const char* name, const std::vector<double>& values, std::vector<double> DenseRows::* field,
                       double magnitude, size_t num_rows) {
    OutputError output{
        name, relative_error(values, exact.*field, magnitude), kFloatBound, -1, static_cast<int64_t>(num_rows), false};
    if (has_naive) {
      output.naive_error = relative_error(naive.*field, exact.*field, magnitude);
      output.bound = std::max(kFloatBound, kNaiveFactor * output.naive_error);
    }
    output.ok = output.error <= output.bound;
    verification.outputs.push_back(output);
  };
  add("out", rows_of(result.out, q_rows), &DenseRows::out, 0, q_rows.size());
  add("lse", rows_of(result.lse, q_rows), &DenseRows::lse, 0, q_rows.size());
  add("dq", rows_of(result.dq, q_rows), &DenseRows::dq, exact.dq_magnitude, q_rows.size());
  add("dk", rows_of(result.dk, k_rows), &DenseRows::dk, exact.dk_magnitude, k_rows.size());
  add("dv", rows_of(result.dv, k_rows), &DenseRows::dv, 0, k_rows.size());
  verification.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return verification;
}

std::string verification_text(const Verification& verification) {
  TextTable table({"output", "relative error", "bound", "naive pass", "rows", ""});
  for (const OutputError& output : verification.outputs) {
    table.add({output.name, fmt::format("{:.2e}", output.error), fmt::format("{:.2e}", output.bound),
               output.naive_error < 0 ? "–" : fmt::format("{:.2e}", output.naive_error), with_commas(output.num_rows),
               output.ok ? "ok" : "FAILED"});
  }
  return fmt::format("\n{}\n{} against the float64 reference ({}) in {}.\n", table.text(),
                     verification.ok() ? "Verified" : "FAILED", verification.sampled ? "sampled rows" : "every row",
                     seconds_text(verification.seconds));
}

nlohmann::json verification_json(const Verification& verification) {
  nlohmann::json outputs = nlohmann::json::object();
  for (const OutputError& output : verification.outputs) {
    outputs[output.name] = {
        {"error", output.error}, {"bound", output.bound}, {"rows", output.num_rows}, {"ok", output.ok}};
    if (output.naive_error >= 0) outputs[output.name]["naive_error"] = output.naive_error;
  }
  return {{"ok", verification.ok()}, {"sampled", verification.sampled}, {"outputs", outputs}};
}

}  // namespace tangram::cli
