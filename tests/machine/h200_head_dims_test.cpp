// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The factors of head dims are what the pages of results give, and predict what was measured.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <sstream>

#include "machine/head_dim_rates.hpp"
#include "machine/measured_kernels.hpp"

namespace tangram {
namespace {

std::string read_page(const std::string& path) {
  std::ifstream file(std::string(TANGRAM_TEST_DATA) + "/../../docs/" + path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// Cells of the line of a page that begins with `begin`; none where there is no such line.
std::vector<std::string> table_row(const std::string& page, const std::string& begin) {
  std::vector<std::string> cells;
  const size_t at = page.find("\n" + begin);
  if (at == std::string::npos) return cells;
  std::istringstream line(page.substr(at + 3, page.find('\n', at + 1) - at - 3));
  while (std::getline(line, cells.emplace_back(), '|'))
    cells.back() = std::regex_replace(cells.back(), std::regex("^ | $"), "");
  return cells;
}

/// The last row of side_by_side_h200.csv for a causal mask of 16,384 rows: the kernels as they are.
double measured_tflops(int head_dim, const std::string& pass) {
  double tflops = 0;
  for (const support::CsvRow& row : support::read_csv(support::result_path("side_by_side_h200.csv"))) {
    if (row.at("mask") == "causal" && row.at("seqlen") == "16384" && row.at("heads_q") == "64" &&
        row.at("head_dim") == std::to_string(head_dim) && row.at("deterministic") == "0" && row.at("pass") == pass) {
      tflops = std::stod(row.at("tangram_tflops"));
    }
  }
  return tflops;
}

// Factors are quotients of the rates that stand beside them on the design page, which are those of the results.
TEST(H200, HeadDimsAreThoseOfTheMeasuredTables) {
  const std::string design = read_page("design/kernel_variants.md"),
                    results = read_page("results/side_by_side_h200.md");
  // 128 on the GPU of the classes that were measured apart.
  ASSERT_NE(results.find("677, 608."), std::string::npos);
  for (const HeadDimRate& rate : h200::kHeadDimRates) {
    const std::string name = rate.head_dim == rate.head_dim_v ? std::to_string(rate.head_dim)
                                                              : fmt::format("({}, {})", rate.head_dim, rate.head_dim_v);
    SCOPED_TRACE(name);
    const std::vector<std::string> row = table_row(design, "| " + name + " | " + fmt::format("{} |", rate.forward));
    ASSERT_EQ(row.size(), 5u);
    EXPECT_EQ(row[2], fmt::format("{}", rate.backward));
    std::smatch measured;
    if (!std::regex_match(row[3], measured, std::regex(R"((\d+), (\d+); (\d+), (\d+))"))) continue;
    const auto number = [&](size_t i) { return std::stod(measured[i]); };
    EXPECT_NEAR(rate.forward, number(1) / number(3), 0.005 * rate.forward);
    EXPECT_NEAR(rate.backward, number(2) / number(4), 0.005 * rate.backward);
    if (rate.head_dim == 64) {
      EXPECT_EQ(number(1), measured_tflops(64, "forward"));
      EXPECT_EQ(number(2), measured_tflops(64, "backward"));
      EXPECT_EQ(number(3), measured_tflops(128, "forward"));
      EXPECT_EQ(number(4), measured_tflops(128, "backward"));
      continue;
    }
    const std::string heads = rate.head_dim == 256 ? "16/4" : "32/8";
    const std::vector<std::string> cells = table_row(results, fmt::format("| {} ({}) | 16K |", name, heads));
    ASSERT_GE(cells.size(), 6u);
    EXPECT_EQ(std::stod(cells[2]), number(1));
    EXPECT_EQ(std::stod(cells[4]), number(2));
    EXPECT_EQ(measured[3], "677");
    EXPECT_EQ(measured[4], "608");
  }
}

// Constants of head dim 128 and two factors predict calls of head dim 64 of 16K rows and more.
TEST(H200, FactorsPredictCallsOfHeadDim64) {
  int num_cells = 0;
  for (const KernelModel& model : {h200::kForward, h200::kBackward}) {
    const AttnPass pass = model.items_by_keys ? AttnPass::kBackward : AttnPass::kForward;
    const test::KernelRows rows{.pass = pass == AttnPass::kForward ? "forward" : "backward", .head_dim = 64};
    KernelModel kernel = model;
    kernel.flops_per_s *= head_dim_factor(h200::kHeadDimRates, 64, 64, pass);
    for (const auto& [name, sample] : test::read_side_by_side(rows, kernel)) {
      const CallSize size{sample.num_heads, rows.flops(), h200::kMultiprocessors};
      EXPECT_NEAR(call_seconds(kernel, sample.work, size), sample.seconds, 0.05 * sample.seconds) << name;
      EXPECT_LT(call_seconds(model, sample.work, size), 0.9 * sample.seconds) << name;
      ++num_cells;
    }
  }
  EXPECT_EQ(num_cells, 12);  // causal, full and packed documents of 16K and 64K rows
}

}  // namespace
}  // namespace tangram
