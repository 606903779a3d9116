// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Strategies by name.
#include <fmt/format.h>

#include <string>

#include "core/joined.hpp"
#include "core/names.hpp"
#include "tangram/config.hpp"

namespace tangram {

namespace {

constexpr Names<Strategy, 9> kNames = {{{Strategy::kAuto, "auto"},
                                        {Strategy::kTangram, "tangram"},
                                        {Strategy::kUlysses, "ulysses"},
                                        {Strategy::kHcms, "hcms"},
                                        {Strategy::kRing, "ring"},
                                        {Strategy::kAllGather, "all_gather"},
                                        {Strategy::kUsp, "usp"},
                                        {Strategy::kLoongTrain, "loong_train"},
                                        {Strategy::kHybridCp, "hybrid_cp"}}};

}  // namespace

std::string_view to_string(Strategy strategy) { return name_in(kNames, strategy); }

Strategy parse_strategy(std::string_view name) { return value_in(kNames, name, "parse_strategy"); }

std::string describe(const StrategyConfig& strategy) {
  std::string text(to_string(strategy.name));
  if (strategy.ulysses_degree > 0) text += fmt::format(", {} head ranks", strategy.ulysses_degree);
  if (strategy.inner_ring_size > 0) text += fmt::format(", inner ring of {}", strategy.inner_ring_size);
  if (!strategy.head_chunks.empty()) text += fmt::format(", head chunks {}", joined(strategy.head_chunks, "+"));
  if (strategy.document_rows > 0) text += fmt::format(", documents whole up to {} rows", strategy.document_rows);
  return text;
}

}  // namespace tangram
