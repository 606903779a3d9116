// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/fingerprint_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <vector>

#include "tangram/dtype.hpp"

namespace tangram::comm {

namespace {

constexpr size_t kMaxRanksNamed = 8;

std::string rank_list(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i == kMaxRanksNamed) return text + ", ...";
    text += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i]);
  }
  return text;
}

std::string pass_text(uint64_t word) { return word == 0 ? "forward" : "backward"; }

std::string heads_text(uint64_t word) {
  return fmt::format("{} and {} heads of {} and {}, {}", word & 0xffff, word >> 16 & 0xffff, word >> 32 & 0xfff,
                     word >> 44 & 0xfff, to_string(static_cast<DType>(word >> 56)));
}

std::string sink_text(uint64_t word) {
  return word == 0 ? "none" : fmt::format("{} {}", word / 2, word % 2 == 0 ? "for all rows" : "of each row");
}

std::string results_text(uint64_t word) {
  std::string text;
  const auto name = [&](CallFingerprint::Result result, const char* what) {
    if ((word & result) != 0) text += fmt::format("{}{}", text.empty() ? "" : ", ", what);
  };
  name(CallFingerprint::kMaxLogits, "max_logits");
  name(CallFingerprint::kKept, "kept K/V");
  name(CallFingerprint::kDsink, "dsink");
  name(CallFingerprint::kDsinkSum, "summed");
  name(CallFingerprint::kDsinkAvg, "averaged");
  return text.empty() ? "none" : text;
}

std::string dtypes_text(uint64_t word) {
  std::string text;
  for (const char* name : CallFingerprint::kTypedTensors) {
    if ((word & 0xff) != 0) {
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, to_string(static_cast<DType>((word & 0xff) - 1)));
    }
    word >>= 8;
  }
  return text.empty() ? "none" : text;
}

std::string fact_text(CallFingerprint::Fact fact, uint64_t word) {
  switch (fact) {
    case CallFingerprint::kHeads: return heads_text(word);
    case CallFingerprint::kPass: return pass_text(word);
    case CallFingerprint::kScale:
    case CallFingerprint::kSoftcap: return fmt::format("{:g}", std::bit_cast<float>(static_cast<uint32_t>(word)));
    case CallFingerprint::kSink: return sink_text(word);
    case CallFingerprint::kResults: return results_text(word);
    case CallFingerprint::kDTypes: return dtypes_text(word);
    default: return fmt::format("{:016x}", word);
  }
}

const char* fact_name(CallFingerprint::Fact fact) {
  switch (fact) {
    case CallFingerprint::kMask: return "masks";
    case CallFingerprint::kDispatch: return "dispatches";
    case CallFingerprint::kHeads: return "heads or dtypes";
    case CallFingerprint::kConfig: return "configs";
    case CallFingerprint::kPass: return "passes";
    case CallFingerprint::kScale: return "softmax_scales";
    case CallFingerprint::kSoftcap: return "softcaps";
    case CallFingerprint::kSink: return "sinks";
    case CallFingerprint::kResults: return "wanted results";
    case CallFingerprint::kDTypes: return "dtypes";
    case CallFingerprint::kRows: return "the keys' rows";
    case CallFingerprint::kNumFields: break;
  }
  return "unknown";
}

}  // namespace

std::string differing_texts(std::span<const std::string> texts, std::span<const int> ranks) {
  std::map<std::string, std::vector<int>> ranks_by_text;
  for (size_t i = 0; i < texts.size(); ++i) {
    ranks_by_text[texts[i]].push_back(ranks.empty() ? static_cast<int>(i) : ranks[i]);
  }
  if (ranks_by_text.size() <= 1) return {};
  std::vector<std::pair<std::vector<int>, std::string>> groups;
  for (auto& [text, same] : ranks_by_text) groups.emplace_back(std::move(same), text);
  std::sort(groups.begin(), groups.end());
  std::string result;
  for (const auto& [same, text] : groups) {
    result += fmt::format("{}{}: {}", result.empty() ? "" : "; ", rank_list(same), text);
  }
  return result;
}

std::string differing_fields(std::span<const CallFingerprint> fingerprint, std::span<const int> ranks) {
  uint32_t given = ~0u;
  bool alike = true;
  for (const CallFingerprint& one : fingerprint) {
    given &= one.given;
    alike = alike && one == fingerprint.front();
  }
  if (alike) return {};
  std::string result;
  bool plans_differ = false;
  for (int i = 0; i < CallFingerprint::kNumFields; ++i) {
    const auto fact = static_cast<CallFingerprint::Fact>(i);
    const bool is_derived =
        fact == CallFingerprint::kDispatch || fact == CallFingerprint::kConfig;  // from what came before
    if ((given >> i & 1) == 0 || (plans_differ && is_derived)) continue;
    std::vector<std::string> texts;
    for (const CallFingerprint& one : fingerprint) texts.push_back(fact_text(fact, one.words[fact]));
    const std::string text = differing_texts(texts, ranks);
    if (text.empty()) continue;
    plans_differ = plans_differ || fact <= CallFingerprint::kConfig;
    result += fmt::format("{}{} differ ({})", result.empty() ? "" : "; ", fact_name(fact), text);
  }
  return result;
}

}  // namespace tangram::comm
