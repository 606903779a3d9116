// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Strategies by name.
#include <fmt/format.h>

#include <array>
#include <string>
#include <utility>

#include "core/joined.hpp"
#include "core/nearest_word.hpp"
#include "core/require.hpp"
#include "tangram/config.hpp"

namespace tangram {

namespace {

constexpr std::array<std::pair<Strategy, std::string_view>, 9> kNames = {{{Strategy::kAuto, "auto"},
                                                                          {Strategy::kTangram, "tangram"},
                                                                          {Strategy::kUlysses, "ulysses"},
                                                                          {Strategy::kHcms, "hcms"},
                                                                          {Strategy::kRing, "ring"},
                                                                          {Strategy::kAllGather, "all_gather"},
                                                                          {Strategy::kUsp, "usp"},
                                                                          {Strategy::kLoongTrain, "loong_train"},
                                                                          {Strategy::kHybridCp, "hybrid_cp"}}};

}  // namespace

std::string_view to_string(Strategy strategy) {
  for (const auto& [value, name] : kNames) {
    if (value == strategy) return name;
  }
  return "unknown";
}

Strategy parse_strategy(std::string_view name) {
  std::string names;
  std::vector<std::string_view> known;
  for (const auto& [value, text] : kNames) {
    if (text == name) return value;
    known.push_back(text);
    names += (names.empty() ? "" : ", ") + std::string(text);
  }
  require(false, "parse_strategy: name must be one of {} (got '{}'){}", names, name, did_you_mean(name, known));
  return {};
}

std::string describe(const StrategyConfig& strategy) {
  std::string text(to_string(strategy.name));
  if (strategy.head_ranks > 0) text += fmt::format(", {} head ranks", strategy.head_ranks);
  if (strategy.inner_ring > 0) text += fmt::format(", inner ring of {}", strategy.inner_ring);
  if (!strategy.head_chunks.empty()) text += fmt::format(", head chunks {}", joined(strategy.head_chunks, "+"));
  if (strategy.document_rows > 0) text += fmt::format(", documents whole up to {} rows", strategy.document_rows);
  return text;
}

}  // namespace tangram
