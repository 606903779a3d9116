// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Predictions equal the recorded ones, whatever becomes of the code that makes them. Where the model is changed on
// purpose: TANGRAM_TEST_RECORD=FILE writes them anew, for tests/data/golden/predictions.csv.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "plan/clock/prediction_cases.hpp"
#include "support/sample.hpp"

namespace tangram::testing {
namespace {

constexpr double kTolerance = 1e-6;  // of the longer pass; numbers are recorded to nine digits
// If ranks tie, rounding decides whose exposed time is reported.
constexpr double kExposedTolerance = 2e-6;

std::vector<Prediction> recorded() {
  std::ifstream file(TANGRAM_TEST_DATA "/golden/predictions.csv");
  std::vector<Prediction> predictions;
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    Prediction prediction;
    char comma = 0;
    std::getline(fields, prediction.name, ',');
    fields >> prediction.forward_s >> comma >> prediction.backward_s >> comma >> prediction.exposed_s;
    predictions.push_back(prediction);
  }
  return predictions;
}

TEST(Predictions, AreThoseThatWereRecorded) {
  if (support::kSanitized) GTEST_SKIP() << support::kFiguresOfPlans;
  const std::vector<Prediction> expected = recorded(), found = all_predictions();
  if (const char* path = std::getenv("TANGRAM_TEST_RECORD")) {
    std::ofstream file(path);
    file << "name,forward_s,backward_s,exposed_s\n";
    for (const Prediction& p : found) {
      file << fmt::format("{},{:.9g},{:.9g},{:.9g}\n", p.name, p.forward_s, p.backward_s, p.exposed_s);
    }
  }
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    const Prediction &a = found[i], &b = expected[i];
    ASSERT_EQ(a.name, b.name);
    const double longer_s = std::max(b.forward_s, b.backward_s);
    EXPECT_NEAR(a.forward_s, b.forward_s, kTolerance * longer_s) << a.name;
    EXPECT_NEAR(a.backward_s, b.backward_s, kTolerance * longer_s) << a.name;
    EXPECT_NEAR(a.exposed_s, b.exposed_s, kExposedTolerance * longer_s) << a.name;
  }
}

}  // namespace
}  // namespace tangram::testing
