// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Transport over a process group that Python knows, such as one of torch.distributed: all it needs from Python is one
// function that swaps bytes with every peer.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "bind.hpp"
#include "comm/progress_communicator.hpp"

namespace tangram::python {

/// `swap(tag, sends, recvs, what)` sends `sends[r]` to rank r and fills `recvs[r]` from it, both writable byte buffers
/// or None, and returns when both are done. It raises tangram.Timeout or tangram.CommError when a peer does not come.
/// `post(tag, sends)` sends without waiting. Messages of one tag between two ranks arrive in order. Both are called
/// from any thread and must outlive the transport.
///
/// An operation is two swaps: signatures of fixed size, by which every rank finds the same disagreement before rows
/// move, and then the rows, packed by peer.
class GroupTransport final : public comm::Transport {
 public:
  GroupTransport(comm::Place place, nb::handle swap, nb::handle post) : place_(place), swap_(swap), post_(post) {}

  comm::Place place() const override { return place_; }
  std::string_view name() const override { return "torch"; }
  void execute(comm::Operation& operation, double& started_s) override;
  void abort(std::string_view reason) noexcept override;

 private:
  using Buffers = std::vector<std::vector<std::byte>>;

  size_t block_bytes() const;
  std::vector<std::byte> encode(const comm::Signature& signature) const;
  comm::Signature decode(const std::vector<std::byte>& block, int rank) const;
  void agree(const comm::Operation& operation);
  void move_rows(comm::Operation& operation);
  void swap(int tag, Buffers& sends, Buffers& recvs, const std::string& what);

  comm::Place place_;
  nb::handle swap_;
  nb::handle post_;
};

}  // namespace tangram::python
