// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What the ranks' signatures say together. Deterministic in the signatures alone, so that every rank that has them all
// comes to the same text.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>

#include "comm/operation.hpp"
#include "tangram/dtype.hpp"

namespace tangram::comm {

namespace {

constexpr size_t kMaxRanksNamed = 8;

std::string call_name(const Signature& signature) {
  return fmt::format("{} '{}'", to_string(signature.kind), signature.label);
}

std::string rank_list(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i == kMaxRanksNamed) return text + ", ...";
    text += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i]);
  }
  return text;
}

/// `rank 0: A; ranks 1, 2: B` when the ranks describe themselves differently, otherwise empty.
template <class Describe>
std::string differing(std::span<const Signature* const> signatures, Describe describe) {
  std::map<std::string, std::vector<int>> ranks_by_text;
  for (size_t rank = 0; rank < signatures.size(); ++rank) {
    ranks_by_text[describe(*signatures[rank])].push_back(static_cast<int>(rank));
  }
  if (ranks_by_text.size() <= 1) return {};
  std::vector<std::pair<std::vector<int>, std::string>> groups;
  for (auto& [text, ranks] : ranks_by_text) groups.emplace_back(std::move(ranks), text);
  std::sort(groups.begin(), groups.end());
  std::string result;
  for (const auto& [ranks, text] : groups) {
    result += fmt::format("{}{}: {}", result.empty() ? "" : "; ", rank_list(ranks), text);
  }
  return result;
}

std::string find_refusal(std::span<const Signature* const> signatures) {
  const auto refuses = [](const Signature* signature) { return signature->kind == OpKind::kRefusal; };
  const auto refusal = std::find_if(signatures.begin(), signatures.end(), refuses);
  if (refusal == signatures.end()) return {};
  const auto other = std::find_if_not(signatures.begin(), signatures.end(), refuses);
  const std::string name = other == signatures.end() ? "operation" : call_name(**other);
  return fmt::format("{}: rank {} refused its part: {}", name, refusal - signatures.begin(), (*refusal)->text);
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
  const auto name = [&](CallFacts::Result result, const char* what) {
    if ((word & result) != 0) text += fmt::format("{}{}", text.empty() ? "" : ", ", what);
  };
  name(CallFacts::kMaxLogits, "max_logits");
  name(CallFacts::kKept, "kept K/V");
  name(CallFacts::kDsink, "dsink");
  name(CallFacts::kDsinkSum, "summed");
  name(CallFacts::kDsinkAvg, "averaged");
  return text.empty() ? "none" : text;
}

std::string fact_text(CallFacts::Fact fact, uint64_t word) {
  switch (fact) {
    case CallFacts::kHeads: return heads_text(word);
    case CallFacts::kPass: return pass_text(word);
    case CallFacts::kScale:
    case CallFacts::kSoftcap: return fmt::format("{:g}", std::bit_cast<float>(static_cast<uint32_t>(word)));
    case CallFacts::kSink: return sink_text(word);
    case CallFacts::kResults: return results_text(word);
    default: return fmt::format("{:016x}", word);
  }
}

const char* fact_name(CallFacts::Fact fact) {
  switch (fact) {
    case CallFacts::kMask: return "masks";
    case CallFacts::kDispatch: return "dispatches";
    case CallFacts::kHeads: return "heads or dtypes";
    case CallFacts::kConfig: return "configs";
    case CallFacts::kPass: return "passes";
    case CallFacts::kScale: return "softmax_scales";
    case CallFacts::kSoftcap: return "softcaps";
    case CallFacts::kSink: return "sinks";
    case CallFacts::kResults: return "wanted results";
    case CallFacts::kRows: return "the keys' rows";
    case CallFacts::kNumFacts: break;
  }
  return "unknown";
}

/// Everything that differs of itself. When ranks are at different calls, of which some say less, what those say is
/// compared.
std::string find_other_call(std::span<const Signature* const> signatures) {
  uint32_t given = ~0u;
  bool alike = true;
  for (const Signature* signature : signatures) {
    given &= signature->facts.given;
    alike = alike && signature->facts == signatures.front()->facts;
  }
  if (alike) return {};
  std::string result;
  bool plans_differ = false;
  for (int i = 0; i < CallFacts::kNumFacts; ++i) {
    const auto fact = static_cast<CallFacts::Fact>(i);
    const bool is_derived = fact == CallFacts::kDispatch || fact == CallFacts::kConfig;  // from what came before
    if ((given >> i & 1) == 0 || (plans_differ && is_derived)) continue;
    const std::string text =
        differing(signatures, [&](const Signature& s) { return fact_text(fact, s.facts.words[fact]); });
    if (text.empty()) continue;
    plans_differ = plans_differ || fact <= CallFacts::kConfig;
    result += fmt::format("{}{} differ ({})", result.empty() ? "" : "; ", fact_name(fact), text);
  }
  return result;
}

std::string find_row_mismatch(std::span<const Signature* const> signatures) {
  for (size_t from = 0; from < signatures.size(); ++from) {
    if (signatures[from]->out.empty()) continue;
    for (size_t to = 0; to < signatures.size(); ++to) {
      const PeerRows& sent = signatures[from]->out[to];
      const PeerRows& expected = signatures[to]->in[from];
      if (sent == expected) continue;
      const std::string name = call_name(*signatures[from]);
      if (sent.rows != expected.rows) {
        return fmt::format(
            "{}: what a rank sends must be what its peer expects (got rank {} sends {} rows, rank {} expects {})", name,
            from, sent.rows, to, expected.rows);
      }
      return fmt::format(
          "{}: what a rank sends must be what its peer expects (got {} rows from rank {} to rank {} at different "
          "places)",
          name, sent.rows, from, to);
    }
  }
  return {};
}

}  // namespace

std::string find_disagreement(std::span<const Signature* const> signatures) {
  if (std::string refusal = find_refusal(signatures); !refusal.empty()) return refusal;
  std::string text = find_other_call(signatures);
  if (!text.empty()) return fmt::format("attention: every rank must make the same call: {}", text);
  text = differing(signatures, [](const Signature& s) { return call_name(s); });
  if (!text.empty()) return fmt::format("communicator: every rank must make the same call (got {})", text);

  const std::string name = call_name(*signatures.front());
  if (signatures.front()->kind == OpKind::kAgreement) {
    text = differing(signatures, [](const Signature& s) { return fmt::format("{:016x}", s.value); });
    return text.empty() ? text
                        : fmt::format("{}: must be equal on every rank (got {})", signatures.front()->label, text);
  }
  text = differing(signatures, [](const Signature& s) { return std::to_string(static_cast<int>(s.op)); });
  if (!text.empty()) return fmt::format("{}: every rank must pass the same op (got {})", name, text);
  const bool same_value = std::all_of(signatures.begin(), signatures.end(),
                                      [&](const Signature* s) { return s->value == signatures.front()->value; });
  if (!same_value) {
    text = differing(signatures, [](const Signature& s) { return s.text; });
    return fmt::format("{}: every rank must pass tensors of equal dtype, heads and dim (got {})", name, text);
  }
  return find_row_mismatch(signatures);
}

}  // namespace tangram::comm
