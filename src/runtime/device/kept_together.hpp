// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Pieces of kept memory that are written, copied and waited for as one: each copy costs the host microseconds.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/device/program_device.hpp"

namespace tangram {

class KeptTogether {
 public:
  /// Memory as of ProgramDevice::keep, that is there once keep() has returned, which calls `write`.
  std::shared_ptr<const KeptMemory> add(size_t bytes, std::function<void(std::byte*)> write);
  /// Once, after all add().
  void keep(const ProgramDevice& device);

 private:
  struct Block {
    std::shared_ptr<const KeptMemory> memory;
  };
  class Piece;
  struct Write {
    size_t offset = 0;
    std::function<void(std::byte*)> write;
  };

  std::shared_ptr<Block> block_ = std::make_shared<Block>();
  std::vector<Write> writes_;
  size_t bytes_ = 0;
};

}  // namespace tangram
