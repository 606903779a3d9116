// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/device/device_mailbox.hpp"

#include <algorithm>
#include <numeric>

#include "core/require.hpp"

namespace tangram::comm {

namespace {

/// One row for each rank. The receive buffer has an inbox for each rank and then an outbox for each, so that sent rows
/// need no memory of their own.
DevicePassSpec box_spec(int rank, int size, int64_t box_bytes) {
  DevicePassSpec spec;
  spec.label = "rows";
  spec.recv_buffers = {
      {.rows = 2 * size, .heads = 1, .dim = static_cast<int>(box_bytes / 4), .dtype = DType::kFloat32}};
  Exchange& exchange = spec.casts.emplace_back();
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    exchange.sends.push_back({peer, {peer, peer + 1}, rank});
    exchange.recvs.push_back({peer, {peer, peer + 1}, rank});
  }
  return spec;
}

int64_t first_byte(std::span<const int64_t> bytes, int rank) {
  return std::accumulate(bytes.begin(), bytes.begin() + rank, int64_t{0});
}

}  // namespace

void DeviceMailbox::check(const ByteMoves& moves) const {
  const size_t size = static_cast<size_t>(communicator_.size()), rank = static_cast<size_t>(communicator_.rank());
  require(moves.send_bytes.size() == size && moves.recv_bytes.size() == size,
          "all_to_all: needs a count for each of {} ranks (got {} and {})", size, moves.send_bytes.size(),
          moves.recv_bytes.size());
  require(moves.send_bytes[rank] == moves.recv_bytes[rank],
          "all_to_all: a rank sends itself what it receives from itself (got {} and {} bytes)", moves.send_bytes[rank],
          moves.recv_bytes[rank]);
  for (size_t peer = 0; peer < size; ++peer) {
    const int64_t sent = moves.send_bytes[peer], received = moves.recv_bytes[peer];
    require(sent >= 0 && received >= 0 && (peer == rank || std::max(sent, received) <= moves.most_bytes),
            "all_to_all: counts must lie in [0, {}] (got {} to and {} from rank {})", moves.most_bytes, sent, received,
            peer);
  }
}

const DeviceMailbox::Box& DeviceMailbox::box_for(int64_t most_bytes, void* stream) {
  const bool is_small = most_bytes <= box_bytes_.small;
  Box& box = is_small ? small_ : large_;
  if (box.pass == nullptr) {
    device_.synchronize(stream);
    box.num_bytes = is_small ? box_bytes_.small : box_bytes_.large;
    box.pass = communicator_.prepare_pass(box_spec(communicator_.rank(), communicator_.size(), box.num_bytes));
  }
  return box;
}

void DeviceMailbox::exchange(const Box& box, const ByteMoves& moves, int64_t done, void* stream) {
  const int size = communicator_.size(), rank = communicator_.rank();
  const auto part = [&](int64_t num_bytes) { return std::clamp<int64_t>(num_bytes - done, 0, box.num_bytes); };
  const int slot = box.pass->begin(stream);
  const TensorView boxes = box.pass->recv_buffers(0, slot);
  const TensorView outboxes = slice_rows(boxes, {size, 2 * size});
  for (int peer = 0; peer < size; ++peer) {
    const int64_t num_bytes = part(moves.send_bytes[static_cast<size_t>(peer)]);
    if (peer == rank || num_bytes == 0) continue;
    const char* from = static_cast<const char*>(moves.send) + first_byte(moves.send_bytes, peer) + done;
    device_.copy(static_cast<char*>(outboxes.data) + peer * box.num_bytes, from, num_bytes, stream);
  }
  const ConstTensorView source = outboxes;
  box.pass->cast(0, {&source, 1}, stream);
  box.pass->wait_group_cast(0, stream);
  for (int peer = 0; peer < size; ++peer) {
    const int64_t num_bytes = part(moves.recv_bytes[static_cast<size_t>(peer)]);
    if (peer == rank || num_bytes == 0) continue;
    char* to = static_cast<char*>(moves.recv) + first_byte(moves.recv_bytes, peer) + done;
    device_.copy(to, static_cast<const char*>(boxes.data) + peer * box.num_bytes, num_bytes, stream);
  }
  box.pass->end(stream);
}

void DeviceMailbox::all_to_all(const ByteMoves& moves, void* stream) {
  check(moves);
  const int rank = communicator_.rank();
  try {
    if (const int64_t own = moves.send_bytes[static_cast<size_t>(rank)]; own > 0) {
      device_.copy(static_cast<char*>(moves.recv) + first_byte(moves.recv_bytes, rank),
                   static_cast<const char*>(moves.send) + first_byte(moves.send_bytes, rank), own, stream);
    }
    if (communicator_.size() == 1 || moves.most_bytes == 0) return;
    const Box& box = box_for(moves.most_bytes, stream);
    for (int64_t done = 0; done < moves.most_bytes; done += box.num_bytes) exchange(box, moves, done, stream);
  } catch (const std::exception& error) {
    communicator_.abort(error.what());  // peers wait for what this rank does not send
    throw;
  }
}

}  // namespace tangram::comm
