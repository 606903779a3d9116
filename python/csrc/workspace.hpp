// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The memory in which a call computes, as Python passes it.
#pragma once

#include <cstdint>
#include <utility>

#include "tangram/attention.hpp"

namespace tangram::python {

/// Address and bytes of device memory that is the call's in stream order; (0, 0): none.
using Workspace = std::pair<uintptr_t, int64_t>;

inline AttnWorkspace as_workspace(const Workspace& workspace) {
  return {reinterpret_cast<void*>(workspace.first), workspace.second};
}

}  // namespace tangram::python
