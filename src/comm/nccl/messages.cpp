// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/nccl/messages.hpp"

#include <algorithm>

#include "comm/device/pass_tensors.hpp"

namespace tangram::comm {

namespace {

/// Rows with `peer`, `from` at the source and `to` at the target, neighbours joined. Sender and receiver come to the
/// same pieces in the same order.
PeerPieces pieces_with(std::span<const RowCopy> copies, int peer, bool sends) {
  PeerPieces pieces{peer, 0, {}};
  for (const RowCopy& copy : pieces_of(copies, peer)) {
    const Piece piece = sends ? Piece{copy.rows.begin, copy.peer_row, copy.rows.size()}
                              : Piece{copy.peer_row, copy.rows.begin, copy.rows.size()};
    pieces.rows += piece.rows;
    if (!pieces.pieces.empty()) {
      Piece& last = pieces.pieces.back();
      if (last.from + last.rows == piece.from && last.to + last.rows == piece.to) {
        last.rows += piece.rows;
        continue;
      }
    }
    pieces.pieces.push_back(piece);
  }
  return pieces;
}

/// One direction of a cast with one peer.
void add_cast(const PeerPieces& peer, const std::vector<int64_t>& row_bytes, bool sends, StageMessages& stage) {
  std::vector<Message>& messages = sends ? stage.sends : stage.recvs;
  int64_t& staging = sends ? stage.send_bytes : stage.recv_bytes;
  const bool direct = peer.pieces.size() <= kMaxDirectPieces;
  const int64_t begin = staging;
  for (size_t t = 0; t < row_bytes.size(); ++t) {
    for (const Piece& piece : peer.pieces) {
      const int64_t at = (sends ? piece.from : piece.to) * row_bytes[t], num_bytes = piece.rows * row_bytes[t];
      if (direct) {
        messages.push_back({peer.peer, static_cast<int>(t), at, num_bytes});
        continue;
      }
      if (sends) {
        append_chunks(stage.pack, at, staging, num_bytes, static_cast<int>(t), 0);
      } else {
        append_chunks(stage.unpack, staging, at, num_bytes, 0, static_cast<int>(t));
      }
      staging += num_bytes;
    }
    (sends ? stage.rows_sent : stage.rows_received) += peer.rows;
    (sends ? stage.bytes_sent : stage.bytes_received) += peer.rows * row_bytes[t];
  }
  if (!direct) messages.push_back({peer.peer, Message::kStaging, begin, staging - begin});
}

}  // namespace

std::vector<StageMessages> cast_messages(Caller caller, const DevicePassSpec& spec) {
  const std::vector<int64_t> row_bytes = recv_row_bytes(spec);
  std::vector<StageMessages> stages;
  for (const Exchange& exchange : spec.casts) {
    StageMessages& stage = stages.emplace_back();
    for (int step = 1; step < caller.size; ++step) {
      const int target = (caller.rank + step) % caller.size, source = (caller.rank + caller.size - step) % caller.size;
      const PeerPieces sent = pieces_with(exchange.sends, target, true);
      const PeerPieces received = pieces_with(exchange.recvs, source, false);
      if (sent.rows > 0) add_cast(sent, row_bytes, true, stage);
      if (received.rows > 0) add_cast(received, row_bytes, false, stage);
    }
  }
  return stages;
}

std::vector<StageMessages> return_messages(Caller caller, const DevicePassSpec& spec, const PassLayout& layout) {
  const std::vector<int64_t> row_bytes = return_row_bytes(spec);
  std::vector<StageMessages> stages(spec.reduces.size());
  for (size_t s = 0; s < stages.size(); ++s) {
    StageMessages& stage = stages[s];
    for (const PeerPieces& owner : layout.returns[s]) {
      for (size_t t = 0; t < row_bytes.size(); ++t) {
        const bool converts = spec.returns[t].partial_dtype != spec.returns[t].reduce_dtype;
        const int64_t num_bytes = owner.rows * row_bytes[t];
        stage.rows_sent += owner.rows;
        stage.bytes_sent += num_bytes;
        if (!converts && owner.pieces.size() == 1) {
          stage.sends.push_back({owner.peer, static_cast<int>(t), owner.pieces[0].from * row_bytes[t], num_bytes});
          continue;
        }
        stage.sends.push_back({owner.peer, Message::kStaging, stage.send_bytes, num_bytes});
        for (const Piece& piece : owner.pieces) {
          append_chunks(converts ? stage.convert : stage.pack, piece.from * row_bytes[t], stage.send_bytes,
                        piece.rows * row_bytes[t], static_cast<int>(t), 0);
          stage.send_bytes += piece.rows * row_bytes[t];
        }
      }
    }
    for (const int source : layout.return_sources[s]) {
      int64_t rows = 0;
      for (const RowCopy& copy : pieces_of(spec.reduces[s].sends, source)) rows += copy.rows.size();
      const int64_t begin = layout.return_begin[s * static_cast<size_t>(caller.size) + static_cast<size_t>(source)];
      for (size_t t = 0; t < row_bytes.size(); ++t) {
        stage.recvs.push_back({source, static_cast<int>(t), begin * row_bytes[t], rows * row_bytes[t]});
        stage.rows_received += rows;
        stage.bytes_received += rows * row_bytes[t];
      }
    }
  }
  return stages;
}

}  // namespace tangram::comm
