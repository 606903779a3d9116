// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Capacity that masks as data (tangram/mask_data.hpp) need in a buffer whose kernels do not gather, computed without
// the data. For kernels that gather see builder::block_lists_of.
#pragma once

#include <cstdint>

#include "tangram/attn_shape.hpp"
#include "tangram/mask_capacity.hpp"
#include "tangram/mask_data.hpp"

namespace tangram::schedule {

/// Rows of blocks of a table, at least.
inline constexpr int64_t kLeastBlock = 16;

/// Whether blocks of such a capacity fill the steps of kernels that do not gather, and are the same for all heads, as
/// these kernels need.
bool fills_steps(const MaskCapacity& capacity);

/// Capacity of the lists of a buffer that does not gather: `capacity`, except for blocks that fill steps.
MaskCapacity list_capacity(const MaskCapacity& capacity);

/// Throws InvalidArgument for data that a buffer made for blocks does not take.
void check_is_blocks(const MaskData& data);

/// Throws InvalidArgument, naming the function that takes such data and what to make larger, for a mask that lists of
/// `room`, of list_capacity(), cannot hold.
void check_capacity(const MaskData& data, const AttnShape& shape, const MaskCapacity& room);

}  // namespace tangram::schedule
