// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/wire.hpp"

#include <algorithm>
#include <cstring>

#include "core/require.hpp"

namespace tangram::comm {

namespace {

struct WireHead {
  OpKind kind = OpKind::kBarrier;
  ReduceOp op = ReduceOp::kSum;
  uint64_t value = 0;
  CallFingerprint fingerprint;
  int32_t has_rows = 0;
  char label[132] = {};
  char text[400] = {};
};

template <size_t kSize>
void copy_text(char (&to)[kSize], const std::string& from) {
  std::memcpy(to, from.data(), std::min(from.size(), kSize - 1));
}

}  // namespace

size_t encoded_size(int num_ranks) { return sizeof(WireHead) + 2 * static_cast<size_t>(num_ranks) * sizeof(PeerRows); }

std::vector<char> encode(const Signature& signature, int num_ranks) {
  WireHead head;
  head.kind = signature.kind;
  head.op = signature.op;
  head.value = signature.value;
  head.fingerprint = signature.fingerprint;
  head.has_rows = signature.out.empty() ? 0 : 1;
  copy_text(head.label, signature.label);
  copy_text(head.text, signature.text);
  std::vector<char> bytes(encoded_size(num_ranks));
  std::memcpy(bytes.data(), &head, sizeof(head));
  if (head.has_rows) {
    const size_t rows_bytes = static_cast<size_t>(num_ranks) * sizeof(PeerRows);
    TANGRAM_ASSERT(std::ssize(signature.out) == num_ranks && std::ssize(signature.in) == num_ranks);
    std::memcpy(bytes.data() + sizeof(head), signature.out.data(), rows_bytes);
    std::memcpy(bytes.data() + sizeof(head) + rows_bytes, signature.in.data(), rows_bytes);
  }
  return bytes;
}

Signature decode(const std::vector<char>& bytes, int num_ranks) {
  TANGRAM_ASSERT(bytes.size() == encoded_size(num_ranks));
  WireHead head;
  std::memcpy(&head, bytes.data(), sizeof(head));
  head.label[sizeof(head.label) - 1] = '\0';
  head.text[sizeof(head.text) - 1] = '\0';
  Signature signature{head.kind, head.op, head.fingerprint, head.label, head.value, head.text, {}, {}};
  if (head.has_rows) {
    const size_t rows_bytes = static_cast<size_t>(num_ranks) * sizeof(PeerRows);
    signature.out.resize(static_cast<size_t>(num_ranks));
    signature.in.resize(static_cast<size_t>(num_ranks));
    std::memcpy(signature.out.data(), bytes.data() + sizeof(head), rows_bytes);
    std::memcpy(signature.in.data(), bytes.data() + sizeof(head) + rows_bytes, rows_bytes);
  }
  return signature;
}

}  // namespace tangram::comm
