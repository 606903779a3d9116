// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What a pass prepares once: copies, flags and waits of each stage as the kernels and copy engines take them.
#include <algorithm>
#include <utility>

#include "comm/copy_engine/copy_engine_pass.hpp"
#include "comm/device/pass_tensors.hpp"
#include "core/require.hpp"

namespace tangram::comm {

namespace {

/// Whether a kernel moves the copies sooner than copy engines, by more than its time on the caller's stream is worth.
/// Copy engines: 2.4 us a copy and 390 GB/s; the kernel: 250 GB/s and a launch.
bool prefers_kernel(int64_t num_copies, int64_t num_bytes) {
  const double engine_us = 2.4 * static_cast<double>(num_copies) + static_cast<double>(num_bytes) / 390e3;
  const double kernel_us = 10 + static_cast<double>(num_bytes) / 250e3;
  return engine_us > 4 * kernel_us;
}

}  // namespace

cuda::PackedArray CopyEnginePass::add(HostTables& tables, std::vector<Chunk> chunks) {
  return tables_.add(tables.chunks.emplace_back(std::move(chunks)));
}
cuda::PackedArray CopyEnginePass::add(HostTables& tables, std::vector<uint32_t> words) {
  return tables_.add(tables.words.emplace_back(std::move(words)));
}

void CopyEnginePass::append_waits(Transfer& transfer, size_t stage, const std::vector<int>& sources,
                                  std::vector<uint32_t>& list) {
  transfer.first_wait = static_cast<int>(list.size());
  transfer.num_waits = static_cast<int>(sources.size());
  for (const int source : sources) list.push_back(static_cast<uint32_t>(stage << 8) | static_cast<uint32_t>(source));
}

void CopyEnginePass::finish_plan(HostTables& tables, Transfer& transfer, int64_t rows_received,
                                 const std::vector<PeerPieces>& layout, const SlotTensors& area,
                                 const std::vector<int64_t>& row_bytes) {
  for (const int64_t bytes : row_bytes) {
    transfer.rows_received += rows_received;
    transfer.bytes_received += rows_received * bytes;
  }
  int64_t num_copies = 0;
  for (const PeerPieces& peer : layout) {
    Target& target = transfer.targets.emplace_back();
    target.peer = peer.peer;
    transfer.peers |= uint64_t{1} << peer.peer;
    for (size_t t = 0; t < row_bytes.size(); ++t) {
      const int64_t begin = area.tensor_offset(peer.peer, static_cast<int>(t));
      for (const Piece& piece : peer.pieces) {
        target.copies.push_back({static_cast<int>(t), piece.from * row_bytes[t], begin + piece.to * row_bytes[t],
                                 piece.rows * row_bytes[t]});
      }
      transfer.rows_sent += peer.rows;
      transfer.bytes_sent += peer.rows * row_bytes[t];
    }
    num_copies += std::ssize(target.copies) + 1;
  }
  transfer.by_kernel = prefers_kernel(num_copies, transfer.bytes_sent);
  if (!transfer.by_kernel) return;
  std::vector<Chunk> chunks;
  for (const Target& target : transfer.targets) {
    for (const Copy& copy : target.copies) {
      append_chunks(chunks, copy.from, copy.to, copy.num_bytes, copy.tensor, target.peer);
    }
  }
  transfer.num_chunks = static_cast<int>(chunks.size());
  transfer.chunks = add(tables, std::move(chunks));
}

std::vector<CopyEnginePass::Transfer> CopyEnginePass::plan_casts(HostTables& tables) {
  const std::vector<int64_t> row_bytes = recv_row_bytes(spec_);
  std::vector<Transfer> transfers(spec_.casts.size());
  std::vector<uint32_t> waits;
  for (size_t stage = 0; stage < transfers.size(); ++stage) {
    Transfer& transfer = transfers[stage];
    finish_plan(tables, transfer, spec_.casts[stage].rows_received(), layout_.casts[stage], *recv_buffers_, row_bytes);
    append_waits(transfer, stage, layout_.cast_sources[stage], waits);
  }
  cast_waits_ = add(tables, std::move(waits));
  return transfers;
}

std::vector<CopyEnginePass::Transfer> CopyEnginePass::plan_returns(HostTables& tables) {
  const std::vector<int64_t> row_bytes = return_row_bytes(spec_);
  std::vector<Transfer> transfers(spec_.reduces.size());
  std::vector<uint32_t> waits, signals;
  for (size_t stage = 0; stage < transfers.size(); ++stage) {
    Transfer& transfer = transfers[stage];
    finish_plan(tables, transfer, spec_.reduces[stage].rows_sent(), layout_.returns[stage], *returns_, row_bytes);
    append_waits(transfer, stage, layout_.return_sources[stage], waits);
    transfer.first_signal = static_cast<int>(signals.size());
    for (const Target& owner : transfer.targets) {
      signals.push_back(static_cast<uint32_t>(stage << 8) | static_cast<uint32_t>(owner.peer));
    }
  }
  return_signals_ = add(tables, std::move(signals));
  num_return_waits_ = static_cast<int>(waits.size());
  return_waits_ = add(tables, std::move(waits));
  return transfers;
}

void CopyEnginePass::plan_credits(HostTables& tables) {
  while (spec_.reuses_sources && sent_.size() < spec_.casts.size()) sent_.push_back(std::make_unique<OwnedEvent>());
  if (spec_.credited.empty()) return;
  std::vector<uint32_t> gives, takes;
  const auto append = [](std::vector<uint32_t>& list, int stage, int peer) {
    list.push_back(static_cast<uint32_t>(stage) << 8 | static_cast<uint32_t>(peer));
  };
  for (const int stage : spec_.credited) {
    Transfer& transfer = casts_[static_cast<size_t>(stage)];
    transfer.is_credited = true;
    transfer.first_give = static_cast<int>(gives.size());
    for (const int source : layout_.cast_sources[static_cast<size_t>(stage)]) append(gives, stage, source);
    transfer.num_gives = static_cast<int>(gives.size()) - transfer.first_give;
    transfer.first_take = static_cast<int>(takes.size());
    for (const Target& target : transfer.targets) append(takes, stage, target.peer);
    transfer.num_takes = static_cast<int>(takes.size()) - transfer.first_take;
  }
  credit_gives_ = add(tables, std::move(gives));
  credit_takes_ = add(tables, std::move(takes));
}

void CopyEnginePass::plan_conversions(HostTables& tables) {
  const std::vector<int64_t> row_bytes = return_row_bytes(spec_);
  for (size_t t = 0; t < spec_.returns.size(); ++t) {
    const ReturnTensor& tensor = spec_.returns[t];
    const bool converts = tensor.partial_dtype != tensor.reduce_dtype;
    const int64_t bytes = tensor.partial_rows * row_bytes[t];
    converted_.push_back(group_->converted_rows(t, converts ? static_cast<size_t>(bytes) : 0));
    tables.bases.push_back(converted_.back()->as<char>());
  }
  converted_bases_ = tables_.add(tables.bases);
  for (const auto& stage : layout_.returns) {
    std::vector<Chunk> chunks;
    for (size_t t = 0; t < spec_.returns.size(); ++t) {
      if (spec_.returns[t].partial_dtype == spec_.returns[t].reduce_dtype) continue;
      for (const PeerPieces& owner : stage) {
        for (const Piece& piece : owner.pieces) {
          const int64_t begin = piece.from * row_bytes[t];
          append_chunks(chunks, begin, begin, piece.rows * row_bytes[t], static_cast<int>(t), static_cast<int>(t));
        }
      }
    }
    num_conversions_.push_back(static_cast<int>(chunks.size()));
    conversions_.push_back(add(tables, std::move(chunks)));
  }
}

void CopyEnginePass::plan_own_rows(HostTables& tables) {
  const std::vector<int64_t> row_bytes = recv_row_bytes(spec_);
  const int rank = group_->state.rank();
  std::vector<Chunk> chunks;
  for (size_t t = 0; t < row_bytes.size(); ++t) {
    const int64_t offset = recv_buffers_->tensor_offset(rank, static_cast<int>(t));
    for (const LocalKvRange& rows : spec_.own_rows) {
      const int64_t to = offset + rows.keys.begin * row_bytes[t];
      append_chunks(chunks, rows.row * row_bytes[t], to, rows.keys.size() * row_bytes[t], static_cast<int>(t), rank);
    }
  }
  num_own_chunks_ = static_cast<int>(chunks.size());
  own_chunks_ = add(tables, std::move(chunks));
}

void CopyEnginePass::plan_merge(const MergeTable& table, const std::vector<int32_t>* rows) {
  if (host_tables_ == nullptr) merge_apart_ = std::make_unique<cuda::PackedArrays>();
  cuda::PackedArrays& tables = merge_apart_ != nullptr ? *merge_apart_ : tables_;
  merge_begin_ = tables.add(table.begin);
  merge_entries_ = tables.add(table.entries);
  merge_before_ = tables.add(table.num_before);
  if (rows != nullptr) {
    merge_rows_ = tables.add(*rows);
    num_merge_rows_ = std::ssize(*rows);
  }
  tables.upload();
  host_tables_.reset();
}

void CopyEnginePass::before_call(cudaStream_t stream) const {
  TANGRAM_ASSERT(host_tables_ == nullptr);  // DevicePassSpec::leaves_rows
  tables_.before_call(stream);
  if (merge_apart_ != nullptr) merge_apart_->before_call(stream);
}

bool CopyEnginePass::leave_rows(std::span<const Range> rows, std::span<const Range> absent) {
  const Caller caller{group_->state.rank(), group_->state.size()};
  const MergedRows merged = merge_table_without(caller, spec_, layout_, rows, absent);
  plan_merge(merged.table, &merged.rows);
  return true;
}

}  // namespace tangram::comm
