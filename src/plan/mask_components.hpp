// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The components of a mask, such as documents. A change of the dispatch affects single components; each tells how many
// rows a rank lacks there.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/pack.hpp"
#include "tangram/slice.hpp"

namespace tangram {

/// Rows (of queries and keys) that no slice connects with others, over chunks of equal size. Every chunk belongs to
/// one component: to the first that has rows in it, or to a range of chunks without rows of any component. Components
/// inside one chunk that belongs to another are left out: no dispatch can tear them apart.
struct MaskComponent {
  Range rows;
  int first = 0;  // chunks [first, last) have rows of it
  int last = 0;
  int own = 0;             // chunks [own, last) belong to it; there may be one before, of the component before
  size_t first_slice = 0;  // its slices, in row order
  size_t last_slice = 0;
  size_t first_entry = 0;  // of the chunk `first`, where is_monotone is false
  size_t first_chain = 0;  // of its chains, where there are num_lines of them
  size_t num_lines = 0;
  size_t first_word = 0;  // of its cells, where chunks have num_words of them, for 2^cell_shift rows a bit
  size_t num_words = 0;
  int cell_shift = 0;
  int64_t keys_end = 0;    // of all keys
  bool sees_keys = false;  // false for a range without rows of the mask
  /// The keys of every row are one interval, both ends only grow from row to row, and neighbours leave no gap. So the
  /// keys of a run of rows follow from its first and last row.
  bool is_monotone = false;
  /// NOTE [open keys]: Every key is seen by the row of its number and the rows behind it up to some row, and by no
  /// other. Prefix trees in preorder are such masks. Then a rank lacks, before each of its runs, the keys that the
  /// run's first row sees and that lie behind its previous run. Later rows of the run see no other keys before it.
  bool has_open_keys = false;
  size_t first_segment = 0;  // of has_open_keys, in row order
  size_t last_segment = 0;

  bool shares_first_chunk() const { return own > first; }
};

/// Not for concurrent use: counting uses memory of the object. Keeps the slices by reference.
class MaskComponents {
 public:
  /// Slices canonical and sorted by first query row.
  MaskComponents(std::span<const AttnSlice> slices, int64_t chunk_size, int num_chunks);

  size_t size() const { return components_.size(); }
  const MaskComponent& operator[](size_t index) const { return components_[index]; }
  /// Components that have rows.
  size_t num_seeing() const { return num_seeing_; }

  /// The chunk nearest to `chunk` in which a slice of the component begins.
  int nearest_slice(const MaskComponent& component, int chunk) const;

  /// Keys of component `index` that the chunks `owned` see and do not hold. `owned`: sorted runs within the component,
  /// not touching each other.
  int64_t remote_rows(size_t index, std::span<const ChunkRun> owned);
  /// Cached intervals of the chunks of remote_rows(), for components whose chunks see many. Sorting them, if they lie
  /// on no coarse grid, takes most of the time.
  int64_t num_looked_at() const { return num_looked_at_; }

 private:
  void find(std::span<const AttnSlice> slices, int num_chunks);
  bool is_monotone(const MaskComponent& component) const;
  void collect_keys();
  /// Number of lines in the chains of a component; 0 if chunks see many intervals.
  size_t num_lines(const MaskComponent& component) const;
  void collect_chains(const MaskComponent& component);
  void collect_cells(MaskComponent& component);
  void set_cells(const MaskComponent& component, const Range& keys, uint64_t* words) const;
  int64_t remote_cells(const MaskComponent& component, std::span<const ChunkRun> owned);
  void collect_seen(const MaskComponent& component, std::span<const ChunkRun> owned);
  bool collect_segments(MaskComponent& component);
  int64_t open_keys_before(const MaskComponent& component, int64_t row, int64_t from) const;
  Range keys_of_run(const MaskComponent& component, const ChunkRun& run) const;
  int64_t remote_rows_in(const Range& keys, std::span<const ChunkRun> owned, size_t& at) const;

  std::span<const AttnSlice> slices_;
  int64_t chunk_size_;
  std::vector<MaskComponent> components_;
  size_t num_seeing_ = 0;
  // Keys of a chunk in a component that is not monotone: keys_[entries_[e], entries_[e + 1]), sorted, free of overlap.
  std::vector<size_t> entries_;
  std::vector<Range> keys_;
  /// Chains, for components in which no chunk sees more than a few intervals. Line k has the k-th interval of every
  /// chunk, or an empty one. From chunk to chunk up to `last` (counted from MaskComponent::first) both ends only grow
  /// and leave no gap, or all are empty. So the first and the last chunk tell what a run of chunks sees of a line.
  struct Link {
    Range keys;
    int last = 0;
  };
  std::vector<Link> chains_;
  /// Rows from `row` on see keys of `slices_of_segments_[first, last)`, indices into slices_, keys ascending.
  struct Segment {
    int64_t row = 0;
    size_t first = 0;
    size_t last = 0;
  };
  std::vector<Segment> segments_;
  std::vector<size_t> slices_of_segments_;
  std::vector<uint64_t> cells_;  // of components whose chunks see many intervals on a coarse grid
  std::vector<uint64_t> seen_;
  std::vector<Range> scratch_;
  int64_t num_looked_at_ = 0;
};

}  // namespace tangram
