// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/device/buffered_image.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <string_view>

#include "comm/device/pass_layout.hpp"
#include "comm/device/pass_tensors.hpp"
#include "core/require.hpp"
#include "core/rounding.hpp"

namespace tangram::comm {

namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kMaxBytes = size_t{1} << 31;
constexpr size_t kMaxSources = 4;  // of MoveParams

/// Chunks of `rows` rows in `pieces` pieces at most.
int64_t most_chunks(const std::vector<int64_t>& row_bytes, int64_t rows, int64_t pieces) {
  int64_t chunks = 0;
  for (const int64_t bytes : row_bytes) chunks += rows * bytes / kMaxChunkBytes + pieces;
  return chunks;
}

void put(std::byte* to, const std::vector<int32_t>& values) {
  if (!values.empty()) std::memcpy(to, values.data(), values.size() * sizeof(int32_t));
}

}  // namespace

uint64_t hash_of(const BufferedPassSpec& spec) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&hash](int64_t value) { hash = (hash ^ static_cast<uint64_t>(value)) * 0x100000001b3; };
  for (const RecvTensor& tensor : spec.recv_buffers) {
    for (const int64_t value : {tensor.rows, int64_t{tensor.heads}, int64_t{tensor.dim}}) add(value);
    add(static_cast<int64_t>(tensor.dtype));
  }
  for (const ReturnTensor& tensor : spec.returns) {
    for (const int64_t value : {tensor.owned_rows, int64_t{tensor.heads}, int64_t{tensor.dim}}) add(value);
    add(static_cast<int64_t>(tensor.reduce_dtype));
  }
  for (const int64_t value : {spec.own_rows, spec.sent_rows, spec.local_ranges, spec.user_bytes}) add(value);
  return hash;
}

BufferedImage::BufferedImage(Caller caller, const BufferedPassSpec& spec) : caller_(caller), spec_(spec) {
  const auto check_size = [](std::string_view name, int64_t value) {
    require(0 <= value && value <= std::numeric_limits<int32_t>::max(),
            "BufferedPass: {} must be at least 0 and below 2^31 (got {})", name, value);
  };
  check_size("own_rows", spec.own_rows);
  check_size("sent_rows", spec.sent_rows);
  check_size("local_ranges", spec.local_ranges);
  check_size("user_bytes", spec.user_bytes);
  require(!spec.recv_buffers.empty() && spec.recv_buffers.size() < kMaxSources && spec.returns.size() <= 4,
          "BufferedPass: needs one to three receive buffers and at most four that come back (got {} and {})",
          spec.recv_buffers.size(), spec.returns.size());
  for (const RecvTensor& tensor : spec.recv_buffers) check_size("rows of receive buffers", tensor.rows);
  for (const ReturnTensor& tensor : spec.returns) {
    require(tensor.owned_rows == spec.own_rows, "BufferedPass: gradients must have the own rows, {} (got {})",
            spec.own_rows, tensor.owned_rows);
  }
  row_bytes_ = recv_row_bytes({.recv_buffers = spec.recv_buffers});
  const int64_t own =
      most_chunks(row_bytes_, spec.own_rows, spec.local_ranges) + most_chunks(row_bytes_, BufferedPass::kZeroRows, 1);
  const int64_t sent = most_chunks(row_bytes_, spec.sent_rows, spec.local_ranges);
  size_t end = sizeof(BufferedCounts);
  const auto take = [&](int64_t bytes) {
    const size_t offset = round_up(end, kAlignment);
    end = offset + static_cast<size_t>(bytes);
    return offset;
  };
  user_ = take(spec.user_bytes);
  const int64_t merged = spec.returns.empty() ? 0 : spec.own_rows;
  constexpr int64_t kWord = sizeof(int32_t);
  merge_begin_ = take((merged + 1) * kWord);
  merge_before_ = take(merged * kWord);
  merge_rows_ = take(merged * kWord);
  merge_entries_ = take(spec.returns.empty() ? 0 : spec.sent_rows * kWord);
  chunks_ = take((own + sent) * static_cast<int64_t>(sizeof(Chunk)));
  bytes_ = round_up(end, kAlignment);
  require(bytes_ < kMaxBytes,
          "BufferedPass: tables must stay below 2 GiB (got own_rows={}, sent_rows={}, stretches={})", spec.own_rows,
          spec.sent_rows, spec.local_ranges);
  max_own_chunks_ = static_cast<int>(own);
  max_sent_chunks_ = static_cast<int>(sent);
}

void BufferedImage::check(const BufferedTables& tables) const {
  const auto fit = [](std::string_view what, int64_t needed, std::string_view name, int64_t room) {
    require(needed <= room, "BufferedPass::set: {} must be at most {} (got {} and {}={})", what, name, needed, name,
            room);
  };
  for (const RecvTensor& tensor : spec_.recv_buffers) {
    fit("rows of K and V", tables.recv_buffer_rows, "recv_buffers rows", tensor.rows);
  }
  fit("rows sent", tables.exchange.rows_sent(), "sent_rows", spec_.sent_rows);
  fit("pieces sent", std::ssize(tables.exchange.sends), "local_ranges", spec_.local_ranges);
  fit("own pieces", std::ssize(tables.own_rows), "local_ranges", spec_.local_ranges);
  const int64_t own_rows =
      std::accumulate(tables.own_rows.begin(), tables.own_rows.end(), int64_t{0},
                      [](int64_t sum, const LocalKvRange& rows) { return sum + rows.keys.size(); });
  fit("own rows", own_rows, "own_rows", spec_.own_rows);
}

DevicePassSpec BufferedImage::pass_spec(const BufferedTables& tables) const {
  DevicePassSpec spec;
  spec.label = spec_.label;
  spec.casts = {tables.exchange};
  spec.recv_buffers = spec_.recv_buffers;
  if (!spec_.returns.empty()) spec.reduces = {tables.exchange};
  spec.returns = spec_.returns;
  spec.leaves_rows = true;
  return spec;
}

void BufferedImage::append_own(std::vector<Chunk>& chunks, const BufferedTables& tables,
                               const std::vector<int64_t>& tensor_offsets) const {
  for (size_t t = 0; t < row_bytes_.size(); ++t) {
    const int64_t bytes = row_bytes_[t];
    for (const LocalKvRange& rows : tables.own_rows) {
      append_chunks(chunks, rows.row * bytes, tensor_offsets[t] + rows.keys.begin * bytes, rows.keys.size() * bytes,
                    static_cast<int>(t), caller_.rank);
    }
    const size_t first = chunks.size();
    const int64_t behind = std::min(BufferedPass::kZeroRows, spec_.recv_buffers[t].rows - tables.recv_buffer_rows);
    append_chunks(chunks, 0, tensor_offsets[t] + tables.recv_buffer_rows * bytes, behind * bytes,
                  static_cast<int>(zero_source()), caller_.rank);
    for (size_t i = first; i < chunks.size(); ++i) chunks[i].from = 0;  // the same zeros
  }
}

void BufferedImage::append_sent(std::vector<Chunk>& chunks, const BufferedTables& tables,
                                const std::vector<int64_t>& tensor_offsets) const {
  DevicePassSpec casts = pass_spec(tables);
  casts.reduces.clear();
  const PassLayout layout = make_pass_layout(caller_, casts);
  for (const PeerPieces& peer : layout.casts.front()) {
    for (size_t t = 0; t < row_bytes_.size(); ++t) {
      for (const Piece& piece : peer.pieces) {
        append_chunks(chunks, piece.from * row_bytes_[t], tensor_offsets[t] + piece.to * row_bytes_[t],
                      piece.rows * row_bytes_[t], static_cast<int>(t), peer.peer);
      }
    }
  }
}

size_t BufferedImage::write(std::byte* to, const BufferedTables& tables, uint32_t tag,
                            const std::vector<int64_t>& tensor_offsets,
                            const std::function<void(std::byte*)>& write_user) const {
  if (spec_.user_bytes > 0) write_user(to + user_);
  BufferedCounts counts;
  counts.tag = tag;
  std::vector<Chunk> chunks;
  append_own(chunks, tables, tensor_offsets);
  counts.own_chunks[1] = counts.sent_chunks[0] = static_cast<int32_t>(chunks.size());
  append_sent(chunks, tables, tensor_offsets);
  counts.sent_chunks[1] = static_cast<int32_t>(chunks.size());
  TANGRAM_ASSERT(counts.own_chunks[1] <= max_own_chunks_ &&
                 counts.sent_chunks[1] - counts.sent_chunks[0] <= max_sent_chunks_);
  if (!spec_.returns.empty()) {
    const DevicePassSpec spec = pass_spec(tables);
    const MergedRows merged =
        merge_table_without(caller_, spec, make_pass_layout(caller_, spec), tables.left, tables.absent);
    counts.num_merged = static_cast<int32_t>(merged.rows.size());
    put(to + merge_begin_, merged.table.begin);
    put(to + merge_before_, merged.table.num_before);
    put(to + merge_rows_, merged.rows);
    put(to + merge_entries_, merged.table.entries);
  }
  std::memcpy(to, &counts, sizeof(counts));
  const size_t chunk_bytes = chunks.size() * sizeof(Chunk);
  if (chunk_bytes > 0) std::memcpy(to + chunks_, chunks.data(), chunk_bytes);
  return chunks_ + chunk_bytes;
}

}  // namespace tangram::comm
