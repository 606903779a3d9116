// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/socket/handshake.hpp"

#include <sys/random.h>

#include <string>

#include "tangram/error.hpp"

namespace tangram::comm {

namespace {

template <class Plain>
void append(std::string& text, const Plain& value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

}  // namespace

Nonce new_nonce() {
  Nonce nonce;
  if (::getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size())) {
    throw CommError("SocketGroup: the system must be able to draw random bytes (got none)");
  }
  return nonce;
}

Digest prove(std::string_view secret, Side side, int accepting_rank, const Hello& hello, const Nonce& accepting_nonce) {
  std::string message = "tangram handshake ";
  append(message, side);
  append(message, static_cast<int32_t>(accepting_rank));
  append(message, hello);
  append(message, accepting_nonce);
  return hmac_sha256(secret, message);
}

}  // namespace tangram::comm
