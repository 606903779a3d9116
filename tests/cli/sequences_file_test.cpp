// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/sequences_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "cli/program.hpp"
#include "support/sample.hpp"
#include "tangram/error.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram::cli {
namespace {

using ::testing::HasSubstr;
using Sequence = std::vector<int64_t>;

PrefixTree parse(const std::string& text) { return parse_sequences_json(text, "s"); }

std::string refusal_of(const std::string& text) {
  try {
    parse(text);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

bool is_visible(const Mask& mask, int64_t row, int64_t key) {
  return std::any_of(mask.slices().begin(), mask.slices().end(),
                     [&](const AttnSlice& slice) { return slice.visible(row, key); });
}

// Every prefix of a sequence is a row; children in the order in which sequences bring them.
struct Trie {
  Sequence prefix;
  std::vector<Trie> children;

  void add(const Sequence& sequence, size_t at = 0) {
    if (at == sequence.size()) return;
    auto child = std::find_if(children.begin(), children.end(),
                              [&](const Trie& trie) { return trie.prefix.back() == sequence[at]; });
    if (child == children.end()) {
      children.push_back({Sequence(sequence.begin(), sequence.begin() + at + 1), {}});
      child = children.end() - 1;
    }
    child->add(sequence, at + 1);
  }
  void list(std::vector<Sequence>& rows) const {
    if (!prefix.empty()) rows.push_back(prefix);
    for (const Trie& child : children) child.list(rows);
  }
};

TEST(ParseSequences, RowsSeeTheirPrefixes) {
  std::mt19937 random(5);
  for (int round = 0; round < 60; ++round) {
    std::vector<Sequence> sequences(1 + random() % 6);
    Trie trie;
    int64_t tokens = 1;
    sequences[0] = {1};
    for (Sequence& sequence : sequences) {
      while (random() % 6 != 0) sequence.push_back(static_cast<int64_t>(random() % 2) - 1);
      trie.add(sequence);
      tokens += static_cast<int64_t>(sequence.size());
    }
    std::vector<Sequence> rows;
    trie.list(rows);
    const PrefixTree tree = parse(nlohmann::json{{"sequences", sequences}, {"min_shared", 1}}.dump());
    ASSERT_EQ(tree.mask.seqlen_q(), static_cast<int64_t>(rows.size()));
    EXPECT_EQ(tree.num_sequences, static_cast<int64_t>(sequences.size()));
    EXPECT_EQ(tree.sequence_tokens, tokens - 1);
    for (size_t row = 0; row < rows.size(); ++row) {
      for (size_t key = 0; key < rows.size(); ++key) {
        const bool is_prefix =
            rows[key].size() <= rows[row].size() && std::equal(rows[key].begin(), rows[key].end(), rows[row].begin());
        ASSERT_EQ(is_visible(tree.mask, row, key), is_prefix)
            << "round " << round << ", row " << row << ", key " << key;
      }
    }
  }
}

TEST(ParseSequences, SequencesShareWhatIsLongEnough) {
  const std::string lists = R"({"sequences":[[1,2,3,4],[1,2,3,5,6],[7,8]],"min_shared":)";
  const PrefixTree tree = parse(R"({"lengths":[3,1,2,2],"parents":[-1,0,0,-1]})");
  EXPECT_EQ(parse(lists + "3}").mask, tree.mask);
  EXPECT_EQ(parse(lists + "4}").mask, varlen_mask(std::vector<int64_t>{0, 4, 9, 11}, true));
  EXPECT_EQ(tree.num_sequences, 3);
  EXPECT_EQ(tree.sequence_tokens, 11);
  // Equal and empty sequences, and one that ends where others go on.
  EXPECT_EQ(parse(R"({"sequences":[[],[5,6],[5,6],[5,6,7]],"min_shared":2})").mask, causal_mask(3, 3));
  // 64 common tokens are shared without min_shared, 63 are not.
  for (const int64_t common : {63, 64}) {
    Sequence a(common, 1), b(common, 1);
    a.push_back(2), b.push_back(3);
    const Mask mask = parse(nlohmann::json{{"sequences", {a, b}}}.dump()).mask;
    EXPECT_EQ(mask.seqlen_q(), common == 64 ? 66 : 128);
  }
}

TEST(ParseSequences, NodesInAnyOrder) {
  const Mask prompt = parse(R"({"lengths":[10,4,5],"parents":[-1,0,0]})").mask;
  const Mask expected = shared_prefix_mask(10, std::vector<int64_t>{4, 5});
  ASSERT_EQ(prompt.seqlen_q(), expected.seqlen_q());
  for (int64_t row = 0; row < 19; ++row) {
    for (int64_t key = 0; key < 19; ++key) ASSERT_EQ(is_visible(prompt, row, key), is_visible(expected, row, key));
  }
  EXPECT_EQ(parse(R"({"lengths":[4,5,10],"parents":[2,2,-1],"name":"x"})").mask, prompt);
  // A chain is one node, empty nodes are none.
  EXPECT_EQ(parse(R"({"lengths":[3,0,7,4,5],"parents":[-1,0,1,2,2]})").mask, prompt);
  EXPECT_EQ(parse(R"({"lengths":[3,7],"parents":[-1,0]})").mask.slices().size(), 1u);
  // A tree as deep as it is long: recursion would overflow the stack.
  constexpr int64_t kDepth = support::kSanitized ? 50'000 : 200'000;
  nlohmann::json deep{{"lengths", std::vector<int64_t>(kDepth, 1)}, {"parents", nlohmann::json::array()}};
  for (int64_t i = 0; i < kDepth; ++i) deep["parents"].push_back(i - 1);
  EXPECT_EQ(parse(deep.dump()).mask, causal_mask(kDepth, kDepth));
}

TEST(ParseSequences, RefusesWhatIsNoForest) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"lengths":[1,1,1],"parents":[-1,2,1]})", "s: parents must not form a cycle"},
      {R"({"lengths":[1,1],"parents":[0,-1]})", "(got node 0 among its own ancestors)"},
      {R"({"lengths":[1,1],"parents":[-1,2]})", "parents[1]"},
      {R"({"lengths":[1,1],"parents":[-1,-2]})", "parents[1]"},
      {R"({"lengths":[1,-1],"parents":[-1,0]})", "lengths[1]"},
      {R"({"lengths":[1,1.5],"parents":[-1,0]})", "lengths[1]"},
      {R"({"lengths":[1,1],"parents":[-1]})", "lengths and parents must be equally long (got 2 and 1)"},
      {R"({"lengths":[1]})", "needs 'parents'"},
      {R"({"lengths":[2000000000,2000000000],"parents":[-1,-1]})", "rows must be at most 2^31"},
      {R"({"lengths":[0],"parents":[-1]})", "lengths must have a positive one"},
      {R"({"lengths":[],"parents":[]})", "lengths must have a positive one"},
      {R"({"sequences":[[],[]]})", "sequences must hold a token (got 2 sequences without)"},
      {R"({"sequences":[1]})", "sequences[0] must be a list of tokens (got 1)"},
      {R"({"sequences":[[1],[2,"a"]]})", "sequences[1][1]"},
      {R"({"sequences":[[18446744073709551615]]})", "sequences[0][0]"},
      {R"({"sequences":[[1]],"min_shared":0})", "min_shared"},
      {R"({"sequences":[[1]],"lengths":[1],"parents":[-1]})", "needs either 'sequences' or both"},
      {R"({"lengths":[1],"parents":[-1],"min_shared":2})", "'min_shared' goes with 'sequences'"},
      {R"({"sequence":[[1]]})", "sequences"},
      {R"({)", "s:"},
  };
  for (const auto& [text, expected] : cases) EXPECT_THAT(refusal_of(text), HasSubstr(expected)) << text;
}

TEST(PlanVerb, PlansSequencesThatSharePrefixes) {
  const TempFolder folder;
  const std::string file = folder.write("tree.json", R"({"lengths":[1024,512,768],"parents":[-1,0,0]})");
  const std::string report = folder.path("tree.html");
  const ProgramResult result = run_program({"plan", "--sequences", file, "--cp-size", "2", "--html", report});
  ASSERT_EQ(result.code, 0) << result.err;
  const std::string name = "prefix tree, 2 sequences of 3328 tokens in 2304 rows";
  EXPECT_THAT(result.out, HasSubstr(name));
  const std::string html = read_all(report);
  EXPECT_THAT(html, HasSubstr(name));
  EXPECT_THAT(html, HasSubstr("0,2304,0,1024,null,0")) << "the prompt's rows, which both completions see";
  const std::string small = folder.write("small.json", R"({"sequences":[[1,2,3,4,5],[1,2,3,6],[7]],"min_shared":2})");
  EXPECT_EQ(run_program({"verify", "--sequences", small, "--cp-size", "2", "--head-dim", "16"}).code, 0);

  const ProgramResult both = run_program({"plan", "--sequences", file, "--family", "causal"});
  EXPECT_EQ(both.code, 2);
  EXPECT_THAT(both.err, HasSubstr("--family: cannot be combined with --sequences"));
  EXPECT_THAT(run_program({"plan", "--sequences", file, "--window", "3,0"}).err, HasSubstr("--window: needs --family"));
  const std::string cycle = folder.write("cycle.json", R"({"lengths":[1,1],"parents":[1,0]})");
  EXPECT_THAT(run_program({"plan", "--sequences", cycle}).err, HasSubstr("parents must not form a cycle"));
}

}  // namespace
}  // namespace tangram::cli
