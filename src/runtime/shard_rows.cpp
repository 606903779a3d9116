// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// dispatch and undispatch: whole tensors to shards and back.
#include <algorithm>

#include "comm/row_moves.hpp"
#include "core/require.hpp"
#include "tangram/dist_attention.hpp"

namespace tangram {

namespace {

void check_shapes(const char* function, const Dispatch& dispatch, const ConstTensorView& global,
                  const ConstTensorView& shard) {
  require(global.rows == dispatch.seqlen() && shard.rows == dispatch.rows_per_rank(),
          "{}: global and shard must have {} and {} rows (got {} and {})", function, dispatch.seqlen(),
          dispatch.rows_per_rank(), shape_text(global), shape_text(shard));
  require(global.dtype == shard.dtype && global.heads == shard.heads && global.dim == shard.dim,
          "{}: global and shard must have equal dtype, heads and dim (got {} and {})", function, shape_text(global),
          shape_text(shard));
  require((global.data != nullptr && shard.data != nullptr) || global.empty(),
          "{}: global and shard must have memory (got null)", function);
}

void check_rank(const char* function, const Dispatch& dispatch, int rank) {
  require(rank >= 0 && rank < dispatch.cp_size, "{}: rank must lie in [0, {}) (got {})", function, dispatch.cp_size,
          rank);
}

/// Calls `visit(global rows, shard row)` for each run of a rank's shard.
template <class Visit>
void for_each_run(const Dispatch& dispatch, int rank, Visit visit) {
  int64_t shard_row = 0;
  for (const Range& rows : dispatch.rows_of_rank(rank)) {
    visit(rows, shard_row);
    shard_row += rows.size();
  }
}

/// Every rank's shard goes to every other rank's whole tensor.
Exchange gather_exchange(const Dispatch& dispatch, int rank) {
  Exchange exchange;
  for (int peer = 0; peer < dispatch.cp_size; ++peer) {
    if (peer == rank) continue;
    for_each_run(dispatch, rank, [&](Range rows, int64_t shard_row) {
      exchange.sends.push_back({peer, {shard_row, shard_row + rows.size()}, rows.begin});
    });
    for_each_run(dispatch, peer,
                 [&](Range rows, int64_t shard_row) { exchange.recvs.push_back({peer, rows, shard_row}); });
  }
  return exchange;
}

}  // namespace

void dispatch_rows(const Dispatch& dispatch, int rank, const ConstTensorView& global, const TensorView& shard) {
  check_rank("dispatch_rows", dispatch, rank);
  check_shapes("dispatch_rows", dispatch, global, shard);
  for_each_run(dispatch, rank, [&](Range rows, int64_t shard_row) {
    comm::copy_rows(slice_rows(global, rows), slice_rows(shard, {shard_row, shard_row + rows.size()}));
  });
}

void undispatch_rows(const Dispatch& dispatch, Communicator& communicator, const ConstTensorView& shard,
                     const TensorView& global) {
  const int rank = communicator.rank();
  try {
    require(dispatch.cp_size == communicator.size(),
            "undispatch_rows: the dispatch must be for as many ranks as the communicator has (got {} and {})",
            dispatch.cp_size, communicator.size());
    check_shapes("undispatch_rows", dispatch, global, shard);
  } catch (const InvalidArgument& error) {
    communicator.refuse(error.what());
    throw;
  }
  const CastTensor tensors[] = {{shard, global}};
  const auto handle = communicator.group_cast(gather_exchange(dispatch, rank), tensors, "undispatch");
  for_each_run(dispatch, rank, [&](Range rows, int64_t shard_row) {
    comm::copy_rows(slice_rows(shard, {shard_row, shard_row + rows.size()}), slice_rows(global, rows));
  });
  handle->wait();
}

std::vector<int64_t> position_ids(const Dispatch& dispatch, int rank) {
  check_rank("position_ids", dispatch, rank);
  std::vector<int64_t> positions;
  positions.reserve(static_cast<size_t>(dispatch.rows_per_rank()));
  for (const Range& rows : dispatch.rows_of_rank(rank)) {
    for (int64_t row = rows.begin; row < rows.end; ++row) positions.push_back(row);
  }
  return positions;
}

}  // namespace tangram
