// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Machine constants from strangers: refused with InvalidArgument, or good enough to simulate with.
#include <cstdint>
#include <string_view>

#include "cli/machine_file.hpp"
#include "fuzz/fuzz.hpp"
#include "tangram/mask_builders.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tangram;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  fuzz::accepts_or_refuses([&] {
    const cli::MachineFile file = cli::parse_machine_file(text, "fuzz");
    const std::string json = cli::machine_file_to_json(file);
    FUZZ_CHECK(cli::machine_file_to_json(cli::parse_machine_file(json, "fuzz")) == json);
    DistAttnConfig config;
    config.cp_size = 4;
    const MachineModel machine = cli::choose_machine(file, {}, config.heads, "fuzz");
    for (const std::string_view strategy : simulated_strategies()) {
      const StrategyPrediction prediction = simulate(causal_mask(1024, 1024), config, machine, strategy);
      FUZZ_CHECK(prediction.step_s() >= 0);
    }
  });
  return 0;
}
