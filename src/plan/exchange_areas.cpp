// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/exchange_areas.hpp"

#include <algorithm>

namespace tangram {

namespace {

// Chunks at one end of a run, taken from there inwards.
struct RunEnd {
  RankRun run;
  bool at_end = false;
  int64_t area = 0;  // of the first of them

  RankRun part(int count) const {
    return at_end ? RankRun{run.end - count, run.end, run.rank} : RankRun{run.begin, run.begin + count, run.rank};
  }
};

constexpr int kPartsOfRun = 16;

class AreaExchanges {
 public:
  AreaExchanges(std::vector<RankRun>& map, const RowAreas& areas, int64_t chunk_size, int cp_size, int64_t limit)
      : map_(map), areas_(areas), chunk_size_(chunk_size), limit_(limit), area_of_(static_cast<size_t>(cp_size)) {
    for (const RankRun& run : map) area_of_[static_cast<size_t>(run.rank)] += area(run);
  }

  void run() {
    const size_t most_steps = 64 * area_of_.size();
    // Cuts inside of runs where ends of runs, which leave fewer cuts, have nothing to offer.
    for (size_t n = 0; n < most_steps && (step(1) || step(kPartsOfRun)); ++n) {
    }
  }

 private:
  int64_t area(const RankRun& run) const {
    return areas_.before(run.end * chunk_size_) - areas_.before(run.begin * chunk_size_);
  }

  // The first count in [begin, end) for which `is_enough`, from which on it is; `end` if there is none.
  template <class IsEnough>
  static int first_from(int begin, int end, const IsEnough& is_enough) {
    while (begin < end) {
      const int middle = begin + (end - begin) / 2;
      if (is_enough(middle)) {
        end = middle;
      } else {
        begin = middle + 1;
      }
    }
    return end;
  }

  // `num_parts`: that runs are taken as, each with its ends.
  bool step(int num_parts) {
    const auto largest = std::max_element(area_of_.begin(), area_of_.end());
    const auto smallest = std::min_element(area_of_.begin(), area_of_.end());
    const int64_t room = limit_ - *smallest, wanted = std::min(*largest - limit_, room);
    if (wanted <= 0) return false;
    const int from = static_cast<int>(largest - area_of_.begin()), to = static_cast<int>(smallest - area_of_.begin());
    const RunEnd given = extreme_end(from, true, num_parts), taken = extreme_end(to, false, num_parts);
    const auto gain = [&](int count) { return area(given.part(count)) - area(taken.part(count)); };
    // Chunks inwards of the ends are more and more alike, and what is given may come to be the lighter.
    int high = first_from(1, std::min(given.run.size(), taken.run.size()),
                          [&](int count) { return gain(count + 1) <= gain(count); });
    high = first_from(1, high, [&](int count) { return gain(count) >= wanted; });
    const int low = high - 1;
    int count = gain(high) <= room ? high : low;
    while (count > 1 && gain(count) <= 0) count /= 2;  // a run of several documents, whose ends say little
    const int64_t gained = count > 0 ? gain(count) : 0;
    if (gained <= 0) return false;
    *largest -= gained;
    *smallest += gained;
    const RankRun out = given.part(count), back = taken.part(count);
    give(out, to);
    give(back, from);
    return true;
  }

  // The end of a part of a run of the rank whose chunk has the largest area, or the smallest.
  RunEnd extreme_end(int rank, bool is_largest, int num_parts) const {
    RunEnd best;
    for (const RankRun& run : map_) {
      if (run.rank != rank) continue;
      const int step = std::max(1, run.size() / num_parts);
      for (int begin = run.begin; begin < run.end; begin += step) {
        for (const bool at_end : {false, true}) {
          RunEnd end{{begin, std::min(run.end, begin + step), rank}, at_end, 0};
          end.area = area(end.part(1));
          if (best.run.size() == 0 || (is_largest ? end.area > best.area : end.area < best.area)) best = end;
        }
      }
    }
    return best;
  }

  void give(const RankRun& part, int rank) {
    given_.clear();
    const auto add = [&](int begin, int end, int owner) {
      if (begin >= end) return;
      if (!given_.empty() && given_.back().rank == owner) {
        given_.back().end = end;
      } else {
        given_.push_back({begin, end, owner});
      }
    };
    for (const RankRun& run : map_) {
      add(run.begin, std::min(run.end, part.begin), run.rank);
      add(std::max(run.begin, part.begin), std::min(run.end, part.end), rank);
      add(std::max(run.begin, part.end), run.end, run.rank);
    }
    std::swap(map_, given_);
  }

  std::vector<RankRun>& map_;
  const RowAreas& areas_;
  const int64_t chunk_size_;
  const int64_t limit_;
  std::vector<int64_t> area_of_;
  std::vector<RankRun> given_;
};

}  // namespace

void exchange_areas(std::vector<RankRun>& map, const RowAreas& areas, int64_t chunk_size, int cp_size, int64_t limit) {
  AreaExchanges(map, areas, chunk_size, cp_size, limit).run();
}

}  // namespace tangram
