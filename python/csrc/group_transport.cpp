// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "group_transport.hpp"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>

#include "comm/row_moves.hpp"
#include "tangram/error.hpp"

namespace tangram::python {

namespace {

constexpr int kSignatureTag = 1;
constexpr int kRowsTag = 2;
/// In the place of an OpKind: the sender gives up.
constexpr int32_t kAbort = -1;

/// The part of a signature whose size does not depend on the group; longer texts are cut.
struct Head {
  int32_t kind = 0;
  int32_t op = 0;
  uint64_t value = 0;
  int32_t has_rows = 0;
  char label[100] = {};
  char text[512] = {};
};

void copy_text(const std::string& from, char* to, size_t capacity) {
  const size_t size = std::min(from.size(), capacity - 1);
  std::memcpy(to, from.data(), size);
  to[size] = 0;
}

nb::list memory_views(std::vector<std::vector<std::byte>>& buffers) {
  nb::list views;
  for (std::vector<std::byte>& buffer : buffers) {
    if (buffer.empty()) {
      views.append(nb::none());
      continue;
    }
    PyObject* view = PyMemoryView_FromMemory(reinterpret_cast<char*>(buffer.data()),
                                             static_cast<Py_ssize_t>(buffer.size()), PyBUF_WRITE);
    if (view == nullptr) throw nb::python_error();
    views.append(nb::steal(view));
  }
  return views;
}

// The bytes of one piece of one tensor when its rows lie one after the other.
ConstTensorView packed(const ConstTensorView& like, int64_t rows, void* data) {
  ConstTensorView view = like;
  view.data = data;
  view.rows = rows;
  view.head_stride = view.dim;
  view.row_stride = int64_t{view.heads} * view.dim;
  return view;
}

}  // namespace

size_t GroupTransport::block_bytes() const {
  return sizeof(Head) + 2 * static_cast<size_t>(place_.size) * sizeof(comm::PeerRows);
}

std::vector<std::byte> GroupTransport::encode(const comm::Signature& signature) const {
  Head head;
  head.kind = static_cast<int32_t>(signature.kind);
  head.op = static_cast<int32_t>(signature.op);
  head.value = signature.value;
  head.has_rows = signature.out.empty() ? 0 : 1;
  copy_text(signature.label, head.label, sizeof(head.label));
  copy_text(signature.text, head.text, sizeof(head.text));
  std::vector<std::byte> block(block_bytes());
  std::memcpy(block.data(), &head, sizeof(head));
  std::byte* rows = block.data() + sizeof(head);
  const size_t side_bytes = static_cast<size_t>(place_.size) * sizeof(comm::PeerRows);
  if (!signature.out.empty()) std::memcpy(rows, signature.out.data(), side_bytes);
  if (!signature.in.empty()) std::memcpy(rows + side_bytes, signature.in.data(), side_bytes);
  return block;
}

comm::Signature GroupTransport::decode(const std::vector<std::byte>& block, int rank) const {
  Head head;
  std::memcpy(&head, block.data(), sizeof(head));
  if (head.kind == kAbort) {
    throw CommError("communicator: rank " + std::to_string(rank) + " gave up (got reason=" + head.text + ")");
  }
  comm::Signature signature;
  signature.kind = static_cast<comm::OpKind>(head.kind);
  signature.op = static_cast<ReduceOp>(head.op);
  signature.value = head.value;
  signature.label = head.label;
  signature.text = head.text;
  if (head.has_rows != 0) {
    const size_t size = static_cast<size_t>(place_.size);
    const std::byte* rows = block.data() + sizeof(head);
    signature.out.resize(size);
    signature.in.resize(size);
    std::memcpy(signature.out.data(), rows, size * sizeof(comm::PeerRows));
    std::memcpy(signature.in.data(), rows + size * sizeof(comm::PeerRows), size * sizeof(comm::PeerRows));
  }
  return signature;
}

void GroupTransport::swap(int tag, Buffers& sends, Buffers& recvs, const std::string& what) {
  const nb::gil_scoped_acquire gil;
  try {
    swap_(tag, memory_views(sends), memory_views(recvs), what);
  } catch (nb::python_error& error) {
    const nb::object timeout = nb::module_::import_("tangram.errors").attr("Timeout");
    const std::string text = nb::str(error.value()).c_str();
    if (error.matches(timeout)) throw Timeout(text);
    throw CommError(text);
  }
}

void GroupTransport::agree(const comm::Operation& operation) {
  const size_t size = static_cast<size_t>(place_.size);
  const std::vector<std::byte> own = encode(operation.signature);
  Buffers sends(size, own);
  Buffers recvs(size, std::vector<std::byte>(own.size()));
  sends[static_cast<size_t>(place_.rank)].clear();
  recvs[static_cast<size_t>(place_.rank)].clear();
  swap(kSignatureTag, sends, recvs, operation.name());
  std::vector<comm::Signature> signatures;
  for (int rank = 0; rank < place_.size; ++rank) {
    // The own one by the same way, so that all ranks compare the same cut texts.
    signatures.push_back(decode(rank == place_.rank ? own : recvs[static_cast<size_t>(rank)], rank));
  }
  std::vector<const comm::Signature*> pointers;
  for (const comm::Signature& signature : signatures) pointers.push_back(&signature);
  if (const std::string text = comm::find_disagreement(pointers); !text.empty()) throw InvalidArgument(text);
}

void GroupTransport::move_rows(comm::Operation& operation) {
  const size_t size = static_cast<size_t>(place_.size);
  Buffers sends(size);
  Buffers recvs(size);
  for (int peer = 0; peer < place_.size; ++peer) {
    if (peer == place_.rank) continue;
    std::vector<std::byte>& send = sends[static_cast<size_t>(peer)];
    int64_t row_bytes = 0;
    for (const ConstTensorView& view : operation.sources) row_bytes += view.row_bytes();
    int64_t send_rows = 0;
    int64_t recv_rows = 0;
    for (const RowCopy& piece : comm::pieces_of(operation.outgoing, peer)) send_rows += piece.rows.size();
    for (const RowCopy& piece : comm::pieces_of(operation.incoming, peer)) recv_rows += piece.rows.size();
    send.resize(static_cast<size_t>(send_rows * row_bytes));
    recvs[static_cast<size_t>(peer)].resize(static_cast<size_t>(recv_rows * row_bytes));
    std::byte* at = send.data();
    for (const RowCopy& piece : comm::pieces_of(operation.outgoing, peer)) {
      for (const ConstTensorView& source : operation.sources) {
        const ConstTensorView view = packed(source, piece.rows.size(), at);
        comm::copy_rows(slice_rows(source, piece.rows), TensorView{{at, view.dtype, view.rows, view.heads, view.dim,
                                                                    view.row_stride, view.head_stride}});
        at += view.rows * view.row_bytes();
      }
    }
  }
  swap(kRowsTag, sends, recvs, operation.name());

  // Where each piece begins in what came from its peer.
  std::vector<std::vector<int64_t>> offsets(size);
  for (int peer = 0; peer < place_.size; ++peer) {
    int64_t at = 0;
    for (const RowCopy& piece : comm::pieces_of(operation.incoming, peer)) {
      offsets[static_cast<size_t>(peer)].push_back(at);
      for (const ConstTensorView& view : operation.sources) at += piece.rows.size() * view.row_bytes();
    }
  }
  const auto source = [&](int peer, size_t piece_idx, size_t tensor_idx) -> ConstTensorView {
    if (peer == place_.rank) {
      const RowCopy& own = comm::pieces_of(operation.outgoing, peer)[piece_idx];
      return slice_rows(operation.sources[tensor_idx], own.rows);
    }
    const int64_t rows = comm::pieces_of(operation.incoming, peer)[piece_idx].rows.size();
    std::byte* at = recvs[static_cast<size_t>(peer)].data() + offsets[static_cast<size_t>(peer)][piece_idx];
    for (size_t t = 0; t < tensor_idx; ++t) at += rows * operation.sources[t].row_bytes();
    return packed(operation.sources[tensor_idx], rows, at);
  };
  comm::receive_rows(operation, place_.rank, place_.size, source);
}

void GroupTransport::execute(comm::Operation& operation, double& started_s) {
  agree(operation);
  started_s = comm::steady_seconds();
  if (!operation.signature.out.empty()) move_rows(operation);
}

void GroupTransport::abort(std::string_view reason) noexcept {
  Head head;
  head.kind = kAbort;
  copy_text(std::string(reason), head.text, sizeof(head.text));
  std::vector<std::byte> block(block_bytes());
  std::memcpy(block.data(), &head, sizeof(head));
  Buffers sends(static_cast<size_t>(place_.size), block);
  sends[static_cast<size_t>(place_.rank)].clear();
  const nb::gil_scoped_acquire gil;
  try {
    post_(kSignatureTag, memory_views(sends));
  } catch (nb::python_error&) {
    // A peer that is gone needs no telling.
  }
}

}  // namespace tangram::python
