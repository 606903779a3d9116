// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Measured times of kernels and links as samples to fit: CSV of benchmarks/attn/sm90_vs_cudnn.py, and rates of
// benchmarks/comm/link_bench.cu.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "machine/fit.hpp"
#include "reference/mask_cases.hpp"
#include "support/csv.hpp"

namespace tangram::test {

/// Rows of one pass ("forward", "backward") and shape of heads.
struct KernelRows {
  std::string pass;
  int heads_q = 64;
  int heads_kv = 8;
  int head_dim = 128;

  /// FLOPs of a visible cell of one head.
  double flops() const { return (pass == "forward" ? 4.0 : 10.0) * head_dim; }
};

inline std::vector<KernelSample> read_kernel_samples(const std::string& path, const KernelRows& wanted,
                                                     const KernelModel& tiles) {
  std::map<std::string, reference::MaskCase> masks;
  for (reference::MaskCase& c : reference::load_mask_cases("masks.json")) masks.emplace(c.name, std::move(c));
  std::vector<KernelSample> samples;
  for (const support::CsvRow& row : support::read_csv(path)) {
    if (row.at("pass") != wanted.pass || row.at("heads_q") != std::to_string(wanted.heads_q) ||
        row.at("heads_kv") != std::to_string(wanted.heads_kv) ||
        row.at("head_dim") != std::to_string(wanted.head_dim)) {
      continue;
    }
    const reference::MaskCase& c = masks.at(row.at("mask") + ":" + row.at("seqlen"));
    const double flops = wanted.flops() * static_cast<double>(c.area) * wanted.heads_q;
    samples.push_back({of_one_call(count_work(c.slices, tiles), static_cast<double>(c.seqlen), tiles),
                       static_cast<double>(wanted.heads_q), flops / (std::stod(row.at("tflops")) * 1e12)});
  }
  return samples;
}

/// Calls of 16K rows and more of side_by_side_h200.csv, by mask; of a cell that was measured again the last time.
inline std::map<std::string, KernelSample> read_side_by_side(const KernelRows& wanted, const KernelModel& tiles) {
  std::map<std::string, reference::MaskCase> masks;
  for (reference::MaskCase& c : reference::load_mask_cases("masks.json")) masks.emplace(c.name, std::move(c));
  std::map<std::string, KernelSample> samples;
  for (const support::CsvRow& row : support::read_csv(support::result_path("side_by_side_h200.csv"))) {
    const auto mask = masks.find(row.at("mask") + ":" + row.at("seqlen"));
    if (mask == masks.end() || mask->second.seqlen < 16384 || row.at("pass") != wanted.pass ||
        row.at("heads_q") != std::to_string(wanted.heads_q) || row.at("head_dim") != std::to_string(wanted.head_dim) ||
        row.at("deterministic") != "0") {
      continue;
    }
    const reference::MaskCase& c = mask->second;
    const double flops = wanted.flops() * static_cast<double>(c.area) * wanted.heads_q;
    samples[c.name] = {of_one_call(count_work(c.slices, tiles), static_cast<double>(c.seqlen), tiles),
                       static_cast<double>(wanted.heads_q), flops / (std::stod(row.at("tangram_tflops")) * 1e12)};
  }
  return samples;
}

/// One copy each, `column` being its rate in GB/s.
inline std::vector<LinkSample> read_link_samples(const std::string& path, const std::string& column) {
  std::vector<LinkSample> samples;
  for (const support::CsvRow& row : support::read_csv(path)) {
    const double bytes = std::stod(row.at("bytes"));
    samples.push_back({bytes, 1, bytes / (std::stod(row.at(column)) * 1e9)});
  }
  return samples;
}

}  // namespace tangram::test
