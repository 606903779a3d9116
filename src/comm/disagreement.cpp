// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What the ranks' signatures say together. Deterministic in the signatures alone, so that every rank that has them all
// comes to the same text.
#include <fmt/format.h>

#include <algorithm>

#include "comm/fingerprint_text.hpp"
#include "comm/operation.hpp"

namespace tangram::comm {

namespace {

std::string call_name(const Signature& signature) {
  return fmt::format("{} '{}'", to_string(signature.kind), signature.label);
}

/// Like differing_texts, for the texts that `describe` returns for each rank.
template <class Describe>
std::string differing(std::span<const Signature* const> signatures, Describe describe) {
  std::vector<std::string> texts;
  for (const Signature* signature : signatures) texts.push_back(describe(*signature));
  return differing_texts(texts);
}

std::string find_refusal(std::span<const Signature* const> signatures) {
  const auto refuses = [](const Signature* signature) { return signature->kind == OpKind::kRefusal; };
  const auto refusal = std::find_if(signatures.begin(), signatures.end(), refuses);
  if (refusal == signatures.end()) return {};
  const auto other = std::find_if_not(signatures.begin(), signatures.end(), refuses);
  const std::string name = other == signatures.end() ? "operation" : call_name(**other);
  return fmt::format("{}: rank {} refused its part: {}", name, refusal - signatures.begin(), (*refusal)->text);
}

std::string find_other_call(std::span<const Signature* const> signatures) {
  const auto is_first = [&](const Signature* signature) {
    return signature->fingerprint == signatures.front()->fingerprint;
  };
  if (std::all_of(signatures.begin(), signatures.end(), is_first)) return {};
  std::vector<CallFingerprint> fingerprint;
  for (const Signature* signature : signatures) fingerprint.push_back(signature->fingerprint);
  return differing_fields(fingerprint);
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
