// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What `make test` samples and `make test-long` runs whole.
#pragma once

#include <cstdlib>
#include <string_view>

namespace tangram::support {

/// Whether this is `make test-long`, which sets TANGRAM_TEST_LONG=1.
inline bool is_long_run() {
  const char* text = std::getenv("TANGRAM_TEST_LONG");
  return text != nullptr && std::string_view(text) == "1";
}

/// Which cases of a sweep to run: all in long runs, otherwise one in `one_in`, always the same ones. `one_in` shares no
/// factor with the lengths of the inner loops, so that every value of each meets others; of several sweeps over the
/// same cases each begins at another one, `start`, so that together they run all.
class Sample {
 public:
  explicit Sample(int one_in, int start = 0) : one_in_(is_long_run() ? 1 : one_in), next_(start) {}
  bool takes_next() { return next_++ % one_in_ == 0; }

 private:
  int one_in_, next_;
};

}  // namespace tangram::support
