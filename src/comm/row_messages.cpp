// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/row_messages.hpp"

#include <algorithm>

#include "comm/row_moves.hpp"

namespace tangram::comm {

namespace {

template <class Views>
bool all_contiguous(const Views& views) {
  return std::all_of(views.begin(), views.end(), [](const auto& view) { return view.contiguous() || view.rows == 0; });
}

}  // namespace

RowMessages::RowMessages(const Operation& operation, Caller caller) : operation_(operation), caller_(caller) {
  const bool is_copy = operation.kind() == OpKind::kGroupCast || operation.kind() == OpKind::kAllToAllV;
  stages_in_ = !is_copy || !all_contiguous(operation.targets);
  add_incoming(stages_in_);
  add_outgoing(!all_contiguous(operation.sources));
}

void RowMessages::add_incoming(bool staged) {
  for (const TensorView& tensor : operation_.targets) {
    for (const RowCopy& piece : operation_.incoming) {
      TensorView rows = slice_rows(tensor, piece.rows);
      if (staged) {
        in_.emplace_back(rows.dtype, rows.rows, rows.heads, rows.dim);
        rows = in_.back().view();
      }
      if (piece.peer != caller_.rank) incoming_.push_back({piece.peer, rows.data, rows.rows * rows.row_bytes()});
    }
  }
}

void RowMessages::add_outgoing(bool staged) {
  for (const ConstTensorView& tensor : operation_.sources) {
    for (const RowCopy& piece : operation_.outgoing) {
      if (piece.peer == caller_.rank) continue;
      ConstTensorView rows = slice_rows(tensor, piece.rows);
      if (staged) {
        out_.emplace_back(rows.dtype, rows.rows, rows.heads, rows.dim);
        copy_rows(rows, out_.back());
        rows = out_.back();
      }
      outgoing_.push_back({piece.peer, rows.data, rows.rows * rows.row_bytes()});
    }
  }
}

void RowMessages::finish() {
  const std::span<const RowCopy> own_out = pieces_of(operation_.outgoing, caller_.rank);
  const auto source = [&](int peer, size_t piece_idx, size_t tensor_idx) {
    if (peer == caller_.rank) return slice_rows(operation_.sources[tensor_idx], own_out[piece_idx].rows);
    const size_t first = static_cast<size_t>(pieces_of(operation_.incoming, peer).data() - operation_.incoming.data());
    return ConstTensorView(in_[tensor_idx * operation_.incoming.size() + first + piece_idx]);
  };
  if (stages_in_) {
    receive_rows(operation_, caller_.rank, caller_.size, source);
  } else if (!own_out.empty()) {
    const RowCopy& own_in = pieces_of(operation_.incoming, caller_.rank).front();
    copy_rows(source(caller_.rank, 0, 0), slice_rows(operation_.targets[0], own_in.rows));
  }
}

}  // namespace tangram::comm
