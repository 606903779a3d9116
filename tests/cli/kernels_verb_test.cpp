// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// `tangram kernels` as a user runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "attn/kernel_catalog.hpp"
#include "cli/program.hpp"
#include "machine/head_dim_rates.hpp"

namespace tangram::cli {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

Json kernels_of(std::vector<std::string> args) {
  args.insert(args.begin(), {"kernels", "--json"});
  const ProgramResult result = run_program(args);
  EXPECT_EQ(result.code, 0) << result.err;
  return Json::parse(result.out);
}

TEST(KernelsVerb, SaysWhetherThisBuildHasThem) {
  const ProgramResult result = run_program({"kernels"});
  EXPECT_EQ(result.code, 0) << result.err;
  const char* held[] = {"This build has no GPU code and none of the ", "This build has a sample of ",
                        "This build has all "};
  EXPECT_THAT(result.out, HasSubstr(held[static_cast<int>(kernel_catalogs()[0].held)]));
  for (const char* text : {"\nforward: ", "\nbackward: ", "128 exactly", "up to 192:128", "2 kernels a call"}) {
    EXPECT_THAT(result.out, HasSubstr(text));
  }
}

TEST(KernelsVerb, ListsThemForPrograms) {
  const Json json = kernels_of({});
  const char* held[] = {"none", "sample", "all"};
  EXPECT_EQ(json["held"], held[static_cast<int>(kernel_catalogs()[0].held)]);
  EXPECT_EQ(json["backend"]["name"], "sm90");
  EXPECT_FALSE(json.contains("head_dims"));
  const std::vector<KernelFamily> list = kernel_catalogs()[0].families;
  ASSERT_EQ(json["kernels"].size(), list.size());
  int total = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    const Json& kernels = json["kernels"][i];
    EXPECT_EQ(kernels["head_dim"], list[i].head_dim);
    EXPECT_EQ(kernels["num_kernels_of_all"], list[i].num_kernels);
    const bool forward = list[i].pass == AttnPass::kForward;
    EXPECT_EQ(kernels["pass"], forward ? "forward" : "backward");
    EXPECT_EQ(kernels[forward ? "step_keys" : "step_queries"], list[i].step);
    total += kernels["num_kernels"].get<int>();
  }
  EXPECT_EQ(json["num_kernels"], total);
}

TEST(KernelsVerb, TakesBackendsThatHaveKernels) {
  EXPECT_EQ(kernels_of({"--backend", "sm90"}), kernels_of({}));
  const ProgramResult refused = run_program({"kernels", "--backend", "cpu"});
  EXPECT_NE(refused.code, 0);
  EXPECT_THAT(refused.err, HasSubstr("--backend: must be one whose kernels are compiled with Tangram: sm90"));
  EXPECT_THAT(refused.err, HasSubstr("(got 'cpu')"));
}

TEST(KernelsVerb, SaysWhatHeadDimsTakeAndWhatPaddingCosts) {
  const Json costs = kernels_of({"--head-dims", "80:64,128,64:128,192:128"})["head_dims"];
  ASSERT_EQ(costs.size(), 4u);
  EXPECT_EQ(costs[0]["class"], (Json{{"head_dim", 96}, {"head_dim_v", 96}}));
  EXPECT_EQ(costs[0]["exact"], false);
  EXPECT_DOUBLE_EQ(costs[0]["forward"]["padding"].get<double>(), 0.25);  // 48 of 192 columns
  EXPECT_DOUBLE_EQ(costs[0]["backward"]["padding"].get<double>(), 1 - (3 * 80 + 2 * 64) / (5.0 * 96));
  EXPECT_DOUBLE_EQ(costs[0]["forward"]["rate"].get<double>(), 0.75 * costs[0]["forward"]["class_rate"].get<double>());
  EXPECT_EQ(costs[0]["backward"]["rate"], head_dim_factor(h200::kHeadDimRates, 80, 64, AttnPass::kBackward));
  EXPECT_EQ(costs[1]["exact"], true);
  EXPECT_EQ(costs[1]["forward"], (Json{{"padding", 0.0}, {"class_rate", 1.0}, {"rate", 1.0}}));
  EXPECT_EQ(costs[2]["class"], (Json{{"head_dim", 128}, {"head_dim_v", 128}}));  // of the larger of the two
  EXPECT_EQ(costs[2]["exact"], false);
  EXPECT_EQ(costs[3]["class"], (Json{{"head_dim", 192}, {"head_dim_v", 128}}));
  EXPECT_EQ(costs[3]["backward"]["padding"], 0.0);
  const std::string text = run_program({"kernels", "--head-dims", "80:64,128"}).out;
  for (const char* line : {"up to 96 ", "25.0 %     23.3 %", "128 exactly "}) EXPECT_THAT(text, HasSubstr(line));
}

TEST(KernelsVerb, RefusesHeadDimsThatNoKernelHolds) {
  const std::pair<const char*, const char*> cases[] = {
      {"264", "264"}, {"80:68", "80:68"}, {"12", "12"}, {"64,128:512", "128:512"}};
  for (const auto& [asked, refused] : cases) {
    const ProgramResult result = run_program({"kernels", "--head-dims", asked});
    EXPECT_EQ(result.code, 2) << asked;
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, HasSubstr("--head-dims: no GPU kernel holds these: they must be multiples of 8 up to 256; "
                                      "backend cpu takes any (got " +
                                      std::string(refused) + ")"));
  }
  EXPECT_THAT(run_program({"kernels", "--head-dims", "64,,80"}).err, HasSubstr("--head-dims: needs a number"));
  EXPECT_THAT(run_program({"kernels", "--warm"}).err, HasSubstr("--warm: kernels has no such option"));
}

}  // namespace
}  // namespace tangram::cli
