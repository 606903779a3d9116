// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What the calls of several ranks do not have in common, in words.
#pragma once

#include <span>
#include <string>

#include "tangram/call_fingerprint.hpp"

namespace tangram::comm {

/// `rank 0: A; ranks 1, 2: B` when the texts differ, otherwise empty. Text i is that of rank `ranks[i]`, i without.
std::string differing_texts(std::span<const std::string> texts, std::span<const int> ranks = {});

/// `masks differ (rank 0: 1f; rank 1: 2e); softcaps differ (rank 0: 0; rank 1: 5)`: everything that differs of itself,
/// empty: nothing. When ranks are at different calls, of which some say less, what those say is compared.
std::string differing_fields(std::span<const CallFingerprint> fingerprint, std::span<const int> ranks = {});

}  // namespace tangram::comm
