// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The two passes of attention.
#pragma once

namespace tangram {

enum class AttnPass : int { kForward = 0, kBackward = 1 };

/// Passes for which something is prepared or needed.
enum class AttnPasses : int { kBoth = 0, kForward = 1, kBackward = 2 };

/// Which backward calls something is prepared for: deterministic ones, whose additions wait for each other, the others,
/// or both.
enum class BackwardCalls : int { kBoth = 0, kDefault = 1, kDeterministic = 2 };

}  // namespace tangram
