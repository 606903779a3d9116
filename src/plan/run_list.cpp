// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/run_list.hpp"

#include <algorithm>

namespace tangram {

void RunList::enter(int run, int rank) {
  std::vector<int>& list = of_rank_[static_cast<size_t>(rank)];
  at(run).rank = rank;
  at(run).slot = static_cast<int>(list.size());
  list.push_back(run);
}

void RunList::leave(int run) {
  std::vector<int>& list = of_rank_[static_cast<size_t>(at(run).rank)];
  const int last = list.back();
  list[static_cast<size_t>(at(run).slot)] = last;
  at(last).slot = at(run).slot;
  list.pop_back();
}

// Cuts the end off a run, which becomes the next one, of its component and rank.
int RunList::cut(int run, int begin) {
  const int end = at(run).end;
  const int64_t area = area_of(begin, end);
  at(run).end = begin;
  at(run).area -= area;
  int added = 0;
  if (free_.empty()) {
    added = static_cast<int>(runs_.size());
    runs_.emplace_back();
  } else {
    added = free_.back();
    free_.pop_back();
  }
  const Run& before = at(run);
  at(added) = {begin, end, before.rank, before.component, run, before.after, 0, area};
  if (before.after >= 0) {
    at(before.after).before = added;
  } else {
    tail_ = added;
  }
  at(run).after = added;
  enter(added, at(run).rank);
  return added;
}

void RunList::assign(std::span<const RankRun> map) {
  runs_.clear();
  free_.clear();
  for (std::vector<int>& list : of_rank_) list.clear();
  size_t component = 0;
  bool opened = false;  // whether the component has its first run
  for (const RankRun& piece : map) {
    for (int begin = piece.begin; begin < piece.end;) {
      if (begin >= components_[component].last) {
        ++component;
        opened = false;
      }
      const int end = std::min(piece.end, components_[component].last);
      const int run = static_cast<int>(runs_.size());
      runs_.push_back({begin, end, piece.rank, static_cast<int>(component), run - 1, run + 1, 0, area_of(begin, end)});
      enter(run, piece.rank);
      if (!opened) first_[component] = run;
      opened = true;
      begin = end;
    }
  }
  tail_ = static_cast<int>(runs_.size()) - 1;
  if (tail_ >= 0) at(tail_).after = -1;
}

std::vector<RankRun> RunList::runs() const {
  std::vector<RankRun> map;
  for (int run = first_.empty() ? -1 : first_[0]; run >= 0; run = (*this)[run].after) {
    const Run& next = (*this)[run];
    if (!map.empty() && map.back().rank == next.rank) {
      map.back().end = next.end;
    } else {
      map.push_back({next.begin, next.end, next.rank});
    }
  }
  return map;
}

void RunList::give(int run, int begin, int end, int rank) {
  if (end < at(run).end) cut(run, end);
  if (begin > at(run).begin) run = cut(run, begin);
  leave(run);
  enter(run, rank);
}

void RunList::join(size_t component) {
  int run = first_[component];
  for (int next = at(run).after; next >= 0 && at(next).component == static_cast<int>(component);) {
    if (at(next).rank != at(run).rank) {
      run = next;
      next = at(run).after;
      continue;
    }
    const int behind = at(next).after;
    at(run).end = at(next).end;
    at(run).area += at(next).area;
    at(run).after = behind;
    if (behind >= 0) {
      at(behind).before = run;
    } else {
      tail_ = run;
    }
    leave(next);
    free_.push_back(next);
    next = behind;
  }
}

}  // namespace tangram
