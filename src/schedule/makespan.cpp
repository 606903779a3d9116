// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/makespan.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "schedule/multiprocessors.hpp"

namespace tangram::schedule {

namespace {

/// Costs of head splits of work tiles, in half steps, of which all costs are multiples.
class PieceCosts {
 public:
  PieceCosts(int group, bool all_together, const WorkTileCosts& costs) : of_(static_cast<size_t>(group) + 1) {
    const double join = all_together ? 0.2 : 0;  // pieces scheduled together end together: joining waits for the others
    for (int head_splits = 1; head_splits <= group; ++head_splits) {
      const double joins = head_splits == 1 ? 0 : 1 + join * (head_splits - 2);
      of_[static_cast<size_t>(head_splits)] = {2 * (group / head_splits), halves(costs.work_tile + joins * costs.join),
                                               group % head_splits == 0};
    }
  }

  static int64_t halves(double steps) { return static_cast<int64_t>(std::ceil(2 * steps)); }

  /// Half steps of one split of a work tile. Uneven splits (is_even): the smaller one; a larger one has one head more.
  int64_t of(int64_t count, int head_splits) const { return count * at(head_splits).tile + at(head_splits).cost; }
  /// Half steps of all splits of a work tile; without steps the least that it costs.
  int64_t of_all(int64_t count, int head_splits) const {
    return count == 0 ? at(1).cost
                      : 2 * count * static_cast<int64_t>(of_.size() - 1) + head_splits * at(head_splits).cost;
  }
  int64_t tile(int head_splits) const { return at(head_splits).tile; }
  bool is_even(int head_splits) const { return at(head_splits).is_even; }
  /// The most that a piece takes beside its steps.
  int64_t most() const { return std::max(of_.back().cost, of_[1].cost); }

 private:
  struct Piece {
    int64_t tile = 0;  // of the heads of a small piece
    int64_t cost = 0;
    bool is_even = true;  // all pieces are small
  };
  const Piece& at(int head_splits) const { return of_[static_cast<size_t>(head_splits)]; }

  std::vector<Piece> of_;
};

int64_t longest_count(const Extents& extents) {
  int64_t longest = 0;
  for (const Extent& extent : extents.of_keys) longest = std::max(longest, extent.count);
  return longest;
}

/// At least the steps of the longest piece.
int64_t most_steps_of_piece(const Setting& in, const TileSchedule& how) {
  const int group = in.shape.num_heads_q / in.shape.num_heads_kv;
  const int64_t heads = (group + how.head_splits - 1) / how.head_splits, longest = longest_count(in.extents) * heads;
  if (how.max_steps == 0) return longest;
  int64_t most = how.max_steps * heads;
  if (how.guided_divisor > 0) {
    const double rest = even_steps(in) * in.gpu.multiprocessors;
    most = std::max(most, (static_cast<int64_t>(rest) / how.guided_divisor + 1) * heads);
  }
  return std::min(most + longest, longest * group);  // large pieces have a head more, and the smallest are not cut
}

}  // namespace

double makespan(const Setting& in, const TileSchedule& how, const WorkTileCosts& costs, double enough) {
  const int group = in.shape.num_heads_q / in.shape.num_heads_kv;
  const PieceCosts piece_costs(group, how.heads_in_l2 == 0, costs);
  const double latest = in.arrives.empty() ? 0 : *std::max_element(in.arrives.begin(), in.arrives.end());
  CountedMultiprocessors machine(in.gpu.multiprocessors,
                                 2 * most_steps_of_piece(in, how) + piece_costs.most() + PieceCosts::halves(latest));
  const auto enough_halves = static_cast<int64_t>(std::min(std::ceil(2 * enough), 1e18));
  for_each_tile_span(in.extents, in.shape.num_heads_kv, how, [&](size_t i, int first, int last, int head_splits) {
    if (machine.end() > enough_halves) return;
    const Extent& extent = in.extents.of_keys[i];
    int count = last - first;
    if (extent.count == 0) {  // one piece a head
      count = (last + head_splits - 1) / head_splits - (first + head_splits - 1) / head_splits;
      head_splits = 1;
    }
    const int64_t steps = piece_costs.of(extent.count, head_splits);
    const int64_t arrives = in.arrives.empty() ? 0 : PieceCosts::halves(in.arrives[i]);
    int large = 0;
    for (int number = first; !piece_costs.is_even(head_splits) && number < last; ++number) {
      const int heads = first_head_of_split(group, head_splits, number % head_splits + 1) -
                        first_head_of_split(group, head_splits, number % head_splits);
      if (2 * heads > piece_costs.tile(head_splits)) ++large;
    }
    machine.run(steps, count - large, arrives);
    if (large > 0) machine.run(steps + 2 * extent.count, large, arrives);
  });
  return static_cast<double>(machine.end()) / 2;
}

std::optional<Bounds> makespan_bounds(const Setting& in, const TileSchedule& how, const WorkTileCosts& costs) {
  if (!in.arrives.empty() || how.last_wave_heads > 0 || how.guided_divisor > 0) return std::nullopt;
  const int group = in.shape.num_heads_q / in.shape.num_heads_kv;
  const PieceCosts piece_costs(group, how.heads_in_l2 == 0, costs);
  const std::vector<size_t>& order = how.by_document ? in.extents.by_group : in.extents.order;
  const double share = 1.0 / in.gpu.multiprocessors;
  double most = 0;
  int64_t scheduled = 0, longest_of_all = 0;  // half steps of all work tiles up to this group, of the longest one
  const auto add_group = [&](size_t begin, size_t end) {
    const int heads = in.shape.num_heads_kv;
    const int units = heads * (how.max_steps > 0 ? 1 : how.head_splits);  // what sections are counted in
    const int heads_in_l2 = how.heads_in_l2 == 0 ? units : std::min(how.heads_in_l2, units);
    const int last = units % heads_in_l2 == 0 ? heads_in_l2 : units % heads_in_l2;
    const auto pieces_of = [&](int64_t count) {
      return how.max_steps == 0 ? how.head_splits
                                : head_splits_for(how.max_steps, count * how.head_splits, how.head_splits);
    };
    for (size_t at = begin; at < end; ++at) {
      const int64_t count = in.extents.of_keys[order[at]].count;
      scheduled += heads * piece_costs.of_all(count, pieces_of(count));
    }
    // One section: half steps from the begin of a work tile on, and the latest end of a work tile beyond the group's
    // even share.
    struct Section {
      int64_t rest = 0;
      double late = 0;
    } of_last, before;
    const int more = units > last ? heads_in_l2 : 0;  // the section before: others are no longer, and begin earlier
    int64_t longest = 0;
    for (size_t at = end; at-- > begin;) {
      const int64_t count = in.extents.of_keys[order[at]].count;
      const int head_splits = pieces_of(count), in_unit = how.max_steps > 0 ? head_splits : 1;
      const int64_t small = piece_costs.of(count, head_splits),
                    large = small + (piece_costs.is_even(head_splits) ? 0 : 2 * count);
      const int64_t at_least = count == 0 ? 0 : small;  // without steps it is a piece a head
      longest = std::max(longest, large);
      if (count > 0) longest_of_all = std::max(longest_of_all, large);
      for (auto& [section, so_many] : {std::pair{&of_last, last}, {&before, more}}) {
        const double late = static_cast<double>(large) - static_cast<double>(section->rest + at_least) * share;
        if (so_many > 0) section->late = std::max(section->late, late);
        section->rest += at_least * in_unit * so_many;
      }
    }
    if (how.max_steps > 0) {  // pieces of a section are sorted: any of them may be the last one
      of_last.late = before.late = static_cast<double>(longest) * (1 - share);
    }
    most = std::max({most, static_cast<double>(scheduled) * share + of_last.late,
                     static_cast<double>(scheduled - of_last.rest) * share + before.late});
  };
  if (how.by_document) {
    size_t begin = 0;
    for (const size_t end : in.extents.group_ends) {
      add_group(begin, end);
      begin = end;
    }
  } else {
    add_group(0, order.size());
  }
  constexpr double kRounding = 1e-9;  // of sums
  const double least = std::max(static_cast<double>(scheduled) * share, static_cast<double>(longest_of_all));
  return Bounds{least / 2 * (1 - kRounding), most / 2 * (1 + kRounding)};
}

double least_makespan(const Setting& in, const WorkTileCosts& costs) {
  const double work_tiles = static_cast<double>(in.extents.of_keys.size()) * in.shape.num_heads_kv;
  return (even_steps(in) + work_tiles * costs.work_tile / in.gpu.multiprocessors) * (1 - 1e-9);  // sums are rounded
}

double longest_work_tile(const Setting& in, const TileSchedule& how, const WorkTileCosts& costs) {
  if (how.max_steps > 0) return costs.work_tile;  // in how many pieces it is depends
  const int heads = in.shape.num_heads_q / in.shape.num_heads_kv / how.head_splits;
  return static_cast<double>(longest_count(in.extents) * heads) + costs.work_tile;
}

double even_steps(const Setting& in) {
  double sum = 0;
  for (const Extent& extent : in.extents.of_keys) sum += static_cast<double>(extent.count);
  return sum * in.shape.num_heads_q / in.gpu.multiprocessors;
}

}  // namespace tangram::schedule
