// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The end of an NCCL communicator that may not end.
#pragma once

#include "comm/nccl/nccl_api.hpp"

namespace tangram::comm {

constexpr double kAbort_s = 2;

/// ncclCommAbort, on a thread of its own: it waits for threads of NCCL, which may wait for a network that is gone. Left
/// behind with its memory after `limit_s`; returns whether it came back.
bool abort_or_leave(const NcclApi& api, NcclApi::Comm comm, double limit_s = kAbort_s) noexcept;

}  // namespace tangram::comm
