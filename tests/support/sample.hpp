// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What `make test` samples, more thinly under sanitizers, and `make test-long` runs whole.
#pragma once

#include <cstdlib>
#include <string_view>

namespace tangram::support {

/// Whether this is `make test-long`, which sets TANGRAM_TEST_LONG=1.
inline bool is_long_run() {
  const char* text = std::getenv("TANGRAM_TEST_LONG");
  return text != nullptr && std::string_view(text) == "1";
}

/// Sanitized code takes five to ten times as long. What is looked for there, wrong accesses and races, is in a few
/// cases of a sweep as in many, and in small plans as in large ones.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// Which cases of a sweep to run: all in long runs, otherwise one in `one_in`, always the same ones; under sanitizers
/// an eighth as many. `one_in` shares no factor with the lengths of the inner loops, so that every value of each
/// meets others; of several sweeps over the same cases each begins at another one, `start`, so that together they run
/// all.
class Sample {
 public:
  explicit Sample(int one_in, int start = 0)
      : one_in_(is_long_run() ? 1
                : kSanitized  ? prime_from(8 * one_in)
                              : one_in),
        next_(start) {}
  bool takes_next() { return next_++ % one_in_ == 0; }

 private:
  static constexpr int prime_from(int number) {
    for (int divisor = 2; divisor * divisor <= number; ++divisor) {
      if (number % divisor == 0) return prime_from(number + 1);
    }
    return number;
  }

  int one_in_, next_;
};

/// Why tests of figures skip under sanitizers, where they take minutes: other tests call the same functions there.
inline constexpr const char* kFiguresOfPlans = "figures of plans, which the plain build compares";

/// How many rounds of a test of random cases to run; under sanitizers an eighth of `sampled`.
inline int rounds(int whole, int sampled) {
  if (is_long_run()) return whole;
  return kSanitized ? (sampled + 7) / 8 : sampled;
}

}  // namespace tangram::support
