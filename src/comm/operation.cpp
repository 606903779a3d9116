// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Argument checks of one rank, and the translation of collectives into operations.
#include "comm/operation.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/require.hpp"

namespace tangram::comm {

namespace {

constexpr uint64_t kHashStart = 0xcbf29ce484222325;

uint64_t mix(uint64_t hash, uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15 + (hash << 6) + (hash >> 2);
  return hash * 0x100000001b3;
}

void check_operand(std::string_view name, std::string_view what, const ConstTensorView& view) {
  require(view.rows >= 0 && view.heads > 0 && view.dim > 0 && (view.data != nullptr || view.rows == 0),
          "{}: {} must be a tensor [rows, heads, dim] with data (got {}, data {})", name, what, shape_text(view),
          view.data == nullptr ? "null" : "given");
}

void check_same_row(std::string_view name, const ConstTensorView& a, const ConstTensorView& b) {
  require(a.dtype == b.dtype && a.heads == b.heads && a.dim == b.dim,
          "{}: both sides of a tensor must have equal dtype, heads and dim (got {} and {})", name, shape_text(a),
          shape_text(b));
}

/// `what` is `sends` or `recvs`; all rows must lie in [0, num_rows).
void check_copies(std::string_view name, std::string_view what, std::span<const RowCopy> copies, Caller caller,
                  int64_t num_rows) {
  const RowCopy* previous = nullptr;
  for (const RowCopy& copy : copies) {
    require(copy.peer >= 0 && copy.peer < caller.size && copy.peer != caller.rank,
            "{}: {} must name other ranks in [0, {}) (got peer={} on rank {})", name, what, caller.size, copy.peer,
            caller.rank);
    require(!copy.rows.empty() && copy.rows.begin >= 0 && copy.rows.end <= num_rows && copy.peer_row >= 0,
            "{}: {} must be non-empty rows in [0, {}) (got [{}, {}), peer_row={}, peer={})", name, what, num_rows,
            copy.rows.begin, copy.rows.end, copy.peer_row, copy.peer);
    if (previous != nullptr) {
      require(previous->peer < copy.peer || (previous->peer == copy.peer && previous->rows.end <= copy.rows.begin),
              "{}: {} must be sorted by peer and rows without overlap (got [{}, {}) of peer {} after [{}, {}) of peer "
              "{})",
              name, what, copy.rows.begin, copy.rows.end, copy.peer, previous->rows.begin, previous->rows.end,
              previous->peer);
    }
    previous = &copy;
  }
}

/// A row has one owner, so it cannot come from two ranks.
void check_received_once(std::string_view name, std::span<const RowCopy> recvs) {
  std::vector<Range> rows;
  rows.reserve(recvs.size());
  for (const RowCopy& copy : recvs) rows.push_back(copy.rows);
  std::sort(rows.begin(), rows.end());
  for (size_t i = 1; i < rows.size(); ++i) {
    require(rows[i - 1].end <= rows[i].begin, "{}: recvs must not receive a row twice (got [{}, {}) and [{}, {}))",
            name, rows[i - 1].begin, rows[i - 1].end, rows[i].begin, rows[i].end);
  }
}

std::vector<PeerRows> peer_rows(std::span<const RowCopy> copies, int size, bool outgoing) {
  std::vector<PeerRows> result(static_cast<size_t>(size), PeerRows{0, kHashStart});
  for (const RowCopy& copy : copies) {
    PeerRows& peer = result[static_cast<size_t>(copy.peer)];
    peer.rows += copy.rows.size();
    const int64_t source = outgoing ? copy.rows.begin : copy.peer_row;
    const int64_t target = outgoing ? copy.peer_row : copy.rows.begin;
    peer.hash = mix(mix(mix(peer.hash, static_cast<uint64_t>(source)), static_cast<uint64_t>(target)),
                    static_cast<uint64_t>(copy.rows.size()));
  }
  return result;
}

/// Fills in what the ranks compare, once pieces and tensors are set.
void sign(Operation& operation, OpKind kind, ReduceOp op, std::string_view label, int size) {
  Signature& signature = operation.signature;
  signature.kind = kind;
  signature.op = op;
  signature.label = label;
  signature.value = kHashStart;
  for (const ConstTensorView& view : operation.sources) {
    if (!signature.text.empty()) signature.text += ", ";
    signature.text += fmt::format("{}[*, {}, {}]", tangram::to_string(view.dtype), view.heads, view.dim);
    signature.value =
        mix(mix(mix(signature.value, static_cast<uint64_t>(view.dtype)), static_cast<uint64_t>(view.heads)),
            static_cast<uint64_t>(view.dim));
  }
  signature.out = peer_rows(operation.outgoing, size, true);
  signature.in = peer_rows(operation.incoming, size, false);
}

std::string call_name(OpKind kind, std::string_view label) { return fmt::format("{} '{}'", to_string(kind), label); }

void check_tensor_count(std::string_view name, size_t count) {
  require(count >= 1 && count <= kMaxTensors, "{}: takes 1 to {} tensors (got {})", name, kMaxTensors, count);
}

}  // namespace

std::string_view to_string(OpKind kind) {
  switch (kind) {
    case OpKind::kGroupCast: return "group_cast";
    case OpKind::kGroupReduce: return "group_reduce";
    case OpKind::kGroupReduceLse: return "group_reduce_lse";
    case OpKind::kAllToAllV: return "all_to_all_v";
    case OpKind::kAllReduce: return "all_reduce";
    case OpKind::kBarrier: return "barrier";
    case OpKind::kAgreement: return "require_agreement";
    case OpKind::kRefusal: return "refuse";
  }
  return "unknown";
}

std::string Operation::name() const { return call_name(signature.kind, signature.label); }

std::span<const RowCopy> pieces_of(std::span<const RowCopy> copies, int peer) {
  const auto [begin, end] = std::equal_range(copies.begin(), copies.end(), RowCopy{peer, {}, 0},
                                             [](const RowCopy& a, const RowCopy& b) { return a.peer < b.peer; });
  return copies.subspan(static_cast<size_t>(begin - copies.begin()), static_cast<size_t>(end - begin));
}

Operation make_group_cast(Caller caller, const Exchange& exchange, std::span<const CastTensor> tensors,
                          std::string_view label) {
  const std::string name = call_name(OpKind::kGroupCast, label);
  check_tensor_count(name, tensors.size());
  Operation operation;
  for (const CastTensor& tensor : tensors) {
    check_operand(name, "src", tensor.src);
    check_operand(name, "dst", tensor.dst);
    check_same_row(name, tensor.src, tensor.dst);
    check_copies(name, "sends", exchange.sends, caller, tensor.src.rows);
    check_copies(name, "recvs", exchange.recvs, caller, tensor.dst.rows);
    operation.sources.push_back(tensor.src);
    operation.targets.push_back(tensor.dst);
  }
  check_received_once(name, exchange.recvs);
  operation.outgoing = exchange.sends;
  operation.incoming = exchange.recvs;
  sign(operation, OpKind::kGroupCast, ReduceOp::kSum, label, caller.size);
  return operation;
}

Operation make_group_reduce(Caller caller, const Exchange& exchange, std::span<const ReduceTensor> tensors, ReduceOp op,
                            std::string_view label) {
  const std::string name = call_name(OpKind::kGroupReduce, label);
  require(op == ReduceOp::kSum || op == ReduceOp::kAvg, "{}: op must be kSum or kAvg (got {})", name,
          static_cast<int>(op));
  check_tensor_count(name, tensors.size());
  Operation operation;
  for (const ReduceTensor& tensor : tensors) {
    check_operand(name, "partial", tensor.partial);
    check_operand(name, "owned", tensor.owned);
    check_same_row(name, tensor.partial, tensor.owned);
    check_copies(name, "recvs", exchange.recvs, caller, tensor.partial.rows);
    check_copies(name, "sends", exchange.sends, caller, tensor.owned.rows);
    operation.sources.push_back(tensor.partial);
    operation.targets.push_back(tensor.owned);
  }
  operation.outgoing = exchange.recvs;
  operation.incoming = exchange.sends;
  sign(operation, OpKind::kGroupReduce, op, label, caller.size);
  return operation;
}

Operation make_group_reduce_lse(Caller caller, const Exchange& exchange, const LseReduceTensors& tensors,
                                std::string_view label) {
  const std::string name = call_name(OpKind::kGroupReduceLse, label);
  const ConstTensorView& partial = tensors.partial_out;
  check_operand(name, "partial_out", partial);
  check_operand(name, "out", tensors.out);
  check_same_row(name, partial, tensors.out);
  require(partial.dtype == DType::kFloat32, "{}: partial_out and out must be float32 (got {})", name,
          shape_text(partial));
  require((tensors.partial_lse != nullptr || partial.rows == 0) && (tensors.lse != nullptr || tensors.out.rows == 0),
          "{}: partial_lse and lse must be given (got null)", name);
  check_copies(name, "recvs", exchange.recvs, caller, partial.rows);
  check_copies(name, "sends", exchange.sends, caller, tensors.out.rows);
  const int heads = partial.heads;
  Operation operation;
  operation.sources = {partial, {tensors.partial_lse, DType::kFloat32, partial.rows, heads, 1, heads, 1}};
  operation.targets = {tensors.out, {{tensors.lse, DType::kFloat32, tensors.out.rows, heads, 1, heads, 1}}};
  operation.outgoing = exchange.recvs;
  operation.incoming = exchange.sends;
  sign(operation, OpKind::kGroupReduceLse, ReduceOp::kSum, label, caller.size);
  return operation;
}

Operation make_all_to_all_v(Caller caller, const ConstTensorView& send, std::span<const int64_t> send_rows,
                            const TensorView& recv, std::span<const int64_t> recv_rows, std::string_view label) {
  const std::string name = call_name(OpKind::kAllToAllV, label);
  check_operand(name, "send", send);
  check_operand(name, "recv", recv);
  check_same_row(name, send, recv);
  const auto pieces = [&](std::string_view what, std::span<const int64_t> counts, int64_t num_rows) {
    require(std::ssize(counts) == caller.size, "{}: {} must have one entry per rank (got {}, size={})", name, what,
            counts.size(), caller.size);
    std::vector<RowCopy> copies;
    int64_t row = 0;
    for (int peer = 0; peer < caller.size; ++peer) {
      const int64_t count = counts[static_cast<size_t>(peer)];
      require(count >= 0 && count <= num_rows - row, "{}: {} must add up to at most {} rows (got {} for rank {} at {})",
              name, what, num_rows, count, peer, row);
      // Where a peer keeps its rows is the peer's affair: pieces are matched by order, and compared by count.
      if (count > 0) copies.push_back({peer, {row, row + count}, 0});
      row += count;
    }
    return copies;
  };
  Operation operation;
  operation.outgoing = pieces("send_rows", send_rows, send.rows);
  operation.incoming = pieces("recv_rows", recv_rows, recv.rows);
  operation.sources = {send};
  operation.targets = {recv};
  sign(operation, OpKind::kAllToAllV, ReduceOp::kSum, label, caller.size);
  for (std::vector<PeerRows>* side : {&operation.signature.out, &operation.signature.in}) {
    for (PeerRows& peer : *side) peer.hash = 0;
  }
  return operation;
}

Operation make_all_reduce(Caller caller, std::span<float> values, ReduceOp op, std::string_view label) {
  const std::string name = call_name(OpKind::kAllReduce, label);
  require(!values.empty() && values.size() <= size_t{1} << 30, "{}: values must hold 1 to 2^30 numbers (got {})", name,
          values.size());
  const int count = static_cast<int>(values.size());
  Operation operation;
  operation.values.assign(values.begin(), values.end());
  operation.sources = {{operation.values.data(), DType::kFloat32, 1, 1, count, count, count}};
  operation.targets = {{{values.data(), DType::kFloat32, 1, 1, count, count, count}}};
  for (int peer = 0; peer < caller.size; ++peer) {
    if (peer != caller.rank) operation.outgoing.push_back({peer, {0, 1}, 0});
  }
  operation.incoming = operation.outgoing;
  sign(operation, OpKind::kAllReduce, op, label, caller.size);
  return operation;
}

Operation make_barrier(std::string_view label) {
  Operation operation;
  operation.signature.kind = OpKind::kBarrier;
  operation.signature.label = label;
  return operation;
}

Operation make_agreement(uint64_t value, std::string_view what) {
  Operation operation;
  operation.signature.kind = OpKind::kAgreement;
  operation.signature.label = what;
  operation.signature.value = value;
  return operation;
}

Operation make_refusal(std::string_view reason) {
  Operation operation;
  operation.signature.kind = OpKind::kRefusal;
  operation.signature.text = reason;
  return operation;
}

}  // namespace tangram::comm
