// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The receiving side of transfers in host memory: copies rows into place, or reduces them into its own in rank order.
#pragma once

#include <functional>
#include <span>

#include "comm/operation.hpp"

namespace tangram::comm {

/// Copies every row of `source` to the same row of `target`; equal shapes and dtypes.
void copy_rows(const ConstTensorView& source, const TensorView& target);

/// Where a peer's rows can be read: all rows of tensor `tensor_idx` that belong to piece `piece_idx` of
/// `pieces_of(operation.incoming, peer)`.
using PieceSource = std::function<ConstTensorView(int peer, size_t piece_idx, size_t tensor_idx)>;

/// Brings all incoming pieces into the targets as the kind of the operation says. `rank`: this rank.
void receive_rows(const Operation& operation, int rank, int size, const PieceSource& source);

}  // namespace tangram::comm
