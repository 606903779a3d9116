// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Masks of head groups on host backends, which compute one mask a call: one call for each group.
#pragma once

#include <cstddef>
#include <functional>

#include "tangram/attention.hpp"

namespace tangram {

/// The shape of one of `num_masks` equal groups of heads.
AttnShape shape_of_group(const AttnShape& shape, int num_masks);

/// Attention of all heads of `shape`: `forward` and `backward` compute group g, of shape_of_group. Checks
/// arguments like a call of all heads. Awaited keys and local K/V are not supported.
void forward_by_groups(int num_masks, const AttnShape& shape, const AttnForwardArgs& args,
                       const std::function<void(size_t, const AttnForwardArgs&)>& forward);
void backward_by_groups(int num_masks, const AttnShape& shape, const AttnBackwardArgs& args,
                        const std::function<void(size_t, const AttnBackwardArgs&)>& backward);

}  // namespace tangram
