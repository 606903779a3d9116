// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// SymmetricHeap: device memory of every rank that every other rank can write. Ranks are processes of one host
// (descriptors over Unix sockets) or threads of one process, on several GPUs or on one.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "comm/heap/fd_exchange.hpp"
#include "comm/heap/mapping.hpp"
#include "tangram/communicator.hpp"

namespace tangram::comm {

/// One allocation of the group: a piece of memory of each rank, of the size that the rank asked for.
class SymmetricBlock {
 public:
  SymmetricBlock(int rank, std::vector<std::shared_ptr<Mapping>> mappings)
      : rank_(rank), mappings_(std::move(mappings)) {}

  /// Address of this rank's part; zeroed when allocated.
  char* local() const { return peer(rank_); }
  char* peer(int rank) const { return mappings_[static_cast<size_t>(rank)]->data(); }
  size_t bytes(int rank) const { return mappings_[static_cast<size_t>(rank)]->bytes(); }

 private:
  int rank_;
  std::vector<std::shared_ptr<Mapping>> mappings_;
};

class SymmetricHeap {
 public:
  /// Collective over `control`, which must outlive the heap. Uses the current device. Throws NotAvailable, alike on all
  /// ranks, when the ranks are on several hosts, or a GPU cannot reach another.
  SymmetricHeap(Communicator& control, double timeout_s);

  /// Collective; `bytes` may differ between ranks. Alike on all ranks: either all get it or all throw NotAvailable.
  std::unique_ptr<SymmetricBlock> allocate(size_t bytes, std::string_view label);

  int device() const { return device_; }
  /// Whether the ranks are threads of one process.
  bool in_process() const { return !fds_; }
  /// Whether any two ranks have the same GPU.
  bool shares_gpus() const { return shares_gpus_; }

 private:
  std::vector<std::shared_ptr<Mapping>> share_in_process(std::shared_ptr<Mapping> own);
  std::vector<std::shared_ptr<Mapping>> share_by_descriptor(std::shared_ptr<Mapping> own);

  Communicator& control_;
  int device_ = 0;
  bool shares_gpus_ = false;
  std::vector<int> devices_;  // that must reach this rank's memory through this process
  std::optional<FdExchange> fds_;
};

}  // namespace tangram::comm
