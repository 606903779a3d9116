// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// DeviceNodeWork: NodeWork on a GPU.
#pragma once

#include "comm/device/streams.hpp"
#include "comm/nodes/node_work.hpp"

namespace tangram::comm {

class DeviceNodeWork final : public NodeWork {
 public:
  void* relay_stream() override { return stream_.get(); }
  std::shared_ptr<void> zeros(size_t num_bytes) override;
  std::unique_ptr<Moves> make_moves(const std::vector<Chunk>& chunks,
                                    const std::vector<std::vector<char*>>& bases) override;
  std::unique_ptr<Mark> make_mark() override;

 private:
  OwnedStream stream_;
};

}  // namespace tangram::comm
