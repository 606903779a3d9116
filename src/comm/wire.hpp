// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Signatures as bytes of one size, so that receives can be posted before anything is known of the peer's operation.
#pragma once

#include <cstddef>
#include <vector>

#include "comm/operation.hpp"

namespace tangram::comm {

size_t encoded_size(int num_ranks);
/// Long labels and texts are cut.
std::vector<char> encode(const Signature& signature, int num_ranks);
Signature decode(const std::vector<char>& bytes, int num_ranks);

}  // namespace tangram::comm
