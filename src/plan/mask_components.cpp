// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/mask_components.hpp"

#include <algorithm>

namespace tangram {

MaskComponents::MaskComponents(std::span<const AttnSlice> slices, int64_t chunk_size, int num_chunks)
    : chunk_size_(chunk_size), of_chunk_(static_cast<size_t>(num_chunks)) {
  find(slices, num_chunks);
  collect_keys(slices);
}

void MaskComponents::find(std::span<const AttnSlice> slices, int num_chunks) {
  std::vector<Range> hulls;
  hulls.reserve(slices.size());
  for (const AttnSlice& slice : slices) hulls.push_back(hull(slice.q_range, slice.k_range));
  std::sort(hulls.begin(), hulls.end());
  int next_chunk = 0;  // the first that belongs to no component yet
  size_t num_entries = 0;
  const auto add = [&](const Range& rows, bool sees_keys) {
    const int first = static_cast<int>(rows.begin / chunk_size_);
    const int last = static_cast<int>((rows.end + chunk_size_ - 1) / chunk_size_);
    components_.push_back({rows, first, last, std::clamp(next_chunk, first, last), num_entries, sees_keys, sees_keys});
    for (; next_chunk < last; ++next_chunk) of_chunk_[static_cast<size_t>(next_chunk)] = components_.size() - 1;
    if (!sees_keys) return;
    num_entries += static_cast<size_t>(last - first);
    ++num_seeing_;
  };
  const auto add_after_gap = [&](const Range& rows) {
    const Range gap{next_chunk * chunk_size_, rows.begin / chunk_size_ * chunk_size_};
    if (!gap.empty()) add(gap, false);
    if (!rows.empty()) add(rows, true);
  };
  Range rows;
  for (const Range& next : hulls) {
    if (!rows.empty() && next.begin >= rows.end) {
      add_after_gap(rows);
      rows = next;
    } else {
      rows = hull(rows, next);
    }
  }
  if (!rows.empty()) add_after_gap(rows);
  add_after_gap({num_chunks * chunk_size_, num_chunks * chunk_size_});
  entries_.assign(num_entries + 1, 0);
}

void MaskComponents::collect_keys(std::span<const AttnSlice> slices) {
  // (entry, keys) of every slice in every chunk, then grouped by entry.
  std::vector<std::pair<size_t, Range>> found;
  for (const AttnSlice& slice : slices) {
    const auto component = std::upper_bound(components_.begin(), components_.end(), slice.q_range.begin,
                                            [](int64_t row, const MaskComponent& c) { return row < c.rows.end; });
    for (int64_t c = slice.q_range.begin / chunk_size_; c * chunk_size_ < slice.q_range.end; ++c) {
      const AttnSlice part = cut_rows(slice, {c * chunk_size_, (c + 1) * chunk_size_});
      found.push_back({component->first_entry + static_cast<size_t>(c - component->first), part.k_range});
    }
  }
  if (!std::is_sorted(found.begin(), found.end())) std::sort(found.begin(), found.end());
  auto next = found.begin();
  for (size_t entry = 0; entry + 1 < entries_.size(); ++entry) {
    entries_[entry] = keys_.size();
    for (; next != found.end() && next->first == entry; ++next) {
      const Range& keys = next->second;
      if (keys_.size() > entries_[entry] && keys.begin <= keys_.back().end) {
        keys_.back().end = std::max(keys_.back().end, keys.end);
      } else {
        keys_.push_back(keys);
      }
    }
  }
  entries_.back() = keys_.size();
  for (MaskComponent& component : components_) {
    for (int c = component.first; c < component.last && component.is_monotone; ++c) {
      const size_t entry = component.first_entry + static_cast<size_t>(c - component.first);
      component.is_monotone = entries_[entry + 1] - entries_[entry] == 1;
      if (!component.is_monotone || c == component.first) continue;
      const Range& keys = keys_[entries_[entry]];
      const Range& before = keys_[entries_[entry] - 1];
      component.is_monotone = before.begin <= keys.begin && keys.begin <= before.end && before.end <= keys.end;
    }
  }
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
  const size_t* const entries = &entries_[component.first_entry] - component.first;
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
    for (const ChunkRun& run : owned) count({keys_[entries[run.begin]].begin, keys_[entries[run.end - 1]].end});
    return rows;
  }
  scratch_.clear();
  for (const ChunkRun& run : owned) {
    for (size_t k = entries[run.begin]; k < entries[run.end]; ++k) {
      const Range& keys = keys_[k];
      if (!scratch_.empty() && scratch_.back().begin <= keys.begin && keys.begin <= scratch_.back().end) {
        scratch_.back().end = std::max(scratch_.back().end, keys.end);
      } else {
        scratch_.push_back(keys);
      }
    }
  }
  std::sort(scratch_.begin(), scratch_.end());
  for (const Range& keys : scratch_) count(keys);
  return rows;
}

}  // namespace tangram
