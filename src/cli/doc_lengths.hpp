// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Document lengths: read from files, or drawn from the histogram of a real corpus that ships inside the program.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tangram::cli {

/// Number of documents whose length lies in [lo, hi] tokens.
struct LengthInterval {
  int64_t lo = 0;
  int64_t hi = 0;
  int64_t count = 0;
};
using LengthHistogram = std::vector<LengthInterval>;

/// Parses `{"intervals": [{"lo": 0, "hi": 10, "count": 30254}, ...]}`; throws InvalidArgument, starting with `what`.
LengthHistogram parse_length_histogram(std::string_view json, std::string_view what);
/// The histogram of src/cli/data/doc_lengths.json, which is part of the program.
const LengthHistogram& shipped_length_histogram();

/// Draws documents until they fill `total_seqlen` tokens: an interval by its count, then a length uniformly inside it.
/// Empty documents are dropped, none is longer than a quarter of the total, and the last is cut to fit. The same seed
/// gives the same lengths on every machine.
std::vector<int64_t> draw_doc_lengths(const LengthHistogram& histogram, int64_t total_seqlen, uint64_t seed);

/// Positive whole numbers, one a line; empty lines and lines that start with # are skipped.
std::vector<int64_t> parse_doc_lengths(std::string_view text, std::string_view what);

/// Numbers separated by commas or white space. Throws InvalidArgument, starting with `what`, naming the first that is
/// none.
std::vector<int64_t> parse_number_list(std::string_view text, std::string_view what);

/// `[0, l0, l0 + l1, ...]`. Throws InvalidArgument, starting with `what`, when the sum exceeds 2^31.
std::vector<int64_t> cumulative(const std::vector<int64_t>& lengths, std::string_view what);

}  // namespace tangram::cli
