// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What kernels can do beside transfers of copy engines; also of hosts that have none.
#pragma once

#include "tangram/device_communicator.hpp"

namespace tangram {

inline constexpr KernelTransfers kCopyEngineTransfers{
    .wait_for_rows = true, .store_at_owners = true, .recv_buffer_reuse = RecvBufferReuse::kByCredit};

}  // namespace tangram
