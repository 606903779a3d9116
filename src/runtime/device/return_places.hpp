// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Where the backward kernel of a rank stores each row of dk and dv: at the owner, in the result, or in the own part.
#pragma once

#include <vector>

#include "cuda/device_buffer.hpp"
#include "tangram/gradient_places.hpp"

namespace tangram::device {

struct DeviceRank;

/// GradientPlaces of a rank's backward pass, made once.
struct ReturnPlaces {
  cuda::DeviceBuffer of_key;  // [kv rows]
  cuda::DeviceBuffer others;  // [return slots, 2, ranks]: addresses of the return areas of dk and dv
  int num_ranks = 0;
  /// Whether the own part must be zeros before, since the transport reads rows of it that no query of this rank sees.
  bool clears_own = false;

  /// Without settled tensors. In return slot `slot`.
  GradientPlaces in_slot(int slot) const;
  size_t device_bytes() const { return of_key.bytes() + others.bytes(); }
};

/// Lets the backward kernel of `rank` store its results where they belong, if kernel and transport can: sets
/// backward.stores_returns and what belongs to it.
void prepare_returns(DeviceRank& rank);

}  // namespace tangram::device
