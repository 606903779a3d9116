// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Masks from strangers: refused with InvalidArgument, or valid and bounded.
#include <cstdint>
#include <string_view>

#include "cli/mask_json.hpp"
#include "fuzz/fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tangram;
  // The first byte chooses whether a case is asked for by name.
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  fuzz::accepts_or_refuses([&] {
    for (const Mask& mask : cli::parse_masks_json(text, data[0] % 2 == 1 ? "causal:64" : "", "fuzz")) {
      int64_t sum = 0;
      for (const AttnSlice& slice : mask.slices()) {
        FUZZ_CHECK(slice == canonical(slice));
        FUZZ_CHECK((Range{0, mask.seqlen_q()}.contains(slice.q_range)));
        FUZZ_CHECK((Range{0, mask.seqlen_k()}.contains(slice.k_range)));
        sum += area(slice);
      }
      FUZZ_CHECK(sum == mask.area());
      // Canonical form is a fixed point.
      const std::vector<AttnSlice> slices(mask.slices().begin(), mask.slices().end());
      FUZZ_CHECK(Mask(mask.seqlen_q(), mask.seqlen_k(), slices) == mask);
    }
  });
  return 0;
}
