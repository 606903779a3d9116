// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// `tangram run`, `verify`, `bench` and `doctor` as a user runs them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "cli/npy.hpp"
#include "cli/program.hpp"
#include "support/sample.hpp"

namespace tangram::cli {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

// A file of `rows x heads x dim` values in [-1, 1] that differ.
std::string write_tensor(const TempFolder& folder, const std::string& name, int64_t rows, int64_t heads, int64_t dim) {
  std::vector<float> values;
  for (int64_t i = 0; i < rows * heads * dim; ++i) {
    values.push_back(std::sin(0.7F * static_cast<float>(i) + static_cast<float>(name[0])));
  }
  const int64_t shape[] = {rows, heads, dim};
  write_npy(folder.path(name), values, shape);
  return folder.path(name);
}

struct Tensors {
  explicit Tensors(const TempFolder& folder, int64_t rows = 100)
      : args{"--q", write_tensor(folder, "q.npy", rows, 4, 8), "--k",    write_tensor(folder, "k.npy", rows, 2, 8),
             "--v", write_tensor(folder, "v.npy", rows, 2, 6), "--dout", write_tensor(folder, "d.npy", rows, 4, 6)} {}
  std::vector<std::string> args;
};

ProgramResult run(const std::vector<std::string>& front, const std::vector<std::string>& back,
                  const std::string& environment = "") {
  std::vector<std::string> args = front;
  args.insert(args.end(), back.begin(), back.end());
  return run_program(args, environment);
}

TEST(RunVerb, RowsThatSeeOnlyThemselvesReturnTheirValue) {
  const TempFolder folder;
  const Tensors tensors(folder);
  const ProgramResult result = run({"run", "--family", "sliding_window", "--window", "0,0", "--seqlen", "100",
                                    "--cp-size", "2", "--out-dir", folder.path("results")},
                                   tensors.args);
  ASSERT_EQ(result.code, 0) << result.err;
  const HostTensor v = read_npy(folder.path("v.npy"), "v");
  const HostTensor out = read_npy(folder.path("results/out.npy"), "out");
  const HostTensor dv = read_npy(folder.path("results/dv.npy"), "dv");
  const HostTensor dout = read_npy(folder.path("d.npy"), "dout");
  ASSERT_EQ(out.rows(), 100) << "padding must not be written";
  for (int64_t row = 0; row < 100; ++row) {
    for (int head = 0; head < 4; ++head) {
      // One key has probability one; a rounding of float32 is left for its computation.
      for (int d = 0; d < 6; ++d) EXPECT_NEAR(out.at(row, head, d), v.at(row, head / 2, d), 1e-6);
    }
    for (int d = 0; d < 6; ++d) {
      EXPECT_NEAR(dv.at(row, 0, d), dout.at(row, 0, d) + dout.at(row, 1, d), 1e-6);
    }
  }
  EXPECT_THAT(read_all(folder.path("results/lse.npy")), HasSubstr("(100, 4, )"));
}

TEST(RunVerb, ResultsDoNotDependOnRanks) {
  const TempFolder folder;
  const Tensors tensors(folder);
  for (const char* cp_size : {"1", "4"}) {
    const ProgramResult result =
        run({"run", "--family", "causal", "--seqlen", "100", "--cp-size", cp_size, "--out-dir", folder.path(cp_size)},
            tensors.args);
    ASSERT_EQ(result.code, 0) << result.err;
  }
  for (const char* name : {"/out.npy", "/dq.npy", "/dk.npy", "/dv.npy"}) {
    const HostTensor one = read_npy(folder.path("1") + name, "one");
    const HostTensor four = read_npy(folder.path("4") + name, "four");
    ASSERT_EQ(one.size(), four.size());
    // Sums of at most 100 terms of order one in another order.
    for (int64_t i = 0; i < one.size(); ++i) EXPECT_NEAR(one.data<float>()[i], four.data<float>()[i], 2e-5) << name;
  }
}

TEST(RunVerb, CountsTheRowsThatThePlanMoves) {
  const ProgramResult result =
      run_program({"run", "--total-seqlen", "1024", "--cp-size", "4", "--heads-q", "2", "--head-dim", "16", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const Json json = Json::parse(result.out);
  EXPECT_EQ(json["run"]["rows_received"], json["rows_moved"]);
  EXPECT_GT(json["run"]["forward_s"].get<double>(), 0);
}

TEST(VerifyVerb, EveryTypeAndShape) {
  const std::vector<std::string> small{"--heads-q", "4", "--heads-kv", "2", "--head-dim", "16", "--head-dim-v", "8"};
  const std::vector<std::vector<std::string>> cases{
      {"--family", "causal", "--seqlen", "300", "--cp-size", "3"},
      {"--family", "causal", "--seqlen", "300", "--cp-size", "3", "--dtype", "bf16"},
      {"--family", "sliding_window", "--window", "20,5", "--seqlen", "256", "--dtype", "fp16"},
      {"--total-seqlen", "512", "--seed", "5", "--stages", "3,2", "--softcap", "2", "--softmax-scale", "0.3"},
      {"--family", "shared_prefix", "--prefix", "64", "--continuations", "100,92", "--keep-remote-kv"},
      {"--family", "sliding_window", "--window", "0,0", "--seqlen", "64", "--cp-size", "1"},
  };
  for (const auto& args : cases) {
    std::vector<std::string> front{"verify"};
    front.insert(front.end(), args.begin(), args.end());
    const ProgramResult result = run(front, small);
    EXPECT_EQ(result.code, 0) << args[1] << result.out << result.err;
    EXPECT_THAT(result.out, HasSubstr("Verified against the float64 reference (every row)"));
  }
}

TEST(VerifyVerb, CountsRunsWhereRowsAreCutAnywhere) {
  const char* const seqlen = support::kSanitized ? "256" : "1024";
  const ProgramResult result =
      run_program({"verify", "--total-seqlen", seqlen, "--seed", "1", "--cp-size", "4", "--head-dim", "16"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, ::testing::Not(HasSubstr("chunks of 1 rows")));
}

TEST(VerifyVerb, EveryStrategy) {
  const char* const seqlen = support::kSanitized ? "64" : "128";
  for (const char* strategy : {"ulysses", "hcms", "ring", "all_gather", "usp", "loong_train", "hybrid_cp", "auto"}) {
    const ProgramResult result =
        run_program({"verify", "--family", "causal", "--seqlen", seqlen, "--cp-size", "4", "--heads-q", "8",
                     "--heads-kv", "4", "--head-dim", "16", "--strategy", strategy});
    EXPECT_EQ(result.code, 0) << strategy << result.out << result.err;
  }
}

TEST(RunVerb, StrategiesReceiveWhatTheirClosedFormSays) {
  const ProgramResult result =
      run_program({"run", "--family", "causal", "--seqlen", "256", "--cp-size", "2", "--heads-q", "4", "--head-dim",
                   "16", "--strategy", "hcms", "--head-chunks", "1,1"});
  ASSERT_EQ(result.code, 0) << result.err;
  // (U-1)/U * N * heads * dims * 4 bytes: q, k, v, out and lse forward; dout, dq, dk, dv backward.
  EXPECT_THAT(result.out, HasSubstr("forward 133,120 counted, 133,120 planned; backward 131,072 counted, 131,072 "
                                    "planned"));
  EXPECT_THAT(result.out, HasSubstr("hcms, 1 row group x 2 head ranks, K/V heads in chunks of 1+1"));
  EXPECT_THAT(result.out, HasSubstr("transfers / (transfers + attention): "));
}

TEST(RunVerb, HybridCpKeepsShortDocumentsWhole) {
  const ProgramResult result =
      run_program({"run", "--family", "causal", "--cu-seqlens", "0,128,192,256", "--cp-size", "4", "--heads-q", "2",
                   "--head-dim", "16", "--strategy", "hybrid_cp", "--document-rows", "64"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("hybrid_cp, 2 documents on 1 rank each, 1 document on 2 ranks"));
  // 128 rows, 2 heads, dims 16 + 16, float32: one hop; backward the gradients too.
  EXPECT_THAT(result.out, HasSubstr("forward 32,768 counted, 32,768 planned; backward 65,536 counted, 65,536 planned"));
}

TEST(RunVerb, StrategiesThatCannotSplitTheHeadsAreRefused) {
  const ProgramResult result = run_program(
      {"run", "--family", "causal", "--seqlen", "256", "--cp-size", "4", "--heads-q", "6", "--strategy", "ulysses"});
  EXPECT_NE(result.code, 0);
  EXPECT_THAT(result.err, HasSubstr("needs num_heads_q to be a multiple of these (got num_heads_q=6)"));
}

// What every rank did when, per lane: compute, what came, what left.
TEST(RunVerb, ReportsOfStrategiesShowTheMeasuredTimeLine) {
  const TempFolder folder;
  const std::string html = folder.path("r.html"), svg = folder.path("t.svg");
  const ProgramResult result =
      run_program({"run", "--family", "causal", "--seqlen", "256", "--cp-size", "2", "--heads-q", "4", "--head-dim",
                   "16", "--strategy", "hcms", "--head-chunks", "1,1", "--html", html, "--timeline", svg});
  ASSERT_EQ(result.code, 0) << result.err;
  const std::string page = read_all(html);
  const size_t begin = page.find("id=\"data\">") + 10;
  const Json data = Json::parse(page.substr(begin, page.find("</script>", begin) - begin));
  EXPECT_TRUE(data["timeline"]["measured"]);
  std::map<std::tuple<int, int, int, int>, int> events;  // rank, lane, backward, chunk
  for (const Json& event : data["timeline"]["events"]) {
    ++events[{event[0], event[1], event[2], event[3]}];
    EXPECT_LE(event[4], event[5]);
  }
  for (const int rank : {0, 1}) {
    for (const int lane : {0, 1, 2}) {
      for (const int backward : {0, 1}) {
        for (const int chunk : {0, 1}) {
          EXPECT_GT((events[{rank, lane, backward, chunk}]), 0) << rank << lane << backward << chunk;
        }
      }
    }
  }
  EXPECT_EQ(data["grid"]["text"], "hcms, 1 row group x 2 head ranks, K/V heads in chunks of 1+1");
  const std::string picture = read_all(svg);
  EXPECT_THAT(picture, HasSubstr("<title>rank 1, backward, compute 1: "));
  EXPECT_THAT(picture, HasSubstr("hcms, causal · measured over local, rho "));
}

// It was empty: only a run showed what a strategy does when.
TEST(PlanVerb, ReportsOfStrategiesShowThePredictedTimeLine) {
  const TempFolder folder;
  const std::string html = folder.path("r.html");
  for (const std::string strategy : {"ring", "ulysses", "hybrid_cp"}) {
    const ProgramResult result = run_program({"plan", "--family", "causal", "--seqlen", "256", "--cp-size", "2",
                                              "--heads-q", "2", "--strategy", strategy, "--html", html});
    ASSERT_EQ(result.code, 0) << result.err;
    const std::string page = read_all(html);
    const size_t begin = page.find("id=\"data\">") + 10;
    const Json data = Json::parse(page.substr(begin, page.find("</script>", begin) - begin));
    EXPECT_FALSE(data["timeline"]["measured"]);
    std::map<std::pair<int, int>, int> events;  // rank, lane
    for (const Json& event : data["timeline"]["events"]) ++events[{event[0], event[1]}];
    for (const int rank : {0, 1}) {
      for (const int lane : {0, 1, 2}) EXPECT_GT((events[{rank, lane}]), 0) << strategy << rank << lane;
    }
  }
}

TEST(BenchVerb, EveryStrategyNamesWhatRan) {
  for (const std::string strategy :
       {"ulysses", "hcms", "ring", "all_gather", "usp", "loong_train", "hybrid_cp", "auto"}) {
    const std::vector<std::string> step{"--family",  "causal", "--seqlen",   "256", "--cp-size",  "4",
                                        "--heads-q", "8",      "--head-dim", "16",  "--strategy", strategy};
    std::vector<std::string> bench = step, plan = step;
    bench.insert(bench.begin(), "bench");
    bench.insert(bench.end(), {"--repeat", "1"});
    plan.insert(plan.begin(), "plan");
    plan.push_back("--json");
    const ProgramResult planned = run_program(plan), benched = run_program(bench);
    ASSERT_EQ(planned.code, 0) << planned.err;
    ASSERT_EQ(benched.code, 0) << benched.err;
    const std::string ran = Json::parse(planned.out)["strategy"];
    EXPECT_EQ(ran == strategy, strategy != "auto");
    EXPECT_THAT(benched.out, HasSubstr(",local," + ran + ",forward_time,s,"));
  }
}

TEST(PlanVerb, AutoSaysWhatItCompared) {
  const TempFolder folder;
  const std::vector<std::string> args{
      "plan",      "--family", "sliding_window", "--window", "64,0",      "--seqlen", "4096",
      "--cp-size", "6",        "--strategy",     "auto",     "--heads-q", "8"};
  const ProgramResult text = run_program(args);
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("Strategy tangram: the least predicted step of "));
  EXPECT_THAT(text.out, HasSubstr("ulysses over 6 head ranks needs num_heads_q to be a multiple of these"));
  std::vector<std::string> json = args;
  json.insert(json.end(), {"--json", "--html", folder.path("report.html"), "--save-plan", folder.path("plan.json")});
  const ProgramResult result = run_program(json);
  ASSERT_EQ(result.code, 0) << result.err;
  const Json plan = Json::parse(result.out);
  ASSERT_GE(plan["candidates"].size(), 7u);
  EXPECT_EQ(plan["candidates"][0]["layout"], "tangram");
  EXPECT_GT(plan["candidates"][0]["forward_s"].get<double>(), 0);
  EXPECT_TRUE(plan["candidates"].back().contains("impossible"));
  const std::string report = read_all(folder.path("report.html"));
  EXPECT_THAT(report, HasSubstr(plan["strategy_reasons"][0].get<std::string>()));
  EXPECT_THAT(report, HasSubstr("not possible, ulysses over 6 head ranks"));
  EXPECT_EQ(Json::parse(read_all(folder.path("plan.json")))["candidates"].size(), plan["candidates"].size());
}

TEST(PlanVerb, AutoTakesNoParameters) {
  const ProgramResult result =
      run_program({"plan", "--family", "causal", "--seqlen", "256", "--strategy", "auto", "--ulysses-degree", "2"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err,
              HasSubstr("strategy auto chooses ulysses_degree, inner_ring_size, head_chunks and document_rows itself"));
}

TEST(PlanVerb, StrategiesShowWhatTheyMoveInBytes) {
  const ProgramResult result =
      run_program({"plan", "--family", "causal", "--seqlen", "256", "--cp-size", "4", "--heads-q", "4", "--head-dim",
                   "16", "--dtype", "fp32", "--strategy", "ring", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const Json json = Json::parse(result.out);
  // (P-1) * N * heads * 2 dims * 4 bytes; backward the gradients besides, P times.
  EXPECT_EQ(json["grid"]["forward_bytes"], 3 * 256 * 4 * 32 * 4);
  EXPECT_EQ(json["grid"]["backward_bytes"], (3 + 4) * 256 * 4 * 32 * 4);
  EXPECT_FALSE(json.contains("rows_moved"));
}

// q, out, dout, dq, lse of 64 rows of 4 heads; k, v, dk, dv; two blocks, what a step makes, what is sent and comes.
TEST(PlanVerb, StrategiesShowWhatRanksHold) {
  const std::vector<std::string> args{"plan",      "--family",   "full",      "--seqlen", "256",
                                      "--cp-size", "4",          "--heads-q", "4",        "--head-dim",
                                      "16",        "--strategy", "ring",      "--dtype",  "fp32"};
  constexpr int64_t kTensor = 64 * 4 * 16 * 4;
  constexpr int64_t kPeak = 4 * kTensor + 64 * 4 * 4 + 4 * kTensor + (2 + 1 + 2) * 2 * kTensor;
  std::vector<std::string> with_json = args;
  with_json.push_back("--json");
  const ProgramResult json = run_program(with_json);
  ASSERT_EQ(json.code, 0) << json.err;
  EXPECT_EQ(Json::parse(json.out)["grid"]["peak_bytes"], std::vector<int64_t>(4, kPeak));
  const ProgramResult text = run_program(args);
  EXPECT_THAT(text.out, HasSubstr("peak memory"));
  EXPECT_THAT(text.out, HasSubstr("289.0 KiB"));
}

TEST(VerifyVerb, QueriesThatMove) {
  for (const char* groups : {"1", "2"}) {
    const ProgramResult result =
        run_program({"verify", "--family", "varlen_causal", "--seqlen", "512", "--cp-size", "4", "--heads-q", "4",
                     "--heads-kv", "2", "--head-dim", "16", "--movement", "qo", "--head-groups", groups});
    EXPECT_EQ(result.code, 0) << result.out << result.err;
    EXPECT_THAT(result.out, HasSubstr("movement   qo, " + std::string(groups) + " head group"));
  }
}

TEST(RunVerb, MovedQueriesReceiveWhatThePlanSays) {
  const std::vector<std::string> step = {"--family",     "causal", "--seqlen",   "256", "--cp-size",  "2",
                                         "--heads-q",    "4",      "--head-dim", "16",  "--dispatch", "zigzag",
                                         "--chunk-size", "64",     "--movement", "qo",  "--dtype",    "fp32"};
  std::vector<std::string> run{"run"}, plan{"plan", "--json"};
  run.insert(run.end(), step.begin(), step.end());
  plan.insert(plan.end(), step.begin(), step.end());
  const ProgramResult result = run_program(run);
  ASSERT_EQ(result.code, 0) << result.err;
  // Rank 0 holds chunks 0 and 3, rank 1 the others: 128 and 64 queries see keys of the other rank. Of each, 4 heads of
  // dim 16 in float32: q and out with lse forward; q, dout, lse, delta and dq backward.
  EXPECT_THAT(result.out, HasSubstr("forward 101,376 counted, 101,376 planned; backward 153,600 counted, 153,600 "
                                    "planned"));
  const ProgramResult planned = run_program(plan);
  ASSERT_EQ(planned.code, 0) << planned.err;
  const Json json = Json::parse(planned.out);
  EXPECT_EQ(json["movement"]["forward_bytes"], 101376);
  EXPECT_EQ(json["movement"]["ranks"][0]["forward"]["q_rows_received"], 128);
  EXPECT_EQ(json["movement"]["ranks"][1]["forward"]["q_rows_received"], 64);
  EXPECT_FALSE(json.contains("rows_moved"));
}

TEST(RunVerb, MovementsThatDoNotExistOrCannotBeDrawnAreRefused) {
  const TempFolder folder;
  const ProgramResult unknown = run_program({"run", "--family", "causal", "--seqlen", "256", "--movement", "vk"});
  EXPECT_NE(unknown.code, 0);
  EXPECT_THAT(unknown.err, HasSubstr("(got 'vk')"));
  const ProgramResult drawn = run_program(
      {"run", "--family", "causal", "--seqlen", "256", "--movement", "qo", "--html", folder.path("r.html")});
  EXPECT_NE(drawn.code, 0);
  EXPECT_THAT(drawn.err, HasSubstr("--html: supports K/V movement only (got --movement qo)"));
}

TEST(VerifyVerb, CrossAttention) {
  const TempFolder folder;
  const std::string mask = folder.write(
      "mask.json", R"({"seqlen_q":128,"seqlen_k":192,"q_ranges":[[0,128]],"k_ranges":[[0,192]],"attn_types":[1]})");
  const ProgramResult result =
      run_program({"verify", "--mask", mask, "--cp-size", "2", "--heads-q", "2", "--head-dim", "16"});
  EXPECT_EQ(result.code, 0) << result.out << result.err;
}

TEST(VerifyVerb, ReportShowsWhatWasMeasured) {
  const TempFolder folder;
  const ProgramResult result = run_program({"verify", "--family", "causal", "--seqlen", "256", "--heads-q", "2",
                                            "--head-dim", "16", "--html", folder.path("r.html")});
  ASSERT_EQ(result.code, 0) << result.err;
  const std::string html = read_all(folder.path("r.html"));
  EXPECT_THAT(html, HasSubstr("\"measured\":true"));
  EXPECT_THAT(html, HasSubstr("relative error of dk"));
}

TEST(VerifyVerb, OverMpi) {
  const Json doctor = Json::parse(run_program({"doctor", "--json"}).out);
  if (doctor["communication"][1]["available"] != true) GTEST_SKIP() << doctor["communication"][1]["detail"];
  if (std::system("mpirun --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "mpirun is not installed";
  // OpenMPI itself leaks a little, which is not ours to report.
  const std::string mpirun =
      "ASAN_OPTIONS=detect_leaks=0 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
      "mpirun -n 3 --oversubscribe --bind-to none --mca mpi_yield_when_idle 1";
  const std::vector<std::string> args{"verify",    "--family", "causal",     "--seqlen", "256",
                                      "--heads-q", "2",        "--head-dim", "16",       "--json"};
  const ProgramResult result = run(args, {"--cp-size", "3"}, mpirun);
  ASSERT_EQ(result.code, 0) << result.err;
  const Json json = Json::parse(result.out);  // printed by one rank only
  EXPECT_EQ(json["run"]["transport"], "mpi");
  EXPECT_EQ(json["run"]["rows_received"], json["rows_moved"]);
  EXPECT_EQ(json["verification"]["ok"], true);
  const ProgramResult wrong = run(args, {"--cp-size", "2"}, mpirun);
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("--cp-size: must be the number of ranks that mpirun started (got 2 and 3)"));
  const TempFolder folder;  // said before the step, not when it is done
  const ProgramResult line = run({"run", "--family", "causal", "--seqlen", "256", "--head-dim", "16", "--cp-size", "3"},
                                 {"--out-dir", folder.path("out"), "--timeline", folder.path("x.svg")}, mpirun);
  EXPECT_EQ(line.code, 2);
  EXPECT_THAT(line.err, HasSubstr("--timeline: only ranks of one process have one time line (got mpirun)"));
  EXPECT_FALSE(std::filesystem::exists(folder.path("out")));
}

TEST(BenchVerb, OneSchema) {
  const ProgramResult result = run_program(
      {"bench", "--family", "causal", "--seqlen", "256", "--heads-q", "2", "--head-dim", "16", "--repeat", "1"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out.rfind("version,machine,mask,", 0), 0u);
  for (const char* figure : {"plan_time,ms,", "balance,1,", "forward_rate,GFLOP/s,", "backward_traffic,bytes,"}) {
    EXPECT_THAT(result.out, HasSubstr(figure));
  }
}

TEST(BenchVerb, MeasuresExchangesAlone) {
  const ProgramResult result = run_program({"bench", "--comm-only", "--cp-size", "2", "--repeat", "1"});
  ASSERT_EQ(result.code, 0) << result.err;
  for (const char* text :
       {"version,machine,mask,", ",local,,link_rate,GB/s,", ",exchange_time_33554432_bytes_in_1,s,"}) {
    EXPECT_THAT(result.out, HasSubstr(text));
  }
}

TEST(DoctorVerb, ListsEveryTransport) {
  const Json json = Json::parse(run_program({"doctor", "--json"}).out);
  std::vector<std::string> names;
  for (const Json& transport : json["communication"]) {
    names.push_back(transport["name"]);
    EXPECT_NE(transport["detail"], "") << names.back();
  }
  EXPECT_THAT(names, ::testing::ElementsAre("local", "mpi", "socket", "copy_engine", "nccl"));
}

TEST(DoctorVerb, ListsBackendsAndEveryVariable) {
  const ProgramResult result = run_program({"doctor", "--json"}, "TANGRAM_TIMEOUT_S=7");
  ASSERT_EQ(result.code, 0) << result.err;
  const Json json = Json::parse(result.out);
  EXPECT_FALSE(json["attention"].empty());
  EXPECT_EQ(json["communication"][0]["name"], "local");
  bool seen = false;
  for (const Json& variable : json["environment"]) {
    if (variable["name"] != "TANGRAM_TIMEOUT_S") continue;
    seen = true;
    EXPECT_EQ(variable["value"], "7");
    EXPECT_EQ(variable["is_set"], true);
  }
  EXPECT_TRUE(seen);
}

TEST(RunVerb, ABackendThatCannotRunHereIsRefusedWithItsReason) {
  const Json doctor = Json::parse(run_program({"doctor", "--json"}).out);
  for (const Json& backend : doctor.at("attention")) {
    if (backend.at("available")) continue;
    const ProgramResult result = run_program({"run", "--family", "causal", "--seqlen", "64", "--dtype", "bf16",
                                              "--backend", backend.at("name").get<std::string>()});
    EXPECT_EQ(result.code, 3) << result.err;
    EXPECT_THAT(result.err, HasSubstr("cannot run here: " + backend.at("detail").get<std::string>()));
  }
}

TEST(BenchVerb, MeasuresKernelsOnTheDeviceWhereThereIsOne) {
  const std::vector<std::string> args{"bench",   "--family", "causal",    "--seqlen", "2048",     "--cp-size", "2",
                                      "--dtype", "bf16",     "--backend", "sm90",     "--repeat", "2"};
  const ProgramResult result = run_program(args);
  if (result.code == 3) {  // without a Hopper GPU
    EXPECT_THAT(result.err, HasSubstr("sm90 cannot run here"));
    return;
  }
  ASSERT_EQ(result.code, 0) << result.err;
  for (const char* figure :
       {",kernel_forward_time,s,", ",kernel_forward_rate,TFLOP/s,", ",rank_kernel_forward_share,1,",
        ",kernel_backward_time,s,", ",kernel_backward_rate,TFLOP/s,", ",rank_kernel_backward_share,1,"}) {
    EXPECT_THAT(result.out, HasSubstr(figure));
  }
}

TEST(StepBadInput, IsRefusedWithItsReason) {
  const TempFolder folder;
  const Tensors tensors(folder);
  const std::vector<std::string> base{"run", "--family", "causal", "--seqlen", "100", "--cp-size", "2"};
  const auto refused = [&](std::vector<std::string> args, const std::string& message, int code = 2) {
    const ProgramResult result = run(base, args);
    EXPECT_EQ(result.code, code) << message << result.err;
    EXPECT_THAT(result.err, HasSubstr(message));
    EXPECT_EQ(result.out, "");
  };
  refused({"--softmax-scale", "nan"}, "--softmax-scale: must be finite and positive in float32 (got nan)");
  refused({"--softmax-scale", "-1"}, "--softmax-scale: must be finite and positive in float32 (got -1)");
  refused({"--softmax-scale", "1e39"}, "--softmax-scale: must be finite and positive in float32 (got 1e+39)");
  refused({"--softmax-scale", "1e-50"}, "--softmax-scale: must be finite and positive in float32 (got 1e-50)");
  refused({"--softcap", "1e39"}, "--softcap: must be finite and not negative in float32 (got 1e+39)");
  refused({"--softcap", "inf"}, "--softcap: must be finite");
  refused({"--backend", "abacus"}, "abacus");
  refused({"--ranks-per-node", "2"}, "--ranks-per-node: needs --gpus, between ranks in host memory rows go straight");
  refused({"--ranks-per-node", "3"}, "--ranks-per-node: must divide the number of ranks (got 3 for 2)");
  refused({"--gpus", "65"}, "--gpus: must lie in [1, 64] (got 65)");
  refused({"--gpus", "2", "--backend", "cpu"}, "--gpus: needs --backend sm90 (got 'cpu')");
  refused({"--q", tensors.args[1]}, "--q, --k, --v: must be given together");
  refused({"--dout", tensors.args[1]}, "--dout: needs --q, --k and --v");
  refused({"--q", tensors.args[1], "--k", tensors.args[3], "--v", tensors.args[5], "--head-dim", "64"},
          "--head-dim: must agree with --q (got 64 and 8)");
  refused({"--q", tensors.args[1], "--k", tensors.args[3], "--v", tensors.args[3], "--dout", tensors.args[7]},
          "--dout: must have the rows and heads of q and the dim of v");
  refused({"--q", tensors.args[1], "--k", tensors.args[5], "--v", tensors.args[5]}, "must have equal dims");
  refused({"--q", folder.write("x.npy", "nothing"), "--k", tensors.args[3], "--v", tensors.args[5]},
          "must be a .npy file");
  refused({"--q", folder.path("none.npy"), "--k", tensors.args[3], "--v", tensors.args[5]},
          "cannot be read: No such file or directory");
  refused({"--repeat", "0"}, "--repeat");
  const Tensors shorter(folder, 99);
  refused(shorter.args, "--q: must have the 100 rows of the mask (got 99)");
}

TEST(StepBadInput, VariablesThatMeanNothing) { EXPECT_EQ(run_program({"doctor"}, "TANGRAM_TIMEOUT_S=soon").code, 2); }

}  // namespace
}  // namespace tangram::cli
