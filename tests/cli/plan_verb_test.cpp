// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// `tangram plan` as a user runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cli/plan_summary.hpp"
#include "cli/program.hpp"
#include "support/sample.hpp"

namespace tangram::cli {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr const char* kLarge = "a plan of seconds; sanitizers see small ones";

Json plan(std::vector<std::string> args) {
  args.insert(args.begin(), "plan");
  args.push_back("--json");
  const ProgramResult result = run_program(args);
  EXPECT_EQ(result.code, 0) << result.err;
  return result.code == 0 ? Json::parse(result.out) : Json();
}

TEST(PlanVerb, PrintsTheProgramOfARank) {
  const auto with = [](std::vector<std::string> more) {
    std::vector<std::string> args = {"plan", "--family", "causal", "--seqlen", "8192", "--cp-size", "4"};
    args.insert(args.end(), more.begin(), more.end());
    return run_program(args);
  };
  const ProgramResult ring = with({"--strategy", "ring", "--program", "1"});
  EXPECT_EQ(ring.code, 0) << ring.err;
  EXPECT_THAT(ring.out, HasSubstr("rank 1 of 4, forward, on the host\n"));
  EXPECT_THAT(ring.out, HasSubstr("group_cast 0 (ring kv 1): k[0, 2048) -> r0[0, 2048)"));
  EXPECT_THAT(ring.out, HasSubstr("\nbackward\n"));
  EXPECT_THAT(with({"--program", "3"}).out, HasSubstr("(kv stage 1)"));
  EXPECT_THAT(with({"--program", "4"}).err, HasSubstr("--program: must be a rank in [0, 4) (got 4)"));
  EXPECT_THAT(with({"--movement", "qo", "--program", "1"}).out, HasSubstr("(out stage 1)"));
  EXPECT_NE(with({"--program", "0", "--json"}).code, 0);
}

TEST(PlanVerb, PrintsTheProgramThatGpusRun) {
  const ProgramResult result = run_program(
      {"plan", "--family", "causal", "--seqlen", "8192", "--cp-size", "2", "--program", "0", "--target", "gpu"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("rank 0 of 2, forward, on GPUs\n"));
  EXPECT_THAT(result.out, HasSubstr("open       and copy k[0, 127) -> r0[0, 127)"));
  EXPECT_THAT(result.out, HasSubstr("own keys also from k[0, 4096); waits for casts 0"));
  EXPECT_THAT(result.out, HasSubstr("; stores r"));
  EXPECT_THAT(result.out, HasSubstr("finish     r"));
  EXPECT_NE(run_program({"plan", "--family", "causal", "--seqlen", "8192", "--cp-size", "2", "--target", "gpu"}).code,
            0);
}

TEST(PlanVerb, RingsOfGpusReuseTheirBuffersByCredits) {
  const auto program = [](const std::string& target) {
    const ProgramResult result = run_program({"plan", "--family", "causal", "--seqlen", "8192", "--cp-size", "8",
                                              "--strategy", "ring", "--program", "0", "--target", target});
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  EXPECT_THAT(program("gpu"), HasSubstr("release "));
  EXPECT_THAT(program("host"), Not(HasSubstr("release ")));
}

/// Without line breaks and other white space, since pages break lines elsewhere.
std::string without_space(std::string text) {
  std::erase_if(text, [](unsigned char c) { return std::isspace(c) != 0; });
  return text;
}

// docs/design/execution_host.md reads a program aloud; it must be the one that is printed.
TEST(PlanVerb, PrintsTheProgramThatThePageShows) {
  const ProgramResult result =
      run_program({"plan", "--family", "causal", "--seqlen", "16", "--chunk-size", "4", "--cp-size", "2", "--heads-q",
                   "2", "--heads-kv", "1", "--head-dim", "4", "--dtype", "fp32", "--program", "0"});
  ASSERT_EQ(result.code, 0) << result.err;
  std::istringstream page(read_all(TANGRAM_TEST_DATA "/../../docs/design/execution_host.md"));
  std::string block;  // what is printed, without the command and what is left out at the end
  std::vector<std::string> blocks;
  bool fenced = false;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("```")) fenced = !fenced;
    const bool is_output = fenced && (line.starts_with("rank 0 of 2") || line.starts_with("  r") ||
                                      line.starts_with("     ") || line.starts_with("    1"));
    if (is_output) block += line;
    if (line.starts_with("```") && !block.empty()) blocks.push_back(std::exchange(block, {}));
  }
  ASSERT_EQ(blocks.size(), 2) << "forward, and the end of backward";
  for (const std::string& shown : blocks) {
    const std::string text = without_space(shown.substr(0, shown.find("…")));
    EXPECT_THAT(without_space(result.out), HasSubstr(text));
    EXPECT_GT(text.size(), 200);
  }
}

TEST(PlanVerb, JsonSaysWhoGetsWhat) {
  const Json json = plan({"--family", "causal", "--seqlen", "8192", "--cp-size", "4", "--chunk-size", "256"});
  EXPECT_EQ(json["chunk_size"], 256);
  int64_t num_chunks = 0;
  for (const Json& run : json["dispatch"]) num_chunks += run[0].get<int64_t>();
  EXPECT_EQ(num_chunks, 32);
  ASSERT_EQ(json["ranks"].size(), 4u);
  int64_t area = 0;
  int64_t received = 0;
  int64_t largest = 0;
  for (const Json& rank : json["ranks"]) {
    area += rank["area"].get<int64_t>();
    received += rank["rows_received"].get<int64_t>();
    largest = std::max(largest, rank["area"].get<int64_t>());
  }
  EXPECT_EQ(area, int64_t{8192} * 8193 / 2);
  EXPECT_EQ(received, json["rows_lower_bound"]);
  EXPECT_EQ(received, json["rows_moved"]);
  EXPECT_NEAR(json["balance"].get<double>(), 4.0 * static_cast<double>(largest) / static_cast<double>(area), 1e-9);
  EXPECT_EQ(json["rows_ring"], 3 * 8192);
  // 8 heads on both sides: q, k, v and out, three quarters of each, in K/V rows.
  EXPECT_EQ(json["rows_ulysses"], 2 * 8192 * 3 / 4);
  EXPECT_GT(json["plan_ms"].get<double>(), 0);
}

TEST(PlanVerb, MatrixAgreesWithRanks) {
  const Json json = plan({"--total-seqlen", "16384", "--seed", "3", "--cp-size", "4"});
  for (size_t r = 0; r < 4; ++r) {
    int64_t received = 0;
    for (size_t peer = 0; peer < 4; ++peer) received += json["rows_sent"][peer][r].get<int64_t>();
    EXPECT_EQ(received, json["ranks"][r]["rows_received"]);
    EXPECT_EQ(json["rows_sent"][r][r], 0);
  }
}

// The square of 16,384 ranks took two gigabytes, and 65,536 ranks more memory than there is.
TEST(PlanVerb, ManyRanksHaveNoMatrix) {
  const Json json = plan({"--family", "sliding_window", "--window", "7,0", "--seqlen", "16384", "--cp-size", "2048",
                          "--dispatch", "sequential"});
  EXPECT_TRUE(json["rows_sent"].is_null());
  EXPECT_EQ(json["ranks"][0]["rows_sent"], 7);
  EXPECT_EQ(json["ranks"][2047]["rows_sent"], 0);
}

TEST(PlanVerb, PrefixesOfDocuments) {
  const Json json =
      plan({"--family", "prefix_lm", "--cu-seqlens", "0,100,160,256", "--prefix", "80", "--cp-size", "2"});
  // Documents of 100, 60 and 96 rows: causal, and what prefixes of 80, 60 and 80 rows add above the diagonal.
  const auto triangle = [](int64_t n) { return n * (n + 1) / 2; };
  EXPECT_EQ(json["mask"]["area"], triangle(100) + triangle(60) + triangle(96) + 2 * triangle(79) + triangle(59));
}

TEST(PlanVerb, ReadsCasesOfAFile) {
  const Json json = plan({"--mask", TANGRAM_TEST_DATA "/masks.json", "--case", "varlen_causal:4096", "--cp-size", "2"});
  EXPECT_EQ(json["mask"]["area"], 1694655);
  EXPECT_EQ(json["pad_size_q"], 0);
}

TEST(PlanVerb, SourcesOfTheSameMaskAgree) {
  const TempFolder folder;
  const std::string lengths = folder.write("lengths.txt", "100\n156\n256\n");
  const std::string borders = folder.write("cu.txt", "0 100 256\n512\n");
  const int64_t area = (100 * 101 + 156 * 157 + 256 * 257) / 2;
  EXPECT_EQ(plan({"--doc-lengths", lengths})["mask"]["area"], area);
  EXPECT_EQ(plan({"--cu-seqlens", "0,100,256,512"})["mask"]["area"], area);
  EXPECT_EQ(plan({"--cu-seqlens", borders})["mask"]["area"], area);
  EXPECT_EQ(plan({"--cu-seqlens", borders, "--family", "full"})["mask"]["area"], 100 * 100 + 156 * 156 + 256 * 256);
}

TEST(PlanVerb, WindowCountsKeysBeforeAndAfter) {
  // Query i sees [i - 3, i + 1]: 5 keys, less what lies outside at the ends (3 + 2 + 1 before, 1 after).
  const Json json = plan({"--family", "sliding_window", "--seqlen", "64", "--window", "3,1"});
  EXPECT_EQ(json["mask"]["area"], 64 * 5 - 6 - 1);
}

Json report_data(const std::string& html) {
  const std::string text = read_all(html);
  const size_t begin = text.find("id=\"data\">") + 10;
  return Json::parse(text.substr(begin, text.find("</script>", begin) - begin));
}

// Most of a step over many ranks is transfers: a dispatch that moves a fifth of the rows, though 8 times as much work
// lies on one rank, was greyed out beside one that takes a third longer.
TEST(PlanVerb, WhatBalancesIsNotTakenAtAnyPrice) {
  if (support::kSanitized) GTEST_SKIP() << kLarge;
  const auto step_s = [&](const char* dispatch) {
    const Json json = plan({"--total-seqlen", "1048576", "--cp-size", "512", "--dispatch", dispatch});
    return json["predicted"]["forward_s"].get<double>() + json["predicted"]["backward_s"].get<double>();
  };
  const double chosen = step_s("auto");
  EXPECT_LE(chosen, step_s("sequential"));
  EXPECT_LE(chosen, 0.8 * step_s("tangram"));
}

TEST(PlanVerb, ReportSaysWhyWhatIsPredictedFasterWasNotTaken) {
  if (support::kSanitized) GTEST_SKIP() << kLarge;
  const TempFolder folder;
  const std::string html = folder.path("report.html");
  ASSERT_EQ(run_program({"plan", "--family", "varlen_block_causal", "--block", "128", "--total-seqlen", "4194304",
                         "--cp-size", "64", "--html", html})
                .code,
            0);
  const Json data = report_data(html);
  std::string reasons;
  for (const Json& reason : data["reasons"]) reasons += reason.get<std::string>() + "\n";
  const Json& choices = data["choices"];  // fastest first
  double chosen_s = 0;
  for (const Json& choice : choices) chosen_s += choice["chosen"] == true ? choice["step_s"].get<double>() : 0;
  // What is less than a thousandth faster is as fast.
  for (size_t i = 0; i < choices.size() && choices[i]["step_s"].get<double>() < (1 - 1e-3) * chosen_s; ++i) {
    EXPECT_THAT(reasons, HasSubstr("--dispatch " + choices[i]["algorithm"].get<std::string>() + " takes it."));
  }
}

// It took a dispatch that its own table showed to be slower than min_heap.
TEST(PlanVerb, NoOtherDispatchIsPredictedFasterForBlockCausalDocuments) {
  if (support::kSanitized) GTEST_SKIP() << kLarge;
  for (const auto& [tokens, ranks] : {std::pair{"4194304", "64"}, {"1048576", "512"}}) {
    const auto step_s = [&](const char* dispatch) {
      const Json json = plan({"--family", "varlen_block_causal", "--block", "128", "--total-seqlen", tokens,
                              "--cp-size", ranks, "--dispatch", dispatch});
      return json["predicted"]["forward_s"].get<double>() + json["predicted"]["backward_s"].get<double>();
    };
    // What differs by less only shows when stages are made; the report names it then.
    const double chosen = step_s("auto");
    for (const char* other : {"sequential", "min_heap", "sorted_sequential", "tangram"}) {
      EXPECT_LE(chosen, 1.01 * step_s(other)) << other << " over " << ranks << " ranks";
    }
  }
}

TEST(PlanVerb, PaddingIsSaid) {
  const std::vector<std::string> args{"plan", "--family", "causal", "--seqlen", "1000", "--chunk-size", "64"};
  const ProgramResult result = run_program(args);
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, HasSubstr("padding    24 empty rows appended: 1,000 -> 1,024"));
  const Json json = plan({"--family", "causal", "--seqlen", "1000", "--chunk-size", "64"});
  EXPECT_EQ(json["pad_size_q"], 24);
  EXPECT_EQ(json["mask"]["area"], 1000 * 1001 / 2);
}

TEST(PlanVerb, ReportIsOneOfflineFileBelowTwoMegabytes) {
  const TempFolder folder;
  const std::string html = folder.path("report.html");
  const ProgramResult result = run_program({"plan", "--total-seqlen", "1048576", "--cp-size", "64", "--html", html});
  ASSERT_EQ(result.code, 0) << result.err;
  const std::string text = read_all(html);
  EXPECT_LT(text.size(), size_t{2} << 20);
  EXPECT_EQ(text.find("/*DATA*/"), std::string::npos);
  for (const char* remote : {"http://", "https://", "src=", "@import", "url("}) {
    EXPECT_EQ(text.find(remote), std::string::npos) << remote;
  }
  const size_t begin = text.find("id=\"data\">") + 10;
  const Json data = Json::parse(text.substr(begin, text.find("</script>", begin) - begin));
  EXPECT_EQ(data["cp_size"], 64);
  EXPECT_EQ(data["timeline"]["measured"], false);
  EXPECT_EQ(data["drawn_area"], data["mask"]["area"]);
}

// It showed the first 32 ranks, whatever the others did.
TEST(PlanVerb, TimeLineOfManyRanksShowsTheSlowest) {
  const TempFolder folder;
  const std::string html = folder.path("report.html");
  // In sequence the last ranks of a causal mask see the most keys.
  ASSERT_EQ(run_program({"plan", "--family", "causal", "--seqlen", "131072", "--cp-size", "64", "--dispatch",
                         "sequential", "--html", html})
                .code,
            0);
  const Json timeline = report_data(html)["timeline"];
  ASSERT_EQ(timeline["ranks"].size(), 32);
  EXPECT_EQ(timeline["ranks"][0], 63);
  EXPECT_EQ(timeline["ranks"][31], 32);
  for (const Json& event : timeline["events"]) EXPECT_GE(event[0], 32);
  EXPECT_EQ(timeline["dropped"], 0);
}

// "Too many ranks to draw."
TEST(PlanVerb, WhoSendsWhatOfManyRanksIsShownByNode) {
  if (support::kSanitized) GTEST_SKIP() << kLarge;
  const TempFolder folder;
  const std::string html = folder.path("report.html");
  ASSERT_EQ(run_program({"plan", "--family", "causal", "--seqlen", "131072", "--cp-size", "512", "--dispatch",
                         "sequential", "--html", html})
                .code,
            0);
  const Json data = report_data(html);
  EXPECT_EQ(data["rows_sent_group"], 8);
  const Json& sent = data["rows_sent"];
  ASSERT_EQ(sent.size(), 64);
  // Each of the 256 rows of a rank goes to all later ranks: to 7 + 6 + .. + 0 inside a group of 8, to all ranks of
  // later groups.
  for (size_t from = 0; from < 64; ++from) {
    for (size_t to = 0; to < 64; ++to) {
      ASSERT_EQ(sent[from][to], from == to ? 28 * 256 : from < to ? 64 * 256 : 0) << from << " " << to;
    }
  }
}

TEST(PlanVerb, ReportCanBeReadOnAPhone) {
  const TempFolder folder;
  const std::string html = folder.path("report.html");
  ASSERT_EQ(run_program({"plan", "--family", "causal", "--seqlen", "1024", "--html", html}).code, 0);
  const std::string text = read_all(html);
  // A viewport of the screen's width, drawings that scroll inside it, buttons where there are no keys and no wheel, a
  // page that scrolls although the mask fills the screen, taps for what a pointer would hover over, and text that
  // wraps.
  for (const char* part : {"name=\"viewport\" content=\"width=device-width", "#matrix svg,#moved svg{min-width:480px}",
                           "id=\"zoom-in\"", "'pan-y'", "id=\"tap\"",
                           // long names of files, which no blank breaks, would make a page of 390 pixels wider
                           ".brand,.brand>div,header>div{min-width:0}", "li,footer{overflow-wrap:anywhere}"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

// On a laptop a step was predicted to take microseconds, and nothing said of which machine.
TEST(PlanVerb, PredictedTimesSayOfWhichMachine) {
  const TempFolder folder;
  const std::string html = folder.path("report.html");
  const ProgramResult result = run_program({"plan", "--family", "causal", "--seqlen", "1024", "--html", html});
  ASSERT_EQ(result.code, 0);
  for (const std::string& text : {result.out, read_all(html)}) {
    EXPECT_THAT(text, HasSubstr("times are those of H200 nodes, --machine FILE takes the constants of others"));
  }
  DistAttnConfig config;
  config.cost.link_bytes_per_s = 1e9;
  EXPECT_EQ(constants_text(config), "times are those of the machine that --machine describes");
}

TEST(PlanVerb, ReportSaysHowToReadItsPictures) {
  const TempFolder folder;
  const std::string html = folder.path("report.html");
  ASSERT_EQ(run_program({"plan", "--family", "causal", "--seqlen", "1024", "--html", html}).code, 0);
  const std::string text = read_all(html);
  for (const char* part : {"The colour is the rank that holds the query", "to a column's rank, whose queries see them",
                           "Visible cells that each rank computes", "rows that move meanwhile"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(PlanVerb, PrintedReportIsNotCutLikeOnANarrowScreen) {
  const TempFolder folder;
  const std::string html = folder.path("report.html");
  ASSERT_EQ(run_program({"plan", "--family", "causal", "--seqlen", "1024", "--html", html}).code, 0);
  const std::string text = read_all(html);
  // A sheet of paper is narrower than the limit: rules that make drawings scroll must hold for screens only.
  EXPECT_EQ(text.find("@media("), std::string::npos);
  EXPECT_NE(text.find("@media screen and (max-width"), std::string::npos);
  EXPECT_NE(text.find("@media print"), std::string::npos);
}

// There may be a chunk for every row: "131072 chunks of 1 rows" says nothing, the runs do.
TEST(PlanVerb, CountsRunsWhereRowsAreCutAnywhere) {
  const ProgramResult cut = run_program({"plan", "--total-seqlen", "131072", "--seed", "1", "--cp-size", "8"});
  EXPECT_THAT(cut.out, ::testing::ContainsRegex("dispatch   tangram, [0-9]+ runs, cut at any row over 8 ranks"));
  const ProgramResult whole =
      run_program({"plan", "--family", "causal", "--seqlen", "8192", "--cp-size", "4", "--chunk-size", "1024"});
  EXPECT_THAT(whole.out, ::testing::HasSubstr("8 chunks of 1,024 rows over 4 ranks"));
}

TEST(PlanVerb, FileNameThatIsNoUtf8IsShownAsText) {
  const TempFolder folder;
  const std::string mask =
      folder.write("m\xff.json", R"({"seqlen":64,"q_ranges":[[0,64]],"k_ranges":[[0,64]],"attn_types":[1]})");
  const Json json = plan({"--mask", mask, "--html", folder.path("report.html")});
  EXPECT_THAT(json["mask"]["name"].get<std::string>(), HasSubstr("m\uFFFD.json"));
  const std::string moving =
      folder.write("m\x1b[2J\n.json", R"({"seqlen":64,"q_ranges":[[0,64]],"k_ranges":[[0,64]],"attn_types":[1]})");
  EXPECT_THAT(run_program({"plan", "--mask", moving}).out, HasSubstr("m?[2J?.json: 64 x 64 tokens"));
}

TEST(PlanVerb, SavesThePlan) {
  const TempFolder folder;
  ASSERT_EQ(run_program({"plan", "--family", "full", "--seqlen", "512", "--save-plan", folder.path("plan.json")}).code,
            0);
  EXPECT_FALSE(Json::parse(read_all(folder.path("plan.json"))).empty());
}

TEST(PlanVerb, SaysWhatCrossesBetweenNodes) {
  std::vector<std::string> args{"--total-seqlen", "131072", "--seed", "2", "--cp-size", "16"};
  const Json flat = plan(args);
  EXPECT_FALSE(flat.contains("nodes"));
  args.insert(args.end(), {"--ranks-per-node", "4"});
  const Json nodes = plan(args)["nodes"];
  ASSERT_EQ(nodes["rows_between"].size(), 4u);
  int64_t sum = 0;
  for (size_t from = 0; from < 4; ++from) {
    EXPECT_EQ(nodes["rows_between"][from][from], 0);
    for (const Json& rows : nodes["rows_between"][from]) sum += rows.get<int64_t>();
  }
  EXPECT_EQ(nodes["rows_crossing"], sum);
  EXPECT_GE(nodes["rows_to_each_rank"].get<int64_t>(), sum);
  int64_t sent = 0, most = 0;
  for (const char* way : {"sent_by_rank", "received_by_rank"}) {
    for (const Json& rows : nodes[way]) most = std::max(most, rows.get<int64_t>());
  }
  for (const Json& rows : nodes["sent_by_rank"]) sent += rows.get<int64_t>();
  EXPECT_EQ(sent, sum);
  EXPECT_EQ(nodes["rows_of_busiest_card"], most);

  const TempFolder folder;
  const std::string html = folder.path("report.html");
  args.insert(args.begin(), "plan");
  args.insert(args.end(), {"--html", html});
  const ProgramResult result = run_program(args);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("nodes      4 nodes of 4 ranks\ncrossing   "));
  EXPECT_THAT(result.out, HasSubstr("times are those of H200 nodes"));
  EXPECT_THAT(read_all(html), HasSubstr("<h2>Nodes</h2>"));
}

TEST(PlanVerb, RefusesNodesOfUnlikeSize) {
  const ProgramResult result =
      run_program({"plan", "--family", "causal", "--seqlen", "4096", "--cp-size", "8", "--ranks-per-node", "3"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("--ranks-per-node: must divide the number of ranks (got 3 for 8)"));
}

}  // namespace
}  // namespace tangram::cli
