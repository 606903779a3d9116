// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Whether the ranks' specs of a pass fit together, found out before anything is allocated or sent.
#pragma once

#include <fmt/format.h>

#include <string>

#include "core/require.hpp"
#include "tangram/communicator.hpp"
#include "tangram/device_communicator.hpp"

namespace tangram::comm {

/// Ranks that words on the device can tell apart: of one node, and of one rail.
inline constexpr int kMaxRanksOfLevel = 64;

/// Throws InvalidArgument for more ranks than transports hold, before they connect. `ranks_per_node`: of
/// nodes whose ranks hand rows on, or 0 where each pair of ranks is connected.
void require_group_size(int size, int ranks_per_node);

/// Collective. Throws InvalidArgument on every rank when a spec is not valid by itself or does not fit the others'.
/// `recv_buffer_number` is the number of the pass whose receive buffers are shared, or -1.
void check_pass_spec(Communicator& control, const DevicePassSpec& spec, int recv_buffer_number,
                     int max_ranks = kMaxRanksOfLevel);

/// Throws InvalidArgument, on this rank alone, when a spec is not valid by itself.
void require_valid(int size, const DevicePassSpec& spec, int max_ranks = kMaxRanksOfLevel);

/// The pass of type `Pass` whose receive buffers `spec` shares, or null. Collective where it throws: InvalidArgument on
/// every rank when that is not a pass of `group` with equal receive buffers.
template <class Pass, class Group>
const Pass* pass_that_shares_recv_buffer(Communicator& control, const DevicePassSpec& spec, const Group& group) {
  const auto* shared = dynamic_cast<const Pass*>(spec.recv_buffers_of.get());
  if (spec.recv_buffers_of != nullptr && (shared == nullptr || !shared->shares_recv_buffer(group, spec.recv_buffers))) {
    const std::string reason =
        fmt::format("prepare_pass '{}': recv_buffers_of must be a pass of this communicator with equal receive buffers",
                    spec.label);
    control.refuse(reason);
    require(false, "{}", reason);
  }
  return shared;
}

/// Throws InvalidArgument for what no transport reduces.
void check_all_reduce(const float* device_values, int count, ReduceOp op);

}  // namespace tangram::comm
