// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// `tangram simulate` as a user runs it, and the file of machine constants.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/machine_file.hpp"
#include "cli/program.hpp"
#include "cli/report/chart.hpp"
#include "support/sample.hpp"
#include "tangram/error.hpp"

namespace tangram::cli {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

const std::vector<std::string> kHeads{"--heads-q", "64", "--heads-kv", "8"};

ProgramResult simulate_verb(std::vector<std::string> args) {
  args.insert(args.begin(), "simulate");
  args.insert(args.end(), kHeads.begin(), kHeads.end());
  return run_program(args);
}

TEST(SimulateVerb, PredictsEveryStrategyForEveryNumberOfRanks) {
  const ProgramResult result =
      simulate_verb({"--family", "causal", "--seqlen", "262144", "--cp-sizes", "128,8", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const Json list = Json::parse(result.out)["predictions"];
  ASSERT_EQ(list.size(), 20u);
  EXPECT_EQ(list[0]["strategy"], "tangram");
  EXPECT_EQ(list[0]["cp_size"], 8);
  for (const Json& entry : list) {
    if (entry["remark"] != "") continue;
    EXPECT_NEAR(entry["step_s"].get<double>(), entry["forward_s"].get<double>() + entry["backward_s"].get<double>(),
                1e-12);
    EXPECT_GT(entry["efficiency"].get<double>(), 0);
    EXPECT_LE(entry["efficiency"].get<double>(), 1.001) << entry.dump();
  }
  const auto ulysses = std::find_if(list.begin(), list.end(), [](const Json& entry) {
    return entry["strategy"] == "ulysses" && entry["cp_size"] == 128;
  });
  ASSERT_NE(ulysses, list.end());
  EXPECT_EQ((*ulysses)["remark"],
            "ulysses over 128 head ranks needs num_heads_q to be a multiple of these (got num_heads_q=64)");
}

TEST(SimulateVerb, TextFitsInto120ColumnsAndExplainsWhatItNames) {
  const ProgramResult result = run_program({"simulate", "--family", "causal", "--rows-per-rank", "8192", "--cp-sizes",
                                            "8,64", "--strategies", "tangram,tangram_hierarchical,ulysses,usp,auto"});
  ASSERT_EQ(result.code, 0) << result.err;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) {
    const auto columns = std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xc0) != 0x80; });
    EXPECT_LE(columns, 120) << line;
  }
  EXPECT_THAT(result.out,
              HasSubstr("rate   received   between nodes      memory\n"));  // no column without a heading
  EXPECT_THAT(result.out, HasSubstr("  tangram_hierarchical: all ranks are in one node\n"));
  EXPECT_THAT(result.out, HasSubstr("rate: share of one rank's rate"));
  EXPECT_THAT(result.out, HasSubstr("  busiest network card: tangram 7.00 GiB, tangram_hierarchical 896.0 MiB\n"));
  EXPECT_THAT(result.out, HasSubstr("tangram_hierarchical: tangram whose rows cross to each node once"));
}

TEST(SimulateVerb, TakesNumbersOfNodes) {
  const std::vector<std::string> mask{"--rows-per-rank",
                                      "4096",
                                      "--ranks-per-node",
                                      "4",
                                      "--json",
                                      "--strategies",
                                      "tangram,tangram_hierarchical,tangram_nodes,auto"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), mask.begin(), mask.end());
    return simulate_verb(more);
  };
  const ProgramResult result = with({"--nodes", "4,1"});
  ASSERT_EQ(result.code, 0) << result.err;
  const Json list = Json::parse(result.out)["predictions"];
  ASSERT_EQ(list.size(), 8u);
  EXPECT_EQ(list[0]["cp_size"], 4);
  EXPECT_EQ(list[2]["remark"], "all ranks are in one node");
  EXPECT_EQ(list[4]["cp_size"], 16);
  EXPECT_LT(list[6]["busiest_card_bytes"], list[5]["busiest_card_bytes"]);
  EXPECT_LT(list[6]["between_bytes"], list[5]["between_bytes"]);
  EXPECT_LT(list[5]["between_bytes"], list[4]["between_bytes"]);
  const ProgramResult shared = with({"--nodes", "4", "--nics", "1", "--spine", "0.5"});
  ASSERT_EQ(shared.code, 0) << shared.err;
  EXPECT_GT(Json::parse(shared.out)["predictions"][1]["busiest_card_bytes"], list[5]["busiest_card_bytes"]);

  EXPECT_THAT(with({"--nodes", "4", "--cp-sizes", "16"}).err, HasSubstr("--nodes"));
  EXPECT_THAT(with({"--nodes", "4", "--cp-size", "16"}).err, HasSubstr("--nodes"));
  EXPECT_THAT(with({"--nodes", "0"}).err, HasSubstr("--nodes: must lie in [1, "));
  EXPECT_THAT(with({"--nodes", "4", "--spine", "1.5"}).err, HasSubstr("--spine: must lie in (0, 1] (got 1.5)"));
}

TEST(SimulateVerb, AutoIsWhatPlansWouldChoose) {
  if (support::kSanitized) GTEST_SKIP() << support::kFiguresOfPlans;
  const std::vector<std::string> mask{"--family", "full", "--seqlen",          "8192", "--cp-size", "8", "--json",
                                      "--dtype",  "bf16", "--machine-backend", "sm90"};
  std::vector<std::string> args = mask;
  args.insert(args.end(), {"--strategy", "auto"});
  const ProgramResult simulated = simulate_verb(args);
  ASSERT_EQ(simulated.code, 0) << simulated.err;
  args.insert(args.begin(), "plan");
  args.insert(args.end(), kHeads.begin(), kHeads.end());
  const ProgramResult planned = run_program(args);
  ASSERT_EQ(planned.code, 0) << planned.err;
  const Json plan = Json::parse(planned.out);
  const Json prediction = Json::parse(simulated.out)["predictions"][0];
  EXPECT_EQ(prediction["strategy"], "auto");
  EXPECT_EQ(prediction["remark"], "chose " + plan["candidates"][0]["layout"].get<std::string>());
  EXPECT_GT(prediction["step_s"].get<double>(), 0);
  std::vector<std::string> many = mask;
  many.insert(many.end(), {"--strategies", "auto,ring", "--cp-sizes", "2048"});
  const ProgramResult refused = simulate_verb(many);
  ASSERT_EQ(refused.code, 0) << refused.err;
  EXPECT_EQ(Json::parse(refused.out)["predictions"][0]["remark"], "auto is simulated up to 1024 ranks");
}

TEST(SimulateVerb, TakesParametersForTheStrategiesThatHaveThem) {
  const std::vector<std::string> base{
      "--family",  "causal", "--seqlen", "65536", "--strategies", "usp,loong_train,hcms,ring",
      "--cp-size", "8",      "--json"};
  const auto step_of = [&](std::vector<std::string> args, size_t strategy) {
    args.insert(args.begin(), base.begin(), base.end());
    const ProgramResult result = simulate_verb(args);
    EXPECT_EQ(result.code, 0) << result.err;
    return Json::parse(result.out)["predictions"][strategy]["step_s"].get<double>();
  };
  const std::vector<std::string> given{"--ulysses-degree", "2", "--inner-ring-size", "2", "--head-chunks", "1"};
  EXPECT_NE(step_of(given, 0), step_of({}, 0));
  EXPECT_NE(step_of(given, 1), step_of({}, 1));
  EXPECT_EQ(step_of(given, 2), step_of({}, 2));  // a rank has one K/V head
  EXPECT_EQ(step_of(given, 3), step_of({}, 3));
}

// What `plan` counts and what `simulate` predicts for the same mask, ranks and heads.
TEST(SimulateVerb, RowsAndMemoryAreThoseOfPlan) {
  const std::vector<std::string> mask{"--total-seqlen", "65536", "--seed", "5", "--cp-size", "8", "--json"};
  std::vector<std::string> args = mask;
  const ProgramResult simulated = simulate_verb(args);
  ASSERT_EQ(simulated.code, 0) << simulated.err;
  args.insert(args.begin(), "plan");
  args.insert(args.end(), kHeads.begin(), kHeads.end());
  args.insert(args.end(), {"--dtype", "bf16"});
  const ProgramResult planned = run_program(args);
  ASSERT_EQ(planned.code, 0) << planned.err;
  const Json plan = Json::parse(planned.out);
  const Json tangram = Json::parse(simulated.out)["predictions"][0];
  EXPECT_EQ(tangram["kv_rows_moved"], plan["rows_moved"]);
  int64_t peak = 0;
  for (const Json& rank : plan["ranks"]) peak = std::max(peak, rank["peak_bytes"].get<int64_t>());
  EXPECT_EQ(tangram["peak_bytes"].get<double>(), static_cast<double>(peak));
}

TEST(SimulateVerb, GrowsTheSequenceWithTheRanks) {
  const ProgramResult result = simulate_verb({"--family", "sliding_window", "--rows-per-rank", "4096", "--cp-sizes",
                                              "4,1024", "--strategies", "tangram,ring", "--csv"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out.rfind("version,machine,mask,", 0), 0u);
  EXPECT_THAT(result.out, HasSubstr(",4194304,4194304,1024,"));
  EXPECT_THAT(result.out, HasSubstr(",simulated,,tangram,forward_time,s,"));
  EXPECT_EQ(result.out.find("ulysses"), std::string::npos);
}

TEST(SimulateVerb, DrawsPlotsThatStandAlone) {
  const TempFolder folder;
  const ProgramResult result = simulate_verb({"--family", "causal", "--rows-per-rank", "2048", "--cp-sizes", "8,64",
                                              "--svg", folder.path("plot.svg"), "--html", folder.path("page.html")});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("predicted by a cost model, not measured"));
  const std::string svg = read_all(folder.path("plot.svg"));
  EXPECT_EQ(svg.rfind("<svg", 0), 0u);
  EXPECT_THAT(svg, HasSubstr("tangram_hierarchical"));
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  const std::string page = read_all(folder.path("page.html"));
  EXPECT_THAT(page, HasSubstr(svg.substr(0, svg.size() - 1)));
  EXPECT_EQ(page.find("src="), std::string::npos);  // nothing from elsewhere
  EXPECT_EQ(page.find("/*"), std::string::npos);    // every mark was filled in
}

TEST(SimulateVerb, RefusesWhatMeansNothing) {
  const std::vector<std::string> base{"--family", "causal", "--seqlen", "65536"};
  const auto refused = [&](std::vector<std::string> args, const std::string& message) {
    args.insert(args.begin(), base.begin(), base.end());
    const ProgramResult result = simulate_verb(args);
    EXPECT_EQ(result.code, 2) << message;
    EXPECT_THAT(result.err, HasSubstr(message));
    EXPECT_EQ(result.out, "");
  };
  refused({"--cp-sizes", "8,0"}, "--cp-sizes: must lie in [1, 65536] (got 0)");
  refused({"--strategies", "tangram,magic"}, "--strategies: unknown name 'magic'; known are tangram, ");
  refused({"--rows-per-rank", "8"}, "--rows-per-rank: cannot be combined with --seqlen");
  refused({"--engine", "pigeons"}, "--engine: must be copy_engine, workers or host_threads (got 'pigeons')");
  refused({"--comm-workers", "8"}, "--comm-workers: needs --engine workers");
  refused({"--engine", "workers", "--comm-workers", "132"}, "--comm-workers: must lie in (0, 132) (got 132)");
  refused({"--machine", "/nowhere"}, "--machine");
  refused({"--machine-backend", "abacus"}, "machine: has no kernels of backend 'abacus'");
  refused({"--json", "--csv"}, "--csv: cannot be combined with --json");
}

TEST(MachineFile, ReadsWhatItWrites) {
  MachineFile file = builtin_machine_file();
  file.kernels.push_back({"cpu",
                          "a \"quoted\" name",
                          DType::kFloat32,
                          64,
                          64,
                          2,
                          "measured",
                          {16, 8, 128, 1e10, 0.5, 1e-6, 2e-6, 0.1},
                          {16, 8, 128, 2e10, 0, 0, 0, 0}});
  const std::string json = machine_file_to_json(file);
  const MachineFile back = parse_machine_file(json, "file");
  EXPECT_EQ(machine_file_to_json(back), json);
  EXPECT_EQ(choose_machine(back, {}, {64, 8, 128, 128, DType::kBFloat16}, "file"), MachineModel());
  const MachineModel cpu = choose_machine(back, {"cpu", "workers"}, {8, 8, 128, 128, DType::kFloat32}, "file");
  EXPECT_EQ(cpu.workers, 2);
  EXPECT_EQ(cpu.kernels, "cpu, float32, head dim 64");  // not the one asked for: said, not hidden
  EXPECT_EQ(cpu.forward.flops_per_s, 1e10);
  EXPECT_EQ(cpu.engine, CommEngine::kWorkers);
}

TEST(MachineFile, TakesTheNearestKernels) {
  MachineFile file = builtin_machine_file();
  file.kernels.clear();
  for (const auto& [dtype, head_dim] :
       {std::pair(DType::kFloat32, 128), std::pair(DType::kBFloat16, 64), std::pair(DType::kBFloat16, 256)}) {
    KernelEntry entry = builtin_machine_file().kernels[0];
    entry.dtype = dtype;
    entry.head_dim = entry.head_dim_v = head_dim;
    entry.workers = head_dim;
    file.kernels.push_back(entry);
  }
  EXPECT_EQ(choose_machine(file, {}, {8, 8, 96, 96, DType::kBFloat16}, "").workers, 64);
  EXPECT_EQ(choose_machine(file, {}, {8, 8, 192, 128, DType::kBFloat16}, "").workers, 256);
  EXPECT_EQ(choose_machine(file, {}, {8, 8, 64, 64, DType::kFloat32}, "").workers, 128);
}

// Times of a busy machine prove nothing; that the file is complete, usable and added to does.
TEST(DoctorVerb, MeasuresConstantsThatPlanAndSimulateRead) {
  const TempFolder folder;
  const std::string path = folder.path("machine.json");
  const std::vector<std::string> measure{"doctor", "--measure", path,   "--rows",
                                         "256",    "--dtypes",  "fp32", "--head-dims"};
  for (const char* head_dim : {"16", "32"}) {
    std::vector<std::string> args = measure;
    args.push_back(head_dim);
    const ProgramResult result = run_program(args);
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr(std::string("cpu float32 head dim ") + head_dim + ": forward "));
  }
  const MachineFile file = parse_machine_file(read_all(path), "file");
  ASSERT_EQ(file.kernels.size(), 2u);  // the second run added to the first
  ASSERT_EQ(file.links.size(), 1u);
  EXPECT_EQ(file.links[0].transport, "local");
  EXPECT_EQ(file.links[0].engine, CommEngine::kHostThreads);
  const std::vector<std::string> mask{"--family", "causal",    "--seqlen", "4096",  "--cp-size",
                                      "2",        "--machine", path,       "--json"};
  for (const std::string verb : {"plan", "simulate"}) {
    std::vector<std::string> args = mask;
    args.insert(args.begin(), verb);
    const ProgramResult result = run_program(args);
    ASSERT_EQ(result.code, 0) << result.err;
    const Json json = Json::parse(result.out);
    const double step_s =
        verb == "plan" ? json["predicted"]["forward_s"].get<double>() + json["predicted"]["backward_s"].get<double>()
                       : json["predictions"][0]["step_s"].get<double>();
    EXPECT_GT(step_s, 1e-3) << verb;  // far from what H200 nodes take
  }
}

TEST(DoctorVerb, KeepsAFileThatItCannotRead) {
  const TempFolder folder;
  const std::string path = folder.write("machine.json", "{}");
  const ProgramResult result = run_program({"doctor", "--measure", path});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("needs 'format'"));
  EXPECT_EQ(read_all(path), "{}");
}

TEST(DoctorVerb, MeasuringGpusNeedsAFileAndGpus) {
  const TempFolder folder;
  EXPECT_EQ(run_program({"doctor", "--gpus", "2"}).code, 2);
  const ProgramResult result = run_program({"doctor", "--measure", folder.path("machine.json"), "--gpus", "64"});
  EXPECT_EQ(result.code, 3);  // no machine has so many
  EXPECT_THAT(result.err, HasSubstr("--gpus: "));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
}

TEST(DoctorVerb, MeasuresKernelsOfAGpu) {
  const TempFolder folder;
  const std::string path = folder.path("machine.json");
  const ProgramResult result =
      run_program({"doctor", "--measure", path, "--gpus", "1", "--head-dims", "64,192:128", "--rows", "2048"});
  if (result.code == 3) GTEST_SKIP() << result.err;
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("rows copied and added: "));
  const MachineFile file = parse_machine_file(read_all(path), "file");
  if (result.out.find("sm90: not measured: ") != std::string::npos) GTEST_SKIP() << result.out;
  const auto found = std::find_if(file.kernels.begin(), file.kernels.end(),
                                  [](const KernelEntry& e) { return e.backend == "sm90" && e.head_dim == 64; });
  ASSERT_NE(found, file.kernels.end());
  EXPECT_EQ(found->source, "measured");
  EXPECT_EQ(found->dtype, DType::kBFloat16);
  EXPECT_TRUE(found->backward.items_by_keys);
  EXPECT_EQ(choose_machine(file, {"sm90", ""}, {8, 8, 192, 128, DType::kBFloat16}, "file").head_dim, 192);
  EXPECT_GT(file.memory_bytes_per_s, 1e11);
  EXPECT_GT(file.memory_bytes, 1'000'000'000);
  const ProgramResult planned = run_program({"plan", "--family", "causal", "--seqlen", "4096", "--cp-size", "2",
                                             "--head-dim", "64", "--machine", path, "--machine-backend", "sm90"});
  EXPECT_EQ(planned.code, 0) << planned.err;
}

TEST(MachineFile, SaysWhatIsWrongWithIt) {
  const Json good = Json::parse(machine_file_to_json(builtin_machine_file()));
  const auto message_of = [](const Json& json) -> std::string {
    try {
      parse_machine_file(json.dump(), "FILE");
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_EQ(message_of(good), "nothing was thrown");
  Json bad = good;
  bad["kernels"][0]["forward"].erase("tail");
  EXPECT_THAT(message_of(bad), HasSubstr("FILE: kernels[0].forward: needs 'tail'"));
  bad = good;
  bad["links"][1]["scope"] = "near";
  EXPECT_THAT(message_of(bad), HasSubstr("FILE: links[1]: 'scope' must be inside or between (got 'near')"));
  bad = good;
  bad["links"][0]["bytes_per_s"] = -1;
  EXPECT_THAT(message_of(bad), HasSubstr("'bytes_per_s' must be finite and at least 1 (got -1)"));
  bad = good;
  bad["node"]["rank"] = 8;
  EXPECT_THAT(message_of(bad), HasSubstr("rank"));
  bad = good;
  bad["version"] = 2;
  EXPECT_THAT(message_of(bad), HasSubstr("'version' must be 1 (got 2)"));
  EXPECT_THAT(message_of(Json::array()), HasSubstr("FILE"));
}

TEST(Charts, EscapeNamesAndSurviveEmptySeries) {
  const Chart chart{"a < b & c", "ranks", AxisUnit::kSeconds, {{"<script>", {}}, {"one", {{8, 1e-3}}}}, 0, ""};
  const std::string svg = svg_charts({chart, {"empty", "x", AxisUnit::kPercent, {}, 0, ""}}, "'title'", 2);
  EXPECT_THAT(svg, HasSubstr("a &lt; b &amp; c"));
  EXPECT_EQ(svg.find("<script>"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
}

}  // namespace
}  // namespace tangram::cli
