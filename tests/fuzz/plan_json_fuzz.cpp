// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Plans from strangers: refused with InvalidArgument, or the very plan that they spell.
#include <cstdint>
#include <string_view>

#include "fuzz/fuzz.hpp"
#include "tangram/plan.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tangram;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  fuzz::accepts_or_refuses([&] {
    const Plan plan = plan_from_json(text);
    FUZZ_CHECK(plan_from_json(plan_to_json(plan)) == plan);
    FUZZ_CHECK(!explain(plan).empty());
    FUZZ_CHECK(plan.peak_bytes(plan.cp_size() - 1) >= 0);
  });
  return 0;
}
