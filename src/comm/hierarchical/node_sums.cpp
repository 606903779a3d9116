// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/hierarchical/node_sums.hpp"

#include <algorithm>
#include <limits>

#include "comm/row_moves.hpp"

namespace tangram::comm {

namespace {

/// Pieces that lie one after the other in staged tensors, by the number under which they are added.
class StagedPieces {
 public:
  void add(int number, const RowCopy& copy, const Tensors& tensors, int64_t at) {
    incoming_.push_back({number, copy.rows, 0});
    places_.push_back({&tensors, at});
  }

  /// Adds all to the targets of `sum`, whose own rows have number `own`.
  void reduce_into(Operation& sum, int own, int num_numbers) const {
    std::vector<size_t> order(incoming_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::sort(order, [&](size_t a, size_t b) { return incoming_[a] < incoming_[b]; });
    for (const size_t i : order) sum.incoming.push_back(incoming_[i]);
    receive_rows(sum, own, num_numbers, [&](int number, size_t piece_idx, size_t tensor_idx) {
      const auto first = static_cast<size_t>(pieces_of(sum.incoming, number).data() - sum.incoming.data());
      const size_t i = order[first + piece_idx];
      const Range rows{places_[i].at, places_[i].at + incoming_[i].rows.size()};
      return slice_rows(ConstTensorView((*places_[i].tensors)[tensor_idx]), rows);
    });
  }

 private:
  struct RecvBuffer {
    const Tensors* tensors = nullptr;
    int64_t at = 0;
  };
  std::vector<RowCopy> incoming_;
  std::vector<RecvBuffer> places_;
};

Operation sum_operation(const Operation& operation) {
  Operation sum;
  sum.signature.kind = operation.kind();
  sum.signature.op = ReduceOp::kSum;
  return sum;
}

/// Elements that add nothing.
void clear(const Operation& operation, Tensors& tensors) {
  for (HostTensor& tensor : tensors) tensor.fill(0);
  const bool has_lse = operation.kind() == OpKind::kGroupReduceLse;
  if (has_lse) tensors[1].fill(-std::numeric_limits<float>::infinity());
}

/// How many partial rows come to each owned row, its own counted.
std::vector<int> num_contributions(const Operation& operation, int64_t rows) {
  std::vector<int> counts(static_cast<size_t>(rows), 1);
  for (const RowCopy& copy : operation.incoming) {
    for (int64_t row = copy.rows.begin; row < copy.rows.end; ++row) ++counts[static_cast<size_t>(row)];
  }
  return counts;
}

float element(const ConstTensorView& view, int64_t row, int head, int d) {
  const int64_t idx = row * view.row_stride + head * view.head_stride + d;
  if (view.dtype == DType::kFloat32) return static_cast<const float*>(view.data)[idx];
  const uint16_t bits = static_cast<const uint16_t*>(view.data)[idx];
  return view.dtype == DType::kBFloat16 ? bfloat16_to_float(bits) : float16_to_float(bits);
}

void set_element(const TensorView& view, int64_t row, int head, int d, float value) {
  const int64_t idx = row * view.row_stride + head * view.head_stride + d;
  if (view.dtype == DType::kFloat32) {
    static_cast<float*>(view.data)[idx] = value;
  } else {
    static_cast<uint16_t*>(view.data)[idx] =
        view.dtype == DType::kBFloat16 ? float_to_bfloat16(value) : float_to_float16(value);
  }
}

/// Sums in float32 beside the targets, since a quotient of rounded sums would be rounded twice.
void average(const Operation& operation, const StagedPieces& pieces, int own, int num_numbers) {
  Operation sum = sum_operation(operation);
  Tensors sums;
  for (const TensorView& target : operation.targets) {
    HostTensor& tensor = sums.emplace_back(DType::kFloat32, target.rows, target.heads, target.dim);
    for (int64_t row = 0; row < target.rows; ++row) {
      for (int head = 0; head < target.heads; ++head) {
        for (int d = 0; d < target.dim; ++d) tensor.set(row, head, d, element(target, row, head, d));
      }
    }
    sum.targets.push_back(tensor);
  }
  pieces.reduce_into(sum, own, num_numbers);
  for (size_t t = 0; t < sums.size(); ++t) {
    const TensorView& target = operation.targets[t];
    const std::vector<int> counts = num_contributions(operation, target.rows);
    for (int64_t row = 0; row < target.rows; ++row) {
      const int count = counts[static_cast<size_t>(row)];
      if (count == 1) continue;
      const float scale = 1.0f / static_cast<float>(count);
      for (int head = 0; head < target.heads; ++head) {
        for (int d = 0; d < target.dim; ++d) set_element(target, row, head, d, sums[t].at(row, head, d) * scale);
      }
    }
  }
}

}  // namespace

Tensors tensors_like(std::span<const TensorView> views, int64_t rows) {
  Tensors tensors;
  for (const TensorView& view : views) tensors.emplace_back(view.dtype, rows, view.heads, view.dim);
  return tensors;
}

Tensors sum_of_node(const Operation& operation, Caller caller, const Hop& hop, const Tensors& staged) {
  Tensors sums = tensors_like(operation.targets, hop.relay_rows);
  clear(operation, sums);
  Operation sum = sum_operation(operation);
  for (size_t t = 0; t < sums.size(); ++t) {
    for (const RelayedRows& rows : hop.own) {
      copy_rows(slice_rows(operation.sources[t], {rows.target, rows.target + rows.relay.size()}),
                slice_rows(sums[t].view(), rows.relay));
    }
    sum.targets.push_back(sums[t]);
  }
  StagedPieces pieces;
  int64_t at = 0;
  for (const RowCopy& copy : hop.forward.sends) {
    pieces.add(copy.peer, copy, staged, at);
    at += copy.rows.size();
  }
  pieces.reduce_into(sum, caller.rank, caller.size);
  return sums;
}

void sum_of_all(const Operation& operation, Caller caller, const NodeLayout& nodes, const TwoLevelTables& tables,
                const Tensors& staged_direct, const std::vector<Tensors>& staged_hops) {
  // Numbers in the order of the sum: nodes before the own one, the own one's ranks, nodes behind it.
  const int node = nodes.node_of(caller.rank), num_numbers = nodes.num_nodes() - 1 + nodes.ranks_per_node;
  const auto number_of = [&](int rank) {
    const int other = nodes.node_of(rank);
    if (other == node) return node + nodes.place_of(rank);
    return other < node ? other : other - 1 + nodes.ranks_per_node;
  };
  StagedPieces pieces;
  const auto add = [&](const std::vector<RowCopy>& sends, const Tensors& staged) {
    int64_t at = 0;
    for (const RowCopy& copy : sends) {
      pieces.add(number_of(copy.peer), copy, staged, at);
      at += copy.rows.size();
    }
  };
  add(tables.direct.sends, staged_direct);
  for (size_t h = 0; h < tables.hops.size(); ++h) add(tables.hops[h].between.sends, staged_hops[h]);
  const int own = number_of(caller.rank);
  if (operation.kind() == OpKind::kGroupReduce && operation.signature.op == ReduceOp::kAvg) {
    average(operation, pieces, own, num_numbers);
    return;
  }
  Operation sum = sum_operation(operation);
  sum.targets = operation.targets;
  pieces.reduce_into(sum, own, num_numbers);
}

}  // namespace tangram::comm
