// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Head groups that see different cells, on backends that take one mask a call: a call for each group, in host memory.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "tangram/attention.hpp"

namespace tangram {

/// The shape of one of `num_masks` equal groups of heads.
AttnShape shape_of_group(const AttnShape& shape, int num_masks);

/// AttnBackend::forward and backward of all heads; `masks[g]` is of group g and shape_of_group. Arguments are checked
/// as a call of all heads would. Keys come in time and lie in k and v.
void forward_by_groups(const AttnBackend& backend, std::span<const std::unique_ptr<PreparedMask>> masks,
                       const AttnShape& shape, const AttnForwardArgs& args, void* stream);
void backward_by_groups(const AttnBackend& backend, std::span<const std::unique_ptr<PreparedMask>> masks,
                        const AttnShape& shape, const AttnBackwardArgs& args, void* stream);

}  // namespace tangram
