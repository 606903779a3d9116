// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/arrival_order.hpp"

#include <algorithm>
#include <vector>

#include "core/require.hpp"

namespace tangram::schedule {

namespace {

/// Keys of one arrival; `turn` 0 stands for keys that are there from the start.
struct Stretch {
  Range keys;
  int64_t turn = 0;
};

/// The late keys as disjoint stretches in key order.
class Arrivals {
 public:
  explicit Arrivals(std::span<const KeyArrival> arrivals) {
    for (const KeyArrival& arrival : arrivals) {
      if (!arrival.keys.empty()) late_.push_back({arrival.keys, static_cast<int64_t>(late_.size()) + 1});
    }
    std::sort(late_.begin(), late_.end(),
              [](const Stretch& a, const Stretch& b) { return a.keys.begin < b.keys.begin; });
    for (size_t i = 1; i < late_.size(); ++i) TANGRAM_ASSERT(late_[i - 1].keys.end <= late_[i].keys.begin);
  }

  /// Calls visit(stretch) for all of `keys`, cut where arrivals meet, in key order.
  template <class Visit>
  void for_each(const Range& keys, const Visit& visit) const {
    auto next = std::upper_bound(late_.begin(), late_.end(), keys.begin,
                                 [](int64_t key, const Stretch& stretch) { return key < stretch.keys.end; });
    for (int64_t at = keys.begin; at < keys.end;) {
      if (next == late_.end() || next->keys.begin >= keys.end) {
        visit(Stretch{{at, keys.end}, 0});
        return;
      }
      if (at < next->keys.begin) visit(Stretch{{at, next->keys.begin}, 0});
      const Range part = intersect(next->keys, {at, keys.end});
      visit(Stretch{part, next->turn});
      at = part.end;
      ++next;
    }
  }

 private:
  std::vector<Stretch> late_;
};

/// The part of a run in closed form over `keys`.
TileRun cut_run(const TileRun& run, const Range& keys) {
  TileRun part = run;
  part.k_begin = static_cast<int32_t>(keys.begin);
  part.k_end = static_cast<int32_t>(keys.end);
  part.slice_k_begin = std::max(run.slice_k_begin, part.k_begin);
  part.slice_k_end = std::min(run.slice_k_end, part.k_end);
  part.full_begin = std::max(run.full_begin, part.k_begin);
  part.full_end = std::min(run.full_end, part.k_end);
  if (part.full_begin >= part.full_end) part.full_begin = part.full_end = 0;
  return part;
}

class Orderer {
 public:
  Orderer(TileList& tiles, std::span<const KeyArrival> arrivals) : tiles_(tiles), late_(arrivals) {}

  void run(int64_t first_wave) {
    std::vector<int64_t> present;
    for (const TileItem& item : tiles_.items) present.push_back(keys_present(item));
    std::vector<size_t> front(tiles_.items.size());
    for (size_t i = 0; i < front.size(); ++i) front[i] = i;
    const size_t count = std::min(front.size(), static_cast<size_t>(first_wave));
    std::stable_sort(front.begin(), front.end(), [&](size_t a, size_t b) { return present[a] > present[b]; });
    front.resize(count);
    std::vector<bool> moved(tiles_.items.size());
    std::vector<TileItem> items;
    for (const size_t i : front) {
      moved[i] = true;
      items.push_back(cut_by_arrival(tiles_.items[i]));
    }
    for (size_t i = 0; i < tiles_.items.size(); ++i) {
      if (!moved[i]) items.push_back(tiles_.items[i]);
    }
    tiles_.items = std::move(items);
  }

 private:
  int64_t keys_present(const TileItem& item) const {
    int64_t keys = 0;
    for (int32_t r = item.run_begin; r < item.run_end; ++r) {
      const TileRun& run = tiles_.runs[static_cast<size_t>(r)];
      late_.for_each({run.k_begin, run.k_end}, [&](const Stretch& stretch) {
        if (stretch.turn == 0) keys += stretch.keys.size();
      });
    }
    return keys;
  }

  /// The item with new runs at the end of the list.
  TileItem cut_by_arrival(const TileItem& item) {
    struct Part {
      int64_t turn;
      TileRun run;
    };
    std::vector<Part> parts;
    for (int32_t r = item.run_begin; r < item.run_end; ++r) {
      const TileRun run = tiles_.runs[static_cast<size_t>(r)];
      if (run.interval_begin >= 0) {  // its rows have intervals of their own, which would have to be cut as well
        int64_t last = 0;
        late_.for_each({run.k_begin, run.k_end}, [&](const Stretch& part) { last = std::max(last, part.turn); });
        parts.push_back({last, run});
        continue;
      }
      for (const Stretch& part : whole_tiles(run)) parts.push_back({part.turn, cut_run(run, part.keys)});
    }
    std::stable_sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.turn < b.turn; });
    TileItem cut = item;
    cut.run_begin = static_cast<int32_t>(tiles_.runs.size());
    for (const Part& part : parts) tiles_.runs.push_back(part.run);
    cut.run_end = static_cast<int32_t>(tiles_.runs.size());
    return cut;
  }

  /// A run in stretches of whole tiles of keys, which come when their last key does: cuts anywhere else would leave
  /// tiles partly filled on both sides.
  std::vector<Stretch> whole_tiles(const TileRun& run) const {
    const int64_t begin = run.k_begin, block = tiles_.shape.block_n;
    std::vector<Stretch> parts;  // keys counted in tiles
    late_.for_each({begin, run.k_end}, [&](const Stretch& stretch) {
      Range tiles{(stretch.keys.begin - begin) / block, (stretch.keys.end - 1 - begin) / block + 1};
      if (!parts.empty() && parts.back().keys.end > tiles.begin) {  // they share a tile
        Stretch& before = parts.back();
        if (before.turn < stretch.turn) {
          if (--before.keys.end == before.keys.begin) parts.pop_back();
        } else if (++tiles.begin == tiles.end) {
          return;
        }
      }
      if (!parts.empty() && parts.back().turn == stretch.turn) {
        parts.back().keys.end = tiles.end;
      } else {
        parts.push_back({tiles, stretch.turn});
      }
    });
    for (Stretch& part : parts) {
      part.keys = {begin + part.keys.begin * block, std::min<int64_t>(begin + part.keys.end * block, run.k_end)};
    }
    return parts;
  }

  TileList& tiles_;
  Arrivals late_;
};

}  // namespace

void order_by_arrival(TileList& tiles, std::span<const KeyArrival> arrivals, int64_t first_wave) {
  Orderer(tiles, arrivals).run(first_wave);
}

}  // namespace tangram::schedule
