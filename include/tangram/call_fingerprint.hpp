// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// CallFingerprint: a fingerprint of the call that an operation belongs to.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <optional>

#include "tangram/dtype.hpp"

namespace tangram {

/// Facts of a call that must be equal on all ranks and are in no table. They are mask and plan of a pass, and the
/// requested results. Sent in the headers of operations (Communicator::set_call_fingerprint). A word is a hash or the
/// value itself.
struct CallFingerprint {
  enum Fact : int {
    kMask,      ///< hash
    kDispatch,  ///< hash of who holds which rows
    kHeads,     ///< see heads_word
    kConfig,    ///< hash of all else that was planned
    kPass,      ///< 0 forward, 1 backward
    kScale,     ///< softmax_scale as a float's bits
    kSoftcap,   ///< likewise
    kSink,      ///< sinks of a row, and whether each row has its own: length * 2 + own
    kResults,   ///< which of the results that ranks combine or keep are wanted: bits, see Result
    kDTypes,    ///< of out, dout, dq, dk and dv where they move: see dtypes_word
    kRows,      ///< of what moves rows alone: hash of the dispatch
    kNumFields,
  };
  enum Result : uint64_t { kMaxLogits = 1, kKept = 2, kDsink = 4, kDsinkSum = 8, kDsinkAvg = 16 };

  uint32_t given = 0;  // bits of the facts that are set; unset facts are not compared
  uint32_t padding = 0;
  std::array<uint64_t, kNumFields> words = {};

  void set(Fact fact, uint64_t word) {
    given |= 1u << fact;
    words[fact] = word;
  }
  void set(Fact fact, float value) { set(fact, uint64_t{std::bit_cast<uint32_t>(value)}); }
  bool has(Fact fact) const { return (given >> fact & 1) != 0; }

  /// Heads up to 1023, dims up to 4095, and the number of a dtype.
  static uint64_t heads_word(int num_heads_q, int num_heads_kv, int head_dim, int head_dim_v, int dtype) {
    return static_cast<uint64_t>(num_heads_q) | static_cast<uint64_t>(num_heads_kv) << 16 |
           static_cast<uint64_t>(head_dim) << 32 | static_cast<uint64_t>(head_dim_v) << 44 |
           static_cast<uint64_t>(dtype) << 56;
  }

  /// A byte each: 0, or the number of a dtype and 1.
  static constexpr std::array kTypedTensors = {"out", "dout", "dq", "dk", "dv"};
  static uint64_t dtypes_word(const std::array<std::optional<DType>, kTypedTensors.size()>& dtypes) {
    uint64_t word = 0;
    for (size_t i = 0; i < dtypes.size(); ++i) {
      if (dtypes[i]) word |= (static_cast<uint64_t>(*dtypes[i]) + 1) << (8 * i);
    }
    return word;
  }

  friend bool operator==(const CallFingerprint&, const CallFingerprint&) = default;
};

}  // namespace tangram
