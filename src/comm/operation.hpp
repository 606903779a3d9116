// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Operation: every collective in one form: rows that go out of `sources` and rows that come into `targets`. So a
// transport has only to move rows. And its signature, by which ranks find out that they do not mean the same operation
// before anything is sent.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tangram/communicator.hpp"
#include "tangram/exchange.hpp"
#include "tangram/tensor.hpp"

namespace tangram::comm {

enum class OpKind : int32_t {
  kGroupCast = 0,
  kGroupReduce,
  kGroupReduceLse,
  kAllToAllV,
  kAllReduce,
  kBarrier,
  kAgreement,
  kRefusal,
};
std::string_view to_string(OpKind kind);

/// Tensors that one operation may carry.
inline constexpr size_t kMaxTensors = 8;

/// Rows that go to or come from one peer: how many, and a hash of where they lie on both sides. What a sends to b must
/// equal what b expects from a.
struct PeerRows {
  int64_t rows = 0;
  uint64_t hash = 0;

  friend bool operator==(const PeerRows&, const PeerRows&) = default;
};

/// Everything on which the ranks must agree.
struct Signature {
  OpKind kind = OpKind::kBarrier;
  ReduceOp op = ReduceOp::kSum;
  CallFingerprint fingerprint;  // of the call that it belongs to
  std::string label;
  uint64_t value = 0;         // kAgreement: what must be equal; otherwise a hash of dtypes, heads and dims
  std::string text;           // kRefusal: why; otherwise dtypes, heads and dims in words
  std::vector<PeerRows> out;  // [size], by peer; empty when no rows move
  std::vector<PeerRows> in;   // [size]
};

struct Operation {
  Signature signature;
  std::vector<RowCopy> outgoing;  // by peer: rows of `sources`, and where they begin in the peer's `targets`
  std::vector<RowCopy> incoming;  // by peer: rows of `targets`, and where they begin in the peer's `sources`
  std::vector<ConstTensorView> sources;
  std::vector<TensorView> targets;
  /// Which call of this rank it belongs to; 0: none. See NOTE [refused calls].
  uint64_t call = 0;
  /// all_reduce works in place, so peers read a copy.
  std::vector<float> values;

  OpKind kind() const { return signature.kind; }
  /// `group_cast 'kv stage 1'`, for messages.
  std::string name() const;
};

/// The pieces of `copies`, which is sorted by peer, that concern one peer.
std::span<const RowCopy> pieces_of(std::span<const RowCopy> copies, int peer);

/// Which rank of how many makes the operation.
struct Caller {
  int rank = 0;
  int size = 1;
};

// Each checks its arguments and throws InvalidArgument naming the one that does not fit.
Operation make_group_cast(Caller caller, const Exchange& exchange, std::span<const CastTensor> tensors,
                          std::string_view label);
Operation make_group_reduce(Caller caller, const Exchange& exchange, std::span<const ReduceTensor> tensors, ReduceOp op,
                            std::string_view label);
Operation make_group_reduce_lse(Caller caller, const Exchange& exchange, const LseReduceTensors& tensors,
                                std::string_view label);
Operation make_all_to_all_v(Caller caller, const ConstTensorView& send, std::span<const int64_t> send_rows,
                            const TensorView& recv, std::span<const int64_t> recv_rows, std::string_view label);
Operation make_all_reduce(Caller caller, std::span<float> values, ReduceOp op, std::string_view label);
Operation make_barrier(std::string_view label);
Operation make_agreement(uint64_t value, std::string_view what);
Operation make_refusal(std::string_view reason);

/// Text of a disagreement between the ranks' operations, the same for every rank; empty if they fit. `signatures[r]` is
/// rank r's.
std::string find_disagreement(std::span<const Signature* const> signatures);

}  // namespace tangram::comm
