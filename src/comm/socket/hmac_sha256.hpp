// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// HMAC-SHA-256 (RFC 2104, FIPS 180-4), by which ranks prove to each other that they know the secret of their job. Here
// because the library depends on no library of cryptography.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace tangram::comm {

using Digest = std::array<uint8_t, 32>;

Digest sha256(std::string_view message);
Digest hmac_sha256(std::string_view key, std::string_view message);

/// Takes equally long whatever differs, so that an attacker cannot find a digest byte by byte.
bool same_digest(const Digest& a, const Digest& b);

}  // namespace tangram::comm
