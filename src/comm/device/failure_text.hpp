// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What a failure that a kernel reported means, in words and as an exception.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cuda/wait_context.hpp"

namespace tangram::comm {

/// Text of the operation that is waited for: `group_cast 'forward' stage 0`; empty if nothing waits. `passes[n]` is the
/// label of pass n.
std::string operation_text(const cuda::WaitFailure& failure, const std::vector<std::string>& passes);

/// Names of ranks in errors.
struct RankNames {
  std::vector<int> numbers;        // by rank; none: 0, 1, ...
  std::vector<std::string> nodes;  // by rank; none: nodes have no names

  int number(int rank) const { return numbers.empty() ? rank : numbers[static_cast<size_t>(rank)]; }
  /// `rank 12`, or `rank 12 (node b)`.
  std::string text(int rank) const;
};

/// Names the operation, the stage, the rank that is to blame, its node, and the rank that noticed. `reason` is what
/// the rank to blame said when it gave up; of kCall, what differs.
std::string failure_text(const cuda::WaitFailure& failure, const std::vector<std::string>& passes, double timeout_s,
                         std::string_view reason, const RankNames& names);

/// Throws Timeout when the failure is a wait in vain, InvalidArgument when ranks make different calls, else CommError.
[[noreturn]] void throw_failure(const cuda::WaitFailure& failure, const std::string& text);

}  // namespace tangram::comm
