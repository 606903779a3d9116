// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// DeviceNodeWork: NodeWork on a GPU.
#pragma once

#include <array>
#include <optional>

#include "comm/device/streams.hpp"
#include "comm/nccl/shared_buffer.hpp"
#include "comm/nodes/node_work.hpp"

namespace tangram::comm {

class DeviceNodeWork final : public NodeWork {
 public:
  /// `is_exact`: shared memory is no larger than what is wanted.
  explicit DeviceNodeWork(bool is_exact) : is_exact_(is_exact) {}

  void* relay_stream() override { return stream_.get(); }
  std::shared_ptr<void> zeros(size_t num_bytes) override;
  std::shared_ptr<void> shared(size_t which, size_t num_bytes) override;
  int64_t shared_bytes() const override;
  int64_t free_bytes() const override;
  bool is_captured(void* stream) override;
  std::unique_ptr<Moves> make_moves(const std::vector<Chunk>& chunks,
                                    const std::vector<std::vector<char*>>& bases) override;
  std::unique_ptr<Mark> make_mark() override;

 private:
  const bool is_exact_;
  OwnedStream stream_;
  std::array<std::optional<SharedBuffer>, kNumShared> shared_;
};

}  // namespace tangram::comm
