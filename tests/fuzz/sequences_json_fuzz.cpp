// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Sequences from strangers: refused with InvalidArgument, or a tree whose rows see themselves and rows before.
#include <cstdint>
#include <string_view>

#include "cli/sequences_file.hpp"
#include "fuzz/fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tangram;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  fuzz::accepts_or_refuses([&] {
    const cli::PrefixTree tree = cli::parse_sequences_json(text, "fuzz");
    const Mask& mask = tree.mask;
    FUZZ_CHECK(mask.seqlen_q() == mask.seqlen_k() && mask.seqlen_q() > 0);
    FUZZ_CHECK(tree.num_sequences > 0 && tree.sequence_tokens >= mask.seqlen_q());
    for (const AttnSlice& slice : mask.slices()) FUZZ_CHECK(slice.k_range.begin <= slice.q_range.begin);
    FUZZ_CHECK(mask.area() >= mask.seqlen_q());
  });
  return 0;
}
