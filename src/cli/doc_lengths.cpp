// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/doc_lengths.hpp"

#include <algorithm>
#include <charconv>
#include <random>

#include "cli/bounded_json.hpp"
#include "cli/embedded.hpp"
#include "core/require.hpp"

namespace tangram::cli {

namespace {

constexpr int64_t kMaxLength = int64_t{1} << 31;
constexpr int64_t kMaxCount = int64_t{1} << 40;

// A whole number in [0, bound), the same on every machine (std::uniform_int_distribution is not). Bounds
// stay below 2^41, so that 53 random bits and IEEE doubles are enough.
int64_t draw_below(std::mt19937_64& random, int64_t bound) {
  return static_cast<int64_t>(static_cast<double>(random() >> 11) * 0x1p-53 * static_cast<double>(bound));
}

bool is_separator(char c) { return c == ',' || c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

int64_t parse_number(std::string_view word, std::string_view what) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  require(error == std::errc() && end == word.data() + word.size(), "{}: must be whole numbers (got '{}')", what,
          word.substr(0, 40));
  return value;
}

}  // namespace

LengthHistogram parse_length_histogram(std::string_view json, std::string_view what) {
  const Json root = parse_bounded_json(json, what);
  static constexpr std::string_view kKeys[] = {"about", "intervals"};
  static constexpr std::string_view kIntervalKeys[] = {"lo", "hi", "count"};
  require_known_keys(root, what, kKeys);
  require(root.contains("intervals") && root["intervals"].is_array() && !root["intervals"].empty(),
          "{}: needs a list 'intervals' that is not empty", what);
  LengthHistogram histogram;
  int64_t total = 0;
  for (const Json& entry : root["intervals"]) {
    const std::string name = fmt::format("intervals[{}]", histogram.size());
    require_known_keys(entry, fmt::format("{}: {}", what, name), kIntervalKeys);
    for (const std::string_view key : kIntervalKeys) require(entry.contains(key), "{}: {} needs '{}'", what, name, key);
    LengthInterval interval;
    interval.lo = whole_number(entry["lo"], what, name + ".lo", 0, kMaxLength);
    interval.hi = whole_number(entry["hi"], what, name + ".hi", interval.lo, kMaxLength);
    interval.count = whole_number(entry["count"], what, name + ".count", 0, kMaxCount);
    total += interval.hi > 0 ? interval.count : 0;
    require(total <= kMaxCount, "{}: counts must sum up to at most 2^40", what);
    histogram.push_back(interval);
  }
  require(total > 0, "{}: needs at least one document that is not empty", what);
  return histogram;
}

const LengthHistogram& shipped_length_histogram() {
  static const LengthHistogram histogram = parse_length_histogram(embedded::kDocLengths, "length histogram");
  return histogram;
}

std::vector<int64_t> draw_doc_lengths(const LengthHistogram& histogram, int64_t total_seqlen, uint64_t seed) {
  require(0 < total_seqlen && total_seqlen <= kMaxLength, "--total-seqlen: must lie in [1, 2^31] (got {})",
          total_seqlen);
  int64_t total_count = 0;
  for (const LengthInterval& interval : histogram) total_count += interval.count;
  const int64_t longest = std::max<int64_t>(1, total_seqlen / 4);
  std::mt19937_64 random(seed);
  std::vector<int64_t> lengths;
  for (int64_t left = total_seqlen; left > 0;) {
    int64_t at = draw_below(random, total_count);
    const auto interval = std::find_if(histogram.begin(), histogram.end(), [&at](const LengthInterval& candidate) {
      at -= candidate.count;
      return at < 0;
    });
    const int64_t length = interval->lo + draw_below(random, interval->hi - interval->lo + 1);
    if (length == 0) continue;
    lengths.push_back(std::min({length, longest, left}));
    left -= lengths.back();
  }
  return lengths;
}

std::vector<int64_t> parse_number_list(std::string_view text, std::string_view what) {
  std::vector<int64_t> numbers;
  bool misses_number = true;  // since the last comma, or the beginning
  const auto refuse_gap = [&] {
    require(!misses_number, "{}: needs a number on either side of a comma (got '{}')", what, text.substr(0, 40));
  };
  for (size_t i = 0; i < text.size();) {
    if (is_separator(text[i])) {
      if (text[i] == ',') {
        refuse_gap();
        misses_number = true;
      }
      ++i;
      continue;
    }
    size_t end = i;
    while (end < text.size() && !is_separator(text[end])) ++end;
    numbers.push_back(parse_number(text.substr(i, end - i), what));
    misses_number = false;
    i = end;
  }
  if (!numbers.empty()) refuse_gap();
  return numbers;
}

std::vector<int64_t> parse_doc_lengths(std::string_view text, std::string_view what) {
  std::vector<int64_t> lengths;
  int64_t line_idx = 0;
  while (!text.empty()) {
    const size_t newline = text.find('\n');
    std::string_view line = text.substr(0, newline);
    text = newline == std::string_view::npos ? std::string_view() : text.substr(newline + 1);
    ++line_idx;
    while (!line.empty() && is_separator(line.back())) line.remove_suffix(1);
    while (!line.empty() && is_separator(line.front())) line.remove_prefix(1);
    if (line.empty() || line.front() == '#') continue;
    const int64_t length = parse_number(line, fmt::format("{}: line {}", what, line_idx));
    require(0 < length && length <= kMaxLength, "{}: line {}: lengths must lie in [1, 2^31] (got {})", what, line_idx,
            length);
    lengths.push_back(length);
  }
  require(!lengths.empty(), "{}: must name at least one document", what);
  return lengths;
}

std::vector<int64_t> cumulative(const std::vector<int64_t>& lengths, std::string_view what) {
  std::vector<int64_t> cu_seqlens{0};
  for (const int64_t length : lengths) {
    cu_seqlens.push_back(cu_seqlens.back() + length);
    require(cu_seqlens.back() <= kMaxLength, "{}: documents must sum up to at most 2^31 tokens", what);
  }
  return cu_seqlens;
}

}  // namespace tangram::cli
