// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/mask_components.hpp"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

namespace tangram {

MaskComponents::MaskComponents(std::span<const AttnSlice> slices, int64_t chunk_size, int num_chunks)
    : slices_(slices), chunk_size_(chunk_size) {
  find(slices, num_chunks);
  collect_keys();
}

namespace {

/// Hull of the rows, and of the keys, of connected slices.
struct Hull {
  Range rows;
  size_t first_slice;
  size_t last_slice;
};

/// Joins hulls that meet, without sorting them first: blocks mostly connect all rows after a few. False, and nothing
/// done, where too many stay apart.
bool join_hulls(std::vector<Hull>& hulls) {
  constexpr size_t kMost = 8;
  std::vector<Hull> apart;
  for (Hull hull_of : hulls) {
    // A hull apart from the joined hulls meets the union only if it meets this one.
    std::erase_if(apart, [&](const Hull& other) {
      if (other.rows.end <= hull_of.rows.begin || hull_of.rows.end <= other.rows.begin) return false;
      hull_of = {hull(hull_of.rows, other.rows), std::min(hull_of.first_slice, other.first_slice),
                 std::max(hull_of.last_slice, other.last_slice)};
      return true;
    });
    apart.push_back(hull_of);
    if (apart.size() > kMost) return false;
  }
  hulls = std::move(apart);
  return true;
}

}  // namespace

void MaskComponents::find(std::span<const AttnSlice> slices, int num_chunks) {
  std::vector<Hull> hulls;
  hulls.reserve(slices.size());
  for (size_t i = 0; i < slices.size(); ++i) hulls.push_back({hull(slices[i].q_range, slices[i].k_range), i, i + 1});
  const auto before = [](const Hull& a, const Hull& b) { return a.rows < b.rows; };
  if (!std::is_sorted(hulls.begin(), hulls.end(), before)) {
    join_hulls(hulls);
    std::sort(hulls.begin(), hulls.end(), before);
  }
  int next_chunk = 0;  // the first that belongs to no component yet
  const auto add = [&](const Hull& of, bool sees_keys) {
    MaskComponent component;
    component.rows = of.rows;
    component.first = static_cast<int>(of.rows.begin / chunk_size_);
    component.last = static_cast<int>((of.rows.end + chunk_size_ - 1) / chunk_size_);
    component.own = std::max(next_chunk, component.first);
    component.first_slice = of.first_slice;
    component.last_slice = of.last_slice;
    component.sees_keys = sees_keys;
    num_seeing_ += sees_keys ? 1 : 0;
    if (component.own >= component.last) return;
    component.is_monotone = is_monotone(component);
    next_chunk = component.last;
    components_.push_back(component);
  };
  const auto add_after_gap = [&](const Hull& of) {
    const Range gap{next_chunk * chunk_size_, of.rows.begin / chunk_size_ * chunk_size_};
    if (!gap.empty()) add({gap, of.first_slice, of.first_slice}, false);
    if (!of.rows.empty()) add(of, true);
  };
  Hull open{};
  for (const Hull& next : hulls) {
    if (!open.rows.empty() && next.rows.begin >= open.rows.end) {
      add_after_gap(open);
      open = next;
    } else if (open.rows.empty()) {
      open = next;
    } else {
      open.rows = hull(open.rows, next.rows);
      // Components lie apart in rows, so that their slices lie apart in the order of the rows.
      open.first_slice = std::min(open.first_slice, next.first_slice);
      open.last_slice = std::max(open.last_slice, next.last_slice);
    }
  }
  if (!open.rows.empty()) add_after_gap(open);
  const Range end{num_chunks * chunk_size_, num_chunks * chunk_size_};
  add_after_gap({end, slices.size(), slices.size()});
}

bool MaskComponents::is_monotone(const MaskComponent& component) const {
  for (size_t i = component.first_slice + 1; i < component.last_slice; ++i) {
    const AttnSlice& above = slices_[i - 1];
    const AttnSlice& below = slices_[i];
    if (below.q_range.begin != above.q_range.end) return false;
    const Range last = above.keys_of(above.q_range.end - 1);
    const Range first = below.keys_of(below.q_range.begin);
    if (first.begin < last.begin || first.end < last.end || first.begin > last.end) return false;
  }
  return true;
}

void MaskComponents::collect_keys() {
  // (entry, keys) of every slice in every chunk, then grouped by entry.
  std::vector<std::pair<size_t, Range>> found;
  size_t num_entries = 0;
  for (MaskComponent& component : components_) {
    if (!component.sees_keys || component.is_monotone || collect_segments(component)) continue;
    component.first_entry = num_entries;
    num_entries += static_cast<size_t>(component.last - component.first);
    for (size_t i = component.first_slice; i < component.last_slice; ++i) {
      const AttnSlice& slice = slices_[i];
      for (int64_t c = slice.q_range.begin / chunk_size_; c * chunk_size_ < slice.q_range.end; ++c) {
        const AttnSlice part = cut_rows(slice, {c * chunk_size_, (c + 1) * chunk_size_});
        found.push_back({component.first_entry + static_cast<size_t>(c - component.first), part.k_range});
      }
    }
  }
  entries_.assign(num_entries + 1, 0);
  std::vector<size_t> ends(num_entries + 1);  // of the entries' ranges
  for (const auto& [entry, keys] : found) ++ends[entry + 1];
  std::partial_sum(ends.begin(), ends.end(), ends.begin());
  std::vector<Range> grouped(found.size());
  for (const auto& [entry, keys] : found) grouped[ends[entry]++] = keys;
  auto next = grouped.begin();
  for (size_t entry = 0; entry < num_entries; ++entry) {
    entries_[entry] = keys_.size();
    const auto end = grouped.begin() + static_cast<std::ptrdiff_t>(ends[entry]);
    if (!std::is_sorted(next, end)) std::sort(next, end);
    for (; next != end; ++next) {
      const Range& keys = *next;
      if (keys_.size() > entries_[entry] && keys.begin <= keys_.back().end) {
        keys_.back().end = std::max(keys_.back().end, keys.end);
      } else {
        keys_.push_back(keys);
      }
    }
  }
  entries_.back() = keys_.size();
  for (MaskComponent& component : components_) {
    if (!component.sees_keys || component.is_monotone || component.has_open_keys) continue;
    component.first_chain = chains_.size();
    component.num_lines = num_lines(component);
    if (component.num_lines > 0) {
      collect_chains(component);
    } else {
      collect_cells(component);
    }
  }
}

// Keys of chunks on a coarse grid, as for block masks: a bit for each cell of it, so that the union of several chunks
// needs no sorting.
void MaskComponents::collect_cells(MaskComponent& component) {
  constexpr size_t kMostWords = size_t{1} << 20;
  constexpr size_t kWordsOfInterval = 16;  // that take less time than to sort one
  const auto num_chunks = static_cast<size_t>(component.last - component.first);
  const size_t first = entries_[component.first_entry], last = entries_[component.first_entry + num_chunks];
  int64_t end = 0;  // of all keys, at which the last cell may be cut
  for (size_t k = first; k < last; ++k) end = std::max(end, keys_[k].end);
  auto borders = static_cast<uint64_t>(chunk_size_);
  for (size_t k = first; k < last; ++k) {
    borders |= static_cast<uint64_t>(keys_[k].begin) | (keys_[k].end < end ? static_cast<uint64_t>(keys_[k].end) : 0);
  }
  const int shift = std::countr_zero(borders);
  const size_t num_words = ((num_chunks * static_cast<size_t>(chunk_size_) >> shift) + 63) / 64;
  if (num_words * num_chunks > std::min(kMostWords, kWordsOfInterval * (last - first))) return;
  component.num_words = num_words;
  component.first_word = cells_.size();
  component.cell_shift = shift;
  component.keys_end = end;
  cells_.resize(cells_.size() + num_words * num_chunks);
  for (size_t c = 0; c < num_chunks; ++c) {
    uint64_t* const words = cells_.data() + component.first_word + c * num_words;
    const size_t entry = component.first_entry + c;
    for (size_t k = entries_[entry]; k < entries_[entry + 1]; ++k) set_cells(component, keys_[k], words);
  }
}

void MaskComponents::set_cells(const MaskComponent& component, const Range& keys, uint64_t* words) const {
  const int64_t base = component.first * chunk_size_;
  const auto begin = static_cast<size_t>((keys.begin - base) >> component.cell_shift);
  const auto end = static_cast<size_t>((keys.end - 1 - base) >> component.cell_shift) + 1;
  for (size_t word = begin / 64; word * 64 < end; ++word) {
    uint64_t bits = ~uint64_t{0};
    if (word * 64 < begin) bits <<= begin % 64;
    if (end < (word + 1) * 64) bits &= (uint64_t{1} << (end % 64)) - 1;
    words[word] |= bits;
  }
}

int64_t MaskComponents::remote_cells(const MaskComponent& component, std::span<const ChunkRun> owned) {
  const size_t num_words = component.num_words;
  seen_.assign(2 * num_words, 0);  // then those that are owned
  for (const ChunkRun& run : owned) {
    for (int chunk = run.begin; chunk < run.end; ++chunk) {
      const auto of_chunk = static_cast<size_t>(chunk - component.first) * num_words;
      const uint64_t* const words = cells_.data() + component.first_word + of_chunk;
      for (size_t i = 0; i < num_words; ++i) seen_[i] |= words[i];
    }
    set_cells(component, {run.begin * chunk_size_, run.end * chunk_size_}, seen_.data() + num_words);
    const size_t entry = component.first_entry + static_cast<size_t>(run.begin - component.first);
    num_looked_at_ += static_cast<int64_t>(entries_[entry + static_cast<size_t>(run.size())] - entries_[entry]);
  }
  int64_t cells = 0;
  for (size_t i = 0; i < num_words; ++i) {
    seen_[i] &= ~seen_[num_words + i];
    cells += std::popcount(seen_[i]);
  }
  const int64_t last = (component.keys_end - 1 - component.first * chunk_size_) >> component.cell_shift;
  const bool has_last = ((seen_[static_cast<size_t>(last / 64)] >> (last % 64)) & 1) != 0;
  const int64_t behind = component.first * chunk_size_ + ((last + 1) << component.cell_shift) - component.keys_end;
  return (cells << component.cell_shift) - (has_last ? behind : 0);
}

size_t MaskComponents::num_lines(const MaskComponent& component) const {
  constexpr size_t kMostLines = 16;
  size_t most = 0;
  for (int chunk = component.first; chunk < component.last; ++chunk) {
    const size_t entry = component.first_entry + static_cast<size_t>(chunk - component.first);
    most = std::max(most, entries_[entry + 1] - entries_[entry]);
  }
  return most <= kMostLines ? most : 0;
}

void MaskComponents::collect_chains(const MaskComponent& component) {
  const auto num_chunks = static_cast<size_t>(component.last - component.first);
  for (size_t line = 0; line < component.num_lines; ++line) {
    const size_t first = chains_.size();
    for (size_t c = 0; c < num_chunks; ++c) {
      const size_t entry = component.first_entry + c;
      const bool any = entries_[entry] + line < entries_[entry + 1];
      chains_.push_back({any ? keys_[entries_[entry] + line] : Range{}, static_cast<int>(c)});
    }
    for (size_t c = num_chunks - 1; c-- > 0;) {
      const Range &keys = chains_[first + c].keys, &next = chains_[first + c + 1].keys;
      const bool goes_on =
          keys.empty() ? next.empty()
                       : !next.empty() && keys.begin <= next.begin && next.begin <= keys.end && keys.end <= next.end;
      if (goes_on) chains_[first + c].last = chains_[first + c + 1].last;
    }
  }
}

// Into scratch_.
void MaskComponents::collect_seen(const MaskComponent& component, std::span<const ChunkRun> owned) {
  scratch_.clear();
  size_t begin = 0;  // of this line, or of what is sorted up to here
  const auto add = [&](const Range& keys) {
    if (scratch_.size() > begin && scratch_.back().begin <= keys.begin && keys.begin <= scratch_.back().end) {
      scratch_.back().end = std::max(scratch_.back().end, keys.end);
    } else {
      scratch_.push_back(keys);
    }
  };
  const auto sort_from = [&](size_t from) {
    const auto at = scratch_.begin() + static_cast<std::ptrdiff_t>(from);
    if (!std::is_sorted(at, scratch_.end())) std::sort(at, scratch_.end());
    std::inplace_merge(scratch_.begin(), at, scratch_.end());
  };
  if (component.num_lines == 0) {
    const auto entry = [&](int chunk) {
      return entries_[component.first_entry + static_cast<size_t>(chunk - component.first)];
    };
    for (const ChunkRun& run : owned) {
      for (size_t k = entry(run.begin); k < entry(run.end); ++k) add(keys_[k]);
      num_looked_at_ += static_cast<int64_t>(entry(run.end) - entry(run.begin));
    }
    return sort_from(0);
  }
  const auto num_chunks = static_cast<size_t>(component.last - component.first);
  for (size_t line = 0; line < component.num_lines; ++line) {
    const Link* const links = chains_.data() + component.first_chain + line * num_chunks;
    begin = scratch_.size();
    for (const ChunkRun& run : owned) {
      const int end = run.end - component.first;
      for (int c = run.begin - component.first; c < end;) {
        const int last = std::min(links[c].last, end - 1);
        if (!links[c].keys.empty()) add({links[c].keys.begin, links[last].keys.end});
        c = last + 1;
      }
    }
    sort_from(begin);
  }
}

int MaskComponents::nearest_slice(const MaskComponent& component, int chunk) const {
  const auto begin = slices_.begin() + static_cast<std::ptrdiff_t>(component.first_slice);
  const auto end = slices_.begin() + static_cast<std::ptrdiff_t>(component.last_slice);
  const int64_t row = chunk * chunk_size_;
  const auto above = std::partition_point(begin, end, [&](const AttnSlice& s) { return s.q_range.begin < row; });
  const auto chunk_of = [&](auto at) { return static_cast<int>(at->q_range.begin / chunk_size_); };
  if (above == end) return chunk_of(above - 1);
  if (above == begin) return chunk_of(above);
  return chunk - chunk_of(above - 1) < chunk_of(above) - chunk ? chunk_of(above - 1) : chunk_of(above);
}

namespace {

/// Whether every key of `now` but `row` is one of `before`. Both: keys of slices, sorted, that may touch.
bool are_within(std::span<const Range> now, std::span<const Range> before, int64_t row) {
  auto at = before.begin();
  for (Range keys : now) {
    if (keys.end == row + 1) --keys.end;
    while (!keys.empty()) {
      while (at != before.end() && at->end <= keys.begin) ++at;
      if (at == before.end() || keys.begin < at->begin) return false;
      keys.begin = std::min(keys.end, at->end);
    }
  }
  return true;
}

}  // namespace

// Cuts the rows of a component where slices begin or end. False, and nothing is kept, where it has no open keys.
bool MaskComponents::collect_segments(MaskComponent& component) {
  constexpr size_t kMostSlices = 64;  // of a row: no tree is as deep, and scattered blocks have more
  std::vector<int64_t> borders;
  for (size_t i = component.first_slice; i < component.last_slice; ++i) {
    borders.push_back(slices_[i].q_range.begin);
    borders.push_back(slices_[i].q_range.end);
  }
  std::sort(borders.begin(), borders.end());
  borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
  const size_t first_segment = segments_.size(), first_index = slices_of_segments_.size();
  const auto refuse = [&] {
    segments_.resize(first_segment);
    slices_of_segments_.resize(first_index);
    return false;
  };
  std::vector<size_t> active;
  std::vector<Range> before, now;  // keys of the row before, and of the first of the segment
  size_t next = component.first_slice;
  for (size_t s = 0; s < borders.size(); ++s) {
    const int64_t row = borders[s];
    std::erase_if(active, [&](size_t i) { return slices_[i].q_range.end <= row; });
    for (; next < component.last_slice && slices_[next].q_range.begin == row; ++next) active.push_back(next);
    if (active.size() > kMostSlices) return refuse();
    const auto begins_before = [&](size_t a, size_t b) { return slices_[a].k_range.begin < slices_[b].k_range.begin; };
    std::sort(active.begin(), active.end(), begins_before);
    now.clear();
    for (const size_t i : active) {
      if (const Range keys = slices_[i].keys_of(row); !keys.empty()) now.push_back(keys);
    }
    // Slices share no cells, but where diagonals cut them their keys need not be in the order of k_range.
    if (!std::is_sorted(now.begin(), now.end()) || !are_within(now, before, row)) return refuse();
    const int64_t last_row = (s + 1 < borders.size() ? borders[s + 1] : row + 1) - 1;
    before.clear();
    for (const size_t i : active) {
      const AttnSlice& slice = slices_[i];
      const bool grows = row < last_row && row + slice.max_diag + 1 < slice.k_range.end;
      if (grows && slice.max_diag != 0) return refuse();
      if (const Range keys = slice.keys_of(last_row); !keys.empty()) before.push_back(keys);
    }
    if (!std::is_sorted(before.begin(), before.end())) return refuse();
    segments_.push_back({row, slices_of_segments_.size(), slices_of_segments_.size() + active.size()});
    slices_of_segments_.insert(slices_of_segments_.end(), active.begin(), active.end());
  }
  component.has_open_keys = true;
  component.first_segment = first_segment;
  component.last_segment = segments_.size();
  return true;
}

// Keys in [from, row) that `row` sees.
int64_t MaskComponents::open_keys_before(const MaskComponent& component, int64_t row, int64_t from) const {
  const Segment* at = segments_.data() + component.first_segment;
  if (row <= at->row) return 0;
  for (size_t count = component.last_segment - component.first_segment; count > 1;) {
    const size_t half = count / 2;
    at = at[half].row <= row ? at + half : at;
    count -= half;
  }
  int64_t keys = 0;
  for (size_t i = at->first; i < at->last; ++i) {
    keys += intersect(slices_[slices_of_segments_[i]].keys_of(row), {from, row}).size();
  }
  return keys;
}

// The keys of a run of chunks of a monotone component.
Range MaskComponents::keys_of_run(const MaskComponent& component, const ChunkRun& run) const {
  const AttnSlice* const begin = slices_.data() + component.first_slice;
  const AttnSlice* const end = slices_.data() + component.last_slice;
  const Range queries{begin->q_range.begin, (end - 1)->q_range.end};
  const Range rows = intersect(queries, {run.begin * chunk_size_, run.end * chunk_size_});
  if (rows.empty()) return {};
  const auto slice_of = [&](int64_t row) {
    const AttnSlice* at = begin;
    for (size_t count = static_cast<size_t>(end - begin); count > 1;) {
      const size_t half = count / 2;
      at = at[half].q_range.begin <= row ? at + half : at;
      count -= half;
    }
    return at;
  };
  return {slice_of(rows.begin)->keys_of(rows.begin).begin, slice_of(rows.end - 1)->keys_of(rows.end - 1).end};
}

// Rows of `keys` outside `owned`. `at`: a run before which nothing is of interest any more; moves on.
int64_t MaskComponents::remote_rows_in(const Range& keys, std::span<const ChunkRun> owned, size_t& at) const {
  while (at < owned.size() && owned[at].end * chunk_size_ <= keys.begin) ++at;
  int64_t rows = keys.size();
  for (size_t i = at; i < owned.size() && owned[i].begin * chunk_size_ < keys.end; ++i) {
    rows -= intersect(keys, {owned[i].begin * chunk_size_, owned[i].end * chunk_size_}).size();
  }
  return rows;
}

int64_t MaskComponents::remote_rows(size_t index, std::span<const ChunkRun> owned) {
  const MaskComponent& component = components_[index];
  if (!component.sees_keys || owned.empty()) return 0;
  int64_t rows = 0;
  int64_t done = 0;  // keys before it are counted
  size_t at = 0;
  const auto count = [&](const Range& keys) {
    const Range fresh{std::max(keys.begin, done), keys.end};
    if (fresh.empty()) return;
    rows += remote_rows_in(fresh, owned, at);
    done = fresh.end;
  };
  if (component.is_monotone) {
    for (const ChunkRun& run : owned) count(keys_of_run(component, run));
    return rows;
  }
  if (component.has_open_keys) {
    int64_t from = 0;
    for (const ChunkRun& run : owned) {
      rows += open_keys_before(component, run.begin * chunk_size_, from);
      from = run.end * chunk_size_;
    }
    return rows;
  }
  if (component.num_words > 0) return remote_cells(component, owned);
  collect_seen(component, owned);
  for (const Range& keys : scratch_) count(keys);
  return rows;
}

}  // namespace tangram
