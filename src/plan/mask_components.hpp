// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The parts of a mask that nothing connects, such as documents: where a change of the dispatch can be felt, and how
// many rows a rank lacks there.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/pack.hpp"
#include "tangram/slice.hpp"

namespace tangram {

/// Rows (of queries and keys) that no slice connects with others, over chunks of equal size. Every chunk belongs to
/// one: to the first that has rows in it, or to a stretch of chunks that nobody's rows lie in.
struct MaskComponent {
  Range rows;
  int first = 0;  // chunks [first, last) have rows of it
  int last = 0;
  int own = 0;             // chunks [own, last) belong to it, those before to earlier ones
  size_t first_entry = 0;  // of the chunk `first`
  bool sees_keys = false;  // false for a stretch without rows of the mask
  /// The keys of every chunk are one range, and both its ends only grow from chunk to chunk: so are those of a run.
  bool is_monotone = false;
};

/// Not for concurrent use: counting uses memory of the object.
class MaskComponents {
 public:
  /// Slices canonical and sorted by first query row.
  MaskComponents(std::span<const AttnSlice> slices, int64_t chunk_size, int num_chunks);

  size_t size() const { return components_.size(); }
  const MaskComponent& operator[](size_t index) const { return components_[index]; }
  size_t of_chunk(int chunk) const { return of_chunk_[static_cast<size_t>(chunk)]; }
  /// Components that have rows.
  size_t num_seeing() const { return num_seeing_; }

  /// Keys of component `index` that the chunks `owned` see and do not hold. `owned`: sorted runs within the component,
  /// not touching each other.
  int64_t remote_rows(size_t index, std::span<const ChunkRun> owned);

 private:
  void find(std::span<const AttnSlice> slices, int num_chunks);
  void collect_keys(std::span<const AttnSlice> slices);
  int64_t remote_rows_in(const Range& keys, std::span<const ChunkRun> owned, size_t& at) const;

  int64_t chunk_size_;
  std::vector<MaskComponent> components_;
  std::vector<size_t> of_chunk_;
  size_t num_seeing_ = 0;
  // Keys of a chunk in a component: keys_[entries_[e], entries_[e + 1]), sorted and free of overlap.
  std::vector<size_t> entries_;
  std::vector<Range> keys_;
  std::vector<Range> scratch_;
};

}  // namespace tangram
