// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/machine.hpp"

namespace tangram {

CostModel cost_model_of(const MachineModel& machine) {
  return {.forward_flops_per_s = machine.forward.flops_per_s,
          .backward_flops_per_s = machine.backward.flops_per_s,
          .link_bytes_per_s = machine.inside.bytes_per_s,
          .copy_latency_s = machine.inside.latency_s,
          .stage_overhead_s = machine.stage_overhead_s,
          .tile_rows = machine.forward.item_rows,
          .memory_bytes_per_s = machine.memory_bytes_per_s,
          .backward_key_row_s = machine.backward.items_by_keys
                                    ? machine.backward.item_s / machine.backward.item_rows / machine.workers
                                    : 0};
}

}  // namespace tangram
