// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/ready_order.hpp"

#include <algorithm>
#include <vector>

#include "core/require.hpp"

namespace tangram::schedule {

namespace {

/// Keys of one arrival; `turn` 0 stands for keys that are there from the start.
struct LocalRange {
  Range keys;
  int64_t turn = 0;
};

/// The awaited keys as disjoint ranges in key order.
class ReadyFlags {
 public:
  explicit ReadyFlags(std::span<const KeyReadyFlag> ready_flags) {
    for (const KeyReadyFlag& ready_flag : ready_flags) {
      if (!ready_flag.keys.empty()) late_.push_back({ready_flag.keys, static_cast<int64_t>(late_.size()) + 1});
    }
    std::sort(late_.begin(), late_.end(),
              [](const LocalRange& a, const LocalRange& b) { return a.keys.begin < b.keys.begin; });
    for (size_t i = 1; i < late_.size(); ++i) TANGRAM_ASSERT(late_[i - 1].keys.end <= late_[i].keys.begin);
    num_before_.reserve(late_.size());
    int64_t num_keys = 0;
    for (const LocalRange& local_range : late_) {
      num_before_.push_back(num_keys);
      num_keys += local_range.keys.size();
    }
  }

  /// Awaited keys before this one.
  int64_t num_before(int64_t key) const {
    const auto next = std::lower_bound(late_.begin(), late_.end(), key, [](const LocalRange& local_range, int64_t k) {
      return local_range.keys.begin < k;
    });
    if (next == late_.begin()) return 0;
    const auto last = static_cast<size_t>(next - late_.begin()) - 1;
    return num_before_[last] + std::min(key, late_[last].keys.end) - late_[last].keys.begin;
  }

  /// Calls visit(range) for all of `keys`, cut where arrivals meet, in key order.
  template <class Visit>
  void for_each(const Range& keys, const Visit& visit) const {
    auto next = std::upper_bound(late_.begin(), late_.end(), keys.begin,
                                 [](int64_t key, const LocalRange& local_range) { return key < local_range.keys.end; });
    for (int64_t at = keys.begin; at < keys.end;) {
      if (next == late_.end() || next->keys.begin >= keys.end) {
        visit(LocalRange{{at, keys.end}, 0});
        return;
      }
      if (at < next->keys.begin) visit(LocalRange{{at, next->keys.begin}, 0});
      const Range part = intersect(next->keys, {at, keys.end});
      visit(LocalRange{part, next->turn});
      at = part.end;
      ++next;
    }
  }

 private:
  std::vector<LocalRange> late_;
  std::vector<int64_t> num_before_;  // keys of those before each
};

/// The part of a run in closed form over `keys`.
TileRange cut_run(const TileRange& run, const Range& keys) {
  TileRange part = run;
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
  Orderer(TileList& tiles, std::span<const KeyReadyFlag> ready_flags) : tiles_(tiles), late_(ready_flags) {}

  void run(int64_t first_wave) {
    struct Candidate {
      int64_t present;  // keys
      size_t work_tile;
    };
    const auto before = [](const Candidate& a, const Candidate& b) {
      return a.present != b.present ? a.present > b.present : a.work_tile < b.work_tile;
    };
    const size_t count = std::min(tiles_.work_tiles.size(), static_cast<size_t>(first_wave));
    std::vector<Candidate> front;
    front.reserve(2 * count);
    int64_t least = -1;  // keys present of the last of `count` work tiles: a work tile without more comes behind them
    const auto keep_first = [&] {
      const auto last = front.begin() + static_cast<std::ptrdiff_t>(count) - 1;
      std::nth_element(front.begin(), last, front.end(), before);
      least = last->present;
      front.resize(count);
    };
    for (size_t i = 0; i < tiles_.work_tiles.size() && count > 0; ++i) {
      if (num_keys(tiles_.work_tiles[i]) <= least) continue;
      front.push_back({keys_present(tiles_.work_tiles[i]), i});
      if (front.size() == 2 * count) keep_first();
    }
    if (front.size() > count) keep_first();
    std::sort(front.begin(), front.end(), before);
    std::vector<char> moved(tiles_.work_tiles.size());
    std::vector<MaskTile> work_tiles;
    work_tiles.reserve(tiles_.work_tiles.size());
    for (const Candidate& candidate : front) {
      moved[candidate.work_tile] = 1;
      work_tiles.push_back(cut_by_readiness(tiles_.work_tiles[candidate.work_tile]));
    }
    for (size_t i = 0; i < tiles_.work_tiles.size(); ++i) {
      if (moved[i] == 0) work_tiles.push_back(tiles_.work_tiles[i]);
    }
    tiles_.work_tiles = std::move(work_tiles);
  }

 private:
  struct Part {
    int64_t turn;
    TileRange run;
  };

  int64_t num_keys(const MaskTile& work_tile) const {
    int64_t keys = 0;
    for (int32_t r = work_tile.run_begin; r < work_tile.run_end; ++r) {
      keys += tiles_.runs[static_cast<size_t>(r)].k_end - tiles_.runs[static_cast<size_t>(r)].k_begin;
    }
    return keys;
  }
  int64_t keys_present(const MaskTile& work_tile) const {
    int64_t keys = 0;
    for (int32_t r = work_tile.run_begin; r < work_tile.run_end; ++r) {
      const TileRange& run = tiles_.runs[static_cast<size_t>(r)];
      keys += run.k_end - run.k_begin - (late_.num_before(run.k_end) - late_.num_before(run.k_begin));
    }
    return keys;
  }

  /// The work tile with new runs at the end of the list.
  MaskTile cut_by_readiness(const MaskTile& work_tile) {
    parts_.clear();
    for (int32_t r = work_tile.run_begin; r < work_tile.run_end; ++r) {
      const TileRange run = tiles_.runs[static_cast<size_t>(r)];
      if (run.interval_begin >= 0) {  // its rows have intervals of their own, which would have to be cut as well
        int64_t last = 0;
        late_.for_each({run.k_begin, run.k_end}, [&](const LocalRange& part) { last = std::max(last, part.turn); });
        add_part({last, run});
        continue;
      }
      find_whole_tiles(run);
      for (const LocalRange& part : local_ranges_) add_part({part.turn, cut_run(run, part.keys)});
    }
    MaskTile cut = work_tile;
    cut.run_begin = static_cast<int32_t>(tiles_.runs.size());
    for (const Part& part : parts_) tiles_.runs.push_back(part.run);
    cut.run_end = static_cast<int32_t>(tiles_.runs.size());
    return cut;
  }

  /// Behind the parts that come as early.
  void add_part(const Part& part) {
    const auto after = std::upper_bound(parts_.begin(), parts_.end(), part.turn,
                                        [](int64_t turn, const Part& other) { return turn < other.turn; });
    parts_.insert(after, part);
  }

  /// Cuts a run into ranges of whole key tiles, each ready when its last key is. Cuts elsewhere would leave tiles
  /// partly filled on both sides.
  void find_whole_tiles(const TileRange& run) {
    const int64_t begin = run.k_begin, block = tiles_.shape.block_n;
    std::vector<LocalRange>& parts = local_ranges_;  // keys counted in tiles
    parts.clear();
    late_.for_each({begin, run.k_end}, [&](const LocalRange& local_range) {
      Range tiles{(local_range.keys.begin - begin) / block, (local_range.keys.end - 1 - begin) / block + 1};
      if (!parts.empty() && parts.back().keys.end > tiles.begin) {  // they share a tile
        LocalRange& before = parts.back();
        if (before.turn < local_range.turn) {
          if (--before.keys.end == before.keys.begin) parts.pop_back();
        } else if (++tiles.begin == tiles.end) {
          return;
        }
      }
      if (!parts.empty() && parts.back().turn == local_range.turn) {
        parts.back().keys.end = tiles.end;
      } else {
        parts.push_back({tiles, local_range.turn});
      }
    });
    for (LocalRange& part : parts) {
      part.keys = {begin + part.keys.begin * block, std::min<int64_t>(begin + part.keys.end * block, run.k_end)};
    }
  }

  TileList& tiles_;
  ReadyFlags late_;
  std::vector<Part> parts_;               // of the work tile that is being cut
  std::vector<LocalRange> local_ranges_;  // of its run
};

}  // namespace

void order_by_readiness(TileList& tiles, std::span<const KeyReadyFlag> ready_flags, int64_t first_wave) {
  Orderer(tiles, ready_flags).run(first_wave);
}

}  // namespace tangram::schedule
