// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Programs of plans, calls and targets that bytes choose: without a fault, whatever they are.
#include <cstdint>
#include <optional>

#include "fuzz/fuzz.hpp"
#include "plan/program/program_cases.hpp"
#include "plan/program/verify.hpp"
#include "tangram/error.hpp"

namespace {

/// Numbers from the bytes of an input, then the lowest ones.
class Bytes final : public tangram::testing::Draws {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  int64_t draw(int64_t lo, int64_t hi) override { return next_ == size_ ? lo : lo + data_[next_++] % (hi - lo + 1); }

 private:
  const uint8_t* data_;
  size_t size_, next_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tangram;
  Bytes bytes(data, size);
  std::optional<testing::Case> of;
  fuzz::accepts_or_refuses([&] { of = testing::random_case(bytes); });
  if (of) verify(*of->plan, of->call, step_programs(*of->plan, of->call, of->target, of->kept));  // throws for a fault
  return 0;
}
