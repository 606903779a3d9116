// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "ways.hpp"

#include <charconv>

#include "core/require.hpp"

namespace tangram::bench {

namespace {

int number_of(std::string_view text, std::string_view way) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  require(error == std::errc{} && end == text.data() + text.size() && number > 0,
          "parse_way: numbers must be positive (got {})", way);
  return number;
}

std::vector<int> numbers_of(std::string_view text, std::string_view way) {
  std::vector<int> numbers;
  while (!text.empty()) {
    const size_t slash = text.find('/');
    numbers.push_back(number_of(text.substr(0, slash), way));
    text = slash == std::string_view::npos ? std::string_view{} : text.substr(slash + 1);
  }
  return numbers;
}

Way parse_strategy_way(std::string_view strategy, std::string_view suffix, std::string_view name) {
  Way way;
  const size_t slash = strategy.find('/');
  way.strategy.name = parse_strategy(strategy.substr(0, slash));
  std::vector<int> numbers;
  if (slash != std::string_view::npos) numbers = numbers_of(strategy.substr(slash + 1), name);
  if (way.strategy.name == Strategy::kHcms) {
    way.strategy.head_chunks = numbers;
  } else if (!numbers.empty()) {
    way.strategy.ulysses_degree = numbers[0];
    if (numbers.size() > 1) way.strategy.inner_ring_size = numbers[1];
  }
  require(suffix.empty() || suffix == "none" || suffix == "keep", "parse_way: unknown ending (got {})", name);
  if (suffix == "none") way.overlap = DeviceOverlap::kNone;
  way.keeps_heads = suffix == "keep";
  return way;
}

}  // namespace

Way parse_way(std::string_view name) {
  const size_t colon = name.find(':');
  const std::string_view kind = name.substr(0, colon);
  const std::string_view suffix = colon == std::string_view::npos ? std::string_view{} : name.substr(colon + 1);
  if (kind == "move") {
    Way way;
    way.movement = parse_movement(suffix);
    return way;
  }
  if (kind != "none" && kind != "single" && kind != "keep" && kind != "stages") {
    return parse_strategy_way(kind, suffix, name);
  }
  Way way;
  if (!suffix.empty()) way.num_stages = number_of(suffix, name);
  way.keeps_rows = kind == "keep";
  if (kind == "none") way.overlap = DeviceOverlap::kNone;
  if (kind == "stages") way.overlap = DeviceOverlap::kStages;
  return way;
}

std::vector<std::string> ways_of_all_strategies() {
  return {"none",      "single:1", "keep:1", "ulysses",    "ulysses:none", "ulysses:keep", "hcms",
          "hcms:keep", "ring",     "usp",    "all_gather", "loong_train",  "hybrid_cp"};
}

}  // namespace tangram::bench
