// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// How two processes find out that they are ranks of one job, before either believes anything that the other says.
//
// NOTE [handshake]: the connecting side says hello, with a nonce. The accepting side answers with its own nonce and a
// proof that it knows the job's secret. Then the connecting side proves it, and is told that it is accepted. A proof is
// a keyed hash of both nonces, the hello and the accepting rank. It cannot be replayed, is worthless to another job or
// rank, and does not reveal the secret.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "comm/socket/hmac_sha256.hpp"

namespace tangram::comm {

using Nonce = std::array<uint8_t, 16>;

/// Drawn by the system. Throws CommError when it cannot.
Nonce new_nonce();

// Messages as they are sent; none has padding.
struct Hello {
  static constexpr uint32_t kMagic = 0x74676d69;

  uint32_t magic = kMagic;
  int32_t rank = 0;
  int32_t size = 0;
  uint32_t port = 0;  // where the rank listens, network order (tcp)
  Nonce nonce = {};
};
static_assert(sizeof(Hello) == 32);

struct Challenge {
  Nonce nonce = {};
  Digest proof = {};
};
static_assert(sizeof(Challenge) == 48);

struct Welcome {
  static constexpr uint32_t kTaken = 1, kOtherSize = 2, kTwice = 3;

  uint32_t verdict = 0;
  int32_t size = 0;  // of the rank that accepts
};
static_assert(sizeof(Welcome) == 8);

enum class Side : char { kAccepts = 'a', kConnects = 'c' };

/// Digest that `side` sends to prove that it knows the secret.
Digest prove(std::string_view secret, Side side, int accepting_rank, const Hello& hello, const Nonce& accepting_nonce);

}  // namespace tangram::comm
