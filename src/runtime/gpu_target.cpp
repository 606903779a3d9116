// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "runtime/gpu_target.hpp"

#include <fmt/format.h>

#include "tangram/error.hpp"

namespace tangram {

namespace {

/// Attention calls of a pass with `num_stages`.
KeyCalls resolve_calls(DeviceOverlap wanted, int num_stages, int num_ranks, const GpuAbilities& abilities) {
  if (wanted == DeviceOverlap::kStages) return KeyCalls::kByStage;
  if (wanted == DeviceOverlap::kNone || num_stages == 1) return KeyCalls::kOnce;
  const int num_flags = (num_stages - 1) * num_ranks;
  const bool can = abilities.transfers.wait_for_rows && num_flags <= abilities.max_ready_flags;
  if (wanted == DeviceOverlap::kAuto) {
    if (!can || abilities.shares_gpus) return KeyCalls::kByStage;
    return abilities.wants_all_keys ? KeyCalls::kOnce : KeyCalls::kAsTheyCome;
  }
  if (can) return KeyCalls::kAsTheyCome;
  throw NotAvailable(
      fmt::format("DistAttention: single_launch needs a transport with arrival flags, a backend that waits for "
                  "them, and at most {} stages times ranks (got {}, {}, {})",
                  abilities.max_ready_flags, abilities.transport, abilities.backend, num_flags));
}

/// Where peers push, a step between ranks hides that they tell each other; else ranks move in step anyhow.
int ring_buffer_steps(RecvBufferReuse reuse) {
  switch (reuse) {
    case RecvBufferReuse::kNone: return -1;
    case RecvBufferReuse::kInOrder: return 0;
    case RecvBufferReuse::kByCredit: return 1;
  }
  return -1;
}

}  // namespace

ProgramTarget gpu_target(const Plan& plan, int rank, const GpuAbilities& abilities, DeviceOverlap forward,
                         DeviceOverlap backward, bool with_backward) {
  ProgramTarget target;
  target.ring_buffer_steps = ring_buffer_steps(abilities.transfers.recv_buffer_reuse);
  if (!moves_kv_alone(plan)) return target;
  const RankPlan& own = plan.ranks()[static_cast<size_t>(rank)];
  target.forward_calls = resolve_calls(forward, static_cast<int>(own.forward.size()), plan.cp_size(), abilities);
  if (with_backward) {
    target.backward_calls = resolve_calls(backward, static_cast<int>(own.backward.size()), plan.cp_size(), abilities);
  }
  const bool are_all_there = target.forward_calls == KeyCalls::kOnce && target.backward_calls == KeyCalls::kOnce;
  if (!(abilities.wants_all_keys && are_all_there)) target.local_kv_halo = abilities.local_kv_halo;
  target.stores_at_owners = abilities.transfers.store_at_owners;
  return target;
}

}  // namespace tangram
