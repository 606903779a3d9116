// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The rule of dealing_rule.hpp as a Dealing.
#pragma once

#include "machine/gpu_model.hpp"
#include "schedule/dealing.hpp"
#include "schedule/extents.hpp"
#include "tangram/attn_shape.hpp"

namespace tangram::schedule {

/// Of lists that a GPU builds. Without the simulations of choose_dealing.
Dealing dealing_by_rule(const Extents& extents, const AttnShape& shape, const GpuModel& gpu, bool deterministic);

/// Of nested masks by that rule: sections of as many query heads as the L2 cache holds what belongs to them, as a
/// causal mask of the shape is dealt. A function of shape and GPU, whatever the mask; plays a few makespans.
Dealing dealing_in_sections(const AttnShape& shape, const GpuModel& gpu);

}  // namespace tangram::schedule
