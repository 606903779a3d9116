// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// All that a BufferedPass reads of the tables of one plan in one block, at places that depend on its spec alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "comm/device/chunk.hpp"
#include "comm/operation.hpp"
#include "tangram/buffered_pass.hpp"

namespace tangram::comm {

/// NOTE [buffered image] Kernels get the places of arrays and their capacity; the facts at the begin of the image hold
/// the current lengths. Chunks, of which a plan has few or many, stand at the end, so that a copy ends with what it
/// needs.
struct BufferedCounts {
  uint32_t tag = 0;             // of the call's facts
  int32_t own_chunks[2] = {};   // from, to: copied when an epoch is opened, zeros behind the last row among them
  int32_t sent_chunks[2] = {};  // likewise, to peers
  int32_t num_merged = 0;       // rows
};

/// Hash of all fields that must be equal on all ranks.
uint64_t hash_of(const BufferedPassSpec& spec);

class BufferedImage {
 public:
  /// Throws InvalidArgument for a spec that is not valid.
  BufferedImage(Caller caller, const BufferedPassSpec& spec);

  /// Bytes of the largest image.
  size_t bytes() const { return bytes_; }

  /// Throws InvalidArgument, naming what is too much, unless the tables fit.
  void check(const BufferedTables& tables) const;

  /// Writes tables that were checked to `to`, of bytes(), aligned to 256. `tensor_offsets`: where the receive buffers
  /// begin in a slot, on all ranks alike. Returns how many bytes the image has.
  size_t write(std::byte* to, const BufferedTables& tables, uint32_t tag, const std::vector<int64_t>& tensor_offsets,
               const std::function<void(std::byte*)>& write_user) const;

  // Offsets in bytes.
  size_t counts() const { return 0; }
  size_t user() const { return user_; }
  size_t merge_begin() const { return merge_begin_; }
  size_t merge_before() const { return merge_before_; }
  size_t merge_rows() const { return merge_rows_; }
  size_t merge_entries() const { return merge_entries_; }
  size_t chunks() const { return chunks_; }

  // The most there may be.
  int max_own_chunks() const { return max_own_chunks_; }
  int max_sent_chunks() const { return max_sent_chunks_; }
  /// Which source of begin() is zeros: kMaxChunkBytes of them.
  size_t zero_source() const { return spec_.recv_buffers.size(); }

 private:
  void append_own(std::vector<Chunk>& chunks, const BufferedTables& tables,
                  const std::vector<int64_t>& tensor_offsets) const;
  void append_sent(std::vector<Chunk>& chunks, const BufferedTables& tables,
                   const std::vector<int64_t>& tensor_offsets) const;
  /// Spec of a pass over these tables alone.
  DevicePassSpec pass_spec(const BufferedTables& tables) const;

  const Caller caller_;
  const BufferedPassSpec spec_;
  std::vector<int64_t> row_bytes_;  // of the receive buffers
  int max_own_chunks_ = 0, max_sent_chunks_ = 0;
  size_t user_ = 0, merge_begin_ = 0, merge_before_ = 0, merge_rows_ = 0, merge_entries_ = 0, chunks_ = 0;
  size_t bytes_ = 0;
};

}  // namespace tangram::comm
