// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// NodeWork: what a pass over two levels does on the device by itself, besides the passes that it is made of. An
// interface, so that such passes are tested over host memory.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "comm/device/chunk.hpp"
#include "tangram/tensor.hpp"

namespace tangram::comm {

class NodeWork {
 public:
  virtual ~NodeWork() = default;

  /// Copies of rows inside this rank's memory.
  class Moves {
   public:
    virtual ~Moves() = default;
    /// From `sources`, one for each tensor, to set `set` of the bases.
    virtual void run(std::span<const ConstTensorView> sources, size_t set, void* stream) = 0;
  };
  /// A point on a stream.
  class Mark {
   public:
    virtual ~Mark() = default;
    virtual void set(void* stream) = 0;
    /// Later work on `stream` waits for what was on the other one at the last set().
    virtual void wait(void* stream) = 0;
  };

  /// On which relayed rows are handed on.
  virtual void* relay_stream() = 0;
  virtual std::shared_ptr<void> zeros(size_t num_bytes) = 0;
  /// Memory number `which`, below kNumShared, of all passes that share memory: as large as the largest wants, with what
  /// others left. Where it grows, passes that were made before keep what they have.
  static constexpr size_t kNumShared = 12;
  virtual std::shared_ptr<void> shared(size_t which, size_t num_bytes) = 0;
  /// What shared() holds.
  virtual int64_t shared_bytes() const = 0;
  /// Memory that passes may still take.
  virtual int64_t free_bytes() const = 0;
  /// Whether work on `stream` is recorded into a CUDA graph instead of being run.
  virtual bool is_captured(void* stream) = 0;
  /// `bases[set][p]` is where chunks of `peer` p go.
  virtual std::unique_ptr<Moves> make_moves(const std::vector<Chunk>& chunks,
                                            const std::vector<std::vector<char*>>& bases) = 0;
  virtual std::unique_ptr<Mark> make_mark() = 0;
};

}  // namespace tangram::comm
