// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Constants by head dims: which ones a file's machine has, and which are measured.
#include "cli/measure/head_dims.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/machine_file.hpp"
#include "cli/measure/machine_measure.hpp"
#include "cli/program.hpp"
#include "cli/text_file.hpp"
#include "machine/head_dim_rates.hpp"
#include "tangram/error.hpp"

namespace tangram::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

HeadConfig heads_of(int head_dim, int head_dim_v) { return {64, 8, head_dim, head_dim_v, DType::kBFloat16}; }

KernelEntry entry_of(const HeadDims& dims, const std::string& backend = "sm90") {
  KernelEntry entry = builtin_machine_file().kernels[0];
  entry.backend = backend;
  entry.head_dim = dims.head_dim;
  entry.head_dim_v = dims.head_dim_v;
  entry.forward.flops_per_s = 1e12 * dims.head_dim;
  return entry;
}

MachineFile file_of(const std::vector<HeadDims>& all, const std::string& backend = "sm90") {
  MachineFile file = builtin_machine_file();
  file.kernels.clear();
  for (const HeadDims& dims : all) file.kernels.push_back(entry_of(dims, backend));
  return file;
}

HeadDims chosen(const MachineFile& file, int head_dim, int head_dim_v) {
  const MachineModel machine = choose_machine(file, {}, heads_of(head_dim, head_dim_v), "file");
  return {machine.head_dim, machine.head_dim_v};
}

double forward_factor(const MachineModel& machine, int head_dim, int head_dim_v) {
  return head_dim_factor(machine.head_dim_rates, head_dim, head_dim_v, AttnPass::kForward);
}

TEST(HeadDims, AreReadFromAList) {
  EXPECT_EQ(parse_head_dims("64", "--x"), (std::vector<HeadDims>{{64, 64}}));
  EXPECT_EQ(parse_head_dims("32, 192:128,256", "--x"), (std::vector<HeadDims>{{32, 32}, {192, 128}, {256, 256}}));
  const auto refused = [](const char* list, const char* text) {
    EXPECT_THAT([&] { parse_head_dims(list, "--x"); }, ThrowsMessage<InvalidArgument>(HasSubstr(text))) << list;
  };
  refused("", "--x: needs a number on either side of a comma (got '')");
  refused("64,,128", "--x: needs a number on either side of a comma (got '64,,128')");
  refused("64,", "--x: needs a number on either side of a comma (got '64,')");
  refused("192:", "--x: needs a number on either side of a");
  refused("192:128:64", "--x: takes one number, or two such as 192:128 (got '192:128:64')");
  refused("64 128 192", "--x: needs a number on either side of a comma (got '64 128 192')");
  refused("0", "--x: must lie in [1, 1024] (got 0)");
  refused("64:1025", "--x: must lie in [1, 1024] (got 1025)");
  refused("many", "--x: ");
}

TEST(HeadDims, OfGpusAreThoseOfTheirKernels) {
  const std::vector<HeadDims> all{{32, 32}, {64, 64}, {96, 96}, {128, 128}, {192, 128}, {256, 256}};
  EXPECT_EQ(gpu_head_dims(), all);
  check_gpu_measure({.dtypes = {DType::kBFloat16}, .head_dims = all});
  const auto refused = [](const HeadDims& dims, const char* text) {
    EXPECT_THAT([&] { check_gpu_measure({.dtypes = {DType::kBFloat16}, .head_dims = {dims}}); },
                ThrowsMessage<InvalidArgument>(text));
  };
  refused({128, 100}, "--head-dims: with --gpus must be multiples of 8 up to 256 (got 100)");
  refused({264, 128}, "--head-dims: with --gpus must be multiples of 8 up to 256 (got 264)");
}

TEST(HeadDims, KernelsOfTheClassAreTaken) {
  const MachineFile file = file_of(gpu_head_dims());
  EXPECT_EQ(chosen(file, 8, 8), (HeadDims{32, 32}));
  EXPECT_EQ(chosen(file, 72, 72), (HeadDims{96, 96}));
  EXPECT_EQ(chosen(file, 64, 128), (HeadDims{128, 128}));
  EXPECT_EQ(chosen(file, 136, 120), (HeadDims{192, 128}));
  EXPECT_EQ(chosen(file, 192, 192), (HeadDims{256, 256}));
  for (const HeadDims& dims : gpu_head_dims()) {
    const MachineModel machine = choose_machine(file, {}, heads_of(dims.head_dim, dims.head_dim_v), "file");
    EXPECT_EQ(forward_factor(machine, dims.head_dim, dims.head_dim_v), 1);  // as measured
    EXPECT_EQ(machine.forward.flops_per_s, 1e12 * dims.head_dim);
    EXPECT_EQ(machine.kernels, "sm90, bfloat16, " + head_dim_text(dims.head_dim, dims.head_dim_v));
    const CostModel cost = cost_model_of(machine);
    EXPECT_EQ(cost.head_dim_rates, machine.head_dim_rates);
    const double unit = std::pow(10, std::floor(std::log10(cost.forward_flops_per_s)) - 2);
    EXPECT_EQ(std::round(cost.forward_flops_per_s / unit) * unit, cost.forward_flops_per_s);  // three digits
  }
}

// Form of files written before there were classes.
TEST(HeadDims, KernelsOfAnotherClassAreScaled) {
  const std::string path = std::string(TANGRAM_TEST_DATA) + "/../../docs/results/data/machine_h200.json";
  const MachineFile file = parse_machine_file(read_text_file(path, "file", 1 << 20), "file");
  EXPECT_EQ(chosen(file, 64, 64), (HeadDims{64, 64}));
  EXPECT_EQ(chosen(file, 256, 256), (HeadDims{128, 128}));
  const MachineModel wide = choose_machine(file, {}, heads_of(256, 256), "file");
  EXPECT_EQ(wide.kernels, "sm90, bfloat16, head dim 128, scaled to head dim 256");  // said, not hidden
  EXPECT_EQ(forward_factor(wide, 256, 256), 1.18);
  const MachineModel narrow = choose_machine(file, {}, heads_of(32, 32), "file");
  EXPECT_EQ(narrow.head_dim, 64);
  EXPECT_DOUBLE_EQ(forward_factor(narrow, 32, 32), 0.526 / 0.81);
  const MachineModel values = choose_machine(builtin_machine_file(), {}, heads_of(192, 128), "machine");
  EXPECT_EQ(values.kernels, "sm90, bfloat16, head dim 128, scaled to head dim 192 (values 128)");
  EXPECT_EQ(values.head_dim_rates, MachineModel().head_dim_rates);
}

TEST(HeadDims, KernelsOfCpusHaveNoClasses) {
  const MachineFile file = file_of({{64, 64}, {128, 128}}, "cpu");
  EXPECT_EQ(chosen(file, 72, 72), (HeadDims{64, 64}));  // the nearest
  const MachineModel machine = choose_machine(file, {}, heads_of(32, 32), "file");
  EXPECT_TRUE(machine.head_dim_rates.empty());
  EXPECT_EQ(machine.kernels, "cpu, bfloat16, head dim 64");
}

TEST(HeadDims, OfValuesComeBackFromAFile) {
  const MachineFile file = file_of({{192, 128}, {128, 128}, {128, 64}});
  const std::string json = machine_file_to_json(file);
  const MachineFile back = parse_machine_file(json, "file");
  ASSERT_EQ(back.kernels.size(), 3u);
  EXPECT_EQ(back.kernels[0].head_dim_v, 128);
  EXPECT_EQ(back.kernels[1].head_dim_v, 128);
  EXPECT_EQ(back.kernels[2].head_dim_v, 64);
  EXPECT_EQ(machine_file_to_json(back), json);
  EXPECT_EQ(merge_machine_files(back, file).kernels.size(), 3u);  // each replaced by its like
  nlohmann::json bad = nlohmann::json::parse(json);
  EXPECT_FALSE(bad["kernels"][1].contains("head_dim_v"));
  bad["kernels"][0]["head_dim_v"] = 0;
  EXPECT_THAT([&] { parse_machine_file(bad.dump(), "FILE"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("FILE: kernels[0]: head_dim_v must lie in [1, ")));
}

double planned_seconds(std::vector<std::string> more) {
  std::vector<std::string> args{"plan",      "--family", "causal",  "--seqlen", "65536",
                                "--cp-size", "4",        "--dtype", "bf16",     "--json"};
  args.insert(args.end(), more.begin(), more.end());
  const ProgramResult result = run_program(args);
  EXPECT_EQ(result.code, 0) << result.err;
  return nlohmann::json::parse(result.out)["predicted"]["forward_s"].get<double>();
}

TEST(HeadDims, PlansOfTheProgramAreThoseOfTheClass) {
  const TempFolder folder;
  MachineFile file = builtin_machine_file();
  file.kernels.push_back(entry_of({256, 256}));
  file.kernels.back().forward.flops_per_s = 100e12;
  const std::string path = folder.write("machine.json", machine_file_to_json(file));
  const double plain = planned_seconds({"--head-dim", "64"});
  EXPECT_EQ(planned_seconds({"--head-dim", "64", "--machine-backend", "sm90"}), plain);
  EXPECT_EQ(planned_seconds({"--head-dim", "64", "--machine", path}), plain);
  EXPECT_NEAR(plain / planned_seconds({}), 0.5 / 0.81, 0.01);
  // Kernels of class 256 compute 192 columns of q, k and v: its entry, and all of its columns.
  const double wide = planned_seconds({"--head-dim", "192", "--machine", path});
  EXPECT_NEAR(wide / planned_seconds({"--head-dim", "192"}), 1.18 * 710.6 / 100, 0.2);
  EXPECT_NEAR(wide / planned_seconds({"--head-dim", "256", "--machine", path}), 1, 0.01);
}

TEST(DoctorVerb, MeasuresValuesThatAreNarrower) {
  const TempFolder folder;
  const std::string path = folder.path("machine.json");
  const std::vector<std::string> measure{"doctor", "--measure", path,   "--rows",
                                         "256",    "--dtypes",  "fp32", "--head-dims"};
  const auto run = [&](const char* head_dims) {
    std::vector<std::string> args = measure;
    args.push_back(head_dims);
    return run_program(args);
  };
  const ProgramResult result = run("24:16");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("cpu float32 head dim 24 (values 16): forward "));
  const MachineFile file = parse_machine_file(read_text_file(path, "file", 1 << 20), "file");
  ASSERT_EQ(file.kernels.size(), 1u);
  EXPECT_EQ(file.kernels[0].head_dim, 24);
  EXPECT_EQ(file.kernels[0].head_dim_v, 16);
  const ProgramResult refused = run("24:16:8");
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--head-dims: takes one number, or two such as 192:128 (got '24:16:8')"));
}

}  // namespace
}  // namespace tangram::cli
