// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What all plans of a DistMaskBuffer have alike, and whether one is such a plan.
#pragma once

#include <cstdint>
#include <string>

#include "tangram/dist_mask_buffer.hpp"
#include "tangram/plan.hpp"

namespace tangram {

struct BufferShape {
  HeadConfig heads;
  DType reduce_dtype = DType::kFloat32;
  int cp_size = 1;
  int64_t q_rows = 0, k_rows = 0;

  friend bool operator==(const BufferShape&, const BufferShape&) = default;
};
BufferShape shape_of(const Plan& plan);

/// Why a plan cannot be set, alike on all ranks, or nothing.
std::string misfit(const Plan& plan, const BufferShape& shape, const DistMaskCapacity& capacity);

}  // namespace tangram
