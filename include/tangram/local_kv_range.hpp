// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// LocalKvRange: keys of a mask that also lie in other tensors, as a rank's own keys do.
#pragma once

#include <cstdint>

#include "tangram/range.hpp"

namespace tangram {

/// `keys` are rows [row, row + keys.size()) of the other tensors.
struct LocalKvRange {
  Range keys;
  int64_t row = 0;

  friend bool operator==(const LocalKvRange&, const LocalKvRange&) = default;
};

}  // namespace tangram
