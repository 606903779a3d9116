// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Work that another thread does for the current device.
#pragma once

#include <functional>

namespace tangram {

/// `work` for a thread on which another device may be current. Throws CudaError.
std::function<void()> on_current_device(std::function<void()> work);

}  // namespace tangram
