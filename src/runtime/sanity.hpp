// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What TANGRAM_SANITY_CHECK does about programs, on hosts and on streams.
#pragma once

#include <set>
#include <utility>

#include "plan/program/emit.hpp"
#include "tangram/attn_pass.hpp"

namespace tangram {

/// Verifies the programs of all ranks before the first call of a kind runs, for groups of two to four ranks and up to
/// 2^20 rows times heads.
class ProgramCheck {
 public:
  /// Throws InvalidArgument where the programs of `call`, with or without kept rows, are not free of faults.
  void before_call(const Plan& plan, const CallShape& call, const ProgramTarget& target, bool kept);

 private:
  std::set<std::pair<bool, CallShape>> verified_;
};

}  // namespace tangram
