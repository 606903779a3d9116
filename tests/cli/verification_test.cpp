// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// That `verify` can fail: each output is damaged in turn, and only that one is found.
#include "cli/verification.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tangram/mask_builders.hpp"

namespace tangram::cli {
namespace {

class VerificationTest : public ::testing::Test {
 protected:
  VerificationTest() {
    DistAttnConfig config;
    config.cp_size = 2;
    config.heads = {.num_heads_q = 2, .num_heads_kv = 1, .head_dim = 8, .head_dim_v = 8, .dtype = DType::kFloat32};
    summary_ = make_plan_summary(NamedMask{causal_mask(64, 64), "causal"}, config);
    inputs_ = make_inputs(summary_, {}, 1);
    result_ = run_step(summary_, inputs_, options_);
  }

  // Names of the outputs that fail.
  std::string failed() const {
    std::string names;
    for (const OutputError& output : verify_step(summary_, inputs_, options_, result_).outputs) {
      if (!output.ok) names += output.name + " ";
    }
    return names;
  }

  PlanSummary summary_;
  StepOptions options_;
  StepInputs inputs_;
  StepResult result_;
};

TEST_F(VerificationTest, AcceptsWhatIsRight) { EXPECT_EQ(failed(), ""); }

TEST_F(VerificationTest, FindsOneWrongValue) {
  // One value of 1,024 off by a thousandth of a typical one is 3e-5 of the norm: just above the bound of 1e-5.
  const std::pair<const char*, HostTensor*> outputs[] = {
      {"out ", &result_.out}, {"dq ", &result_.dq}, {"dk ", &result_.dk}, {"dv ", &result_.dv}};
  for (const auto& [name, tensor] : outputs) {
    const float before = tensor->at(40, 0, 3);
    double norm = 0;
    for (int64_t i = 0; i < tensor->size(); ++i) norm += std::pow(tensor->data<float>()[i], 2);
    tensor->set(40, 0, 3, before + 3e-5F * static_cast<float>(std::sqrt(norm)));
    EXPECT_EQ(failed(), name);
    tensor->set(40, 0, 3, std::numeric_limits<float>::quiet_NaN());
    EXPECT_EQ(failed(), name);
    tensor->set(40, 0, 3, before);
  }
  result_.lse.data<float>()[17] = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(failed(), "lse ");
}

}  // namespace
}  // namespace tangram::cli
