// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The tensors of a device pass: their sizes, and whether what is given to a call is what the pass was prepared for.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tangram/device_communicator.hpp"

namespace tangram::comm {

/// Bytes of a row of each receive buffer.
std::vector<int64_t> recv_row_bytes(const DevicePassSpec& spec);
/// Bytes of a row of each return tensor as it moves.
std::vector<int64_t> return_row_bytes(const DevicePassSpec& spec);

// Each throws InvalidArgument naming what does not fit.
void check_sources(const DevicePassSpec& spec, std::span<const ConstTensorView> sources, int64_t min_rows);
void check_partials(const DevicePassSpec& spec, std::span<const ConstTensorView> partials);
void check_sums(const DevicePassSpec& spec, std::span<const ConstTensorView> own, std::span<const TensorView> sums);

}  // namespace tangram::comm
