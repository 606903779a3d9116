// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What a failure that a kernel reported means, in words and as an exception.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cuda/wait_context.hpp"

namespace tangram::comm {

/// Names the operation, the stage, the rank that is to blame and the rank that noticed. `passes[n]` is the label of
/// pass n, `reason` what the rank to blame said when it gave up.
std::string failure_text(const cuda::WaitFailure& failure, const std::vector<std::string>& passes, double timeout_s,
                         std::string_view reason);

/// Throws Timeout when the failure is a wait in vain, else CommError.
[[noreturn]] void throw_failure(const cuda::WaitFailure& failure, const std::string& text);

}  // namespace tangram::comm
