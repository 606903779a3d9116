// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "machine/kernel_work.hpp"

#include <algorithm>
#include <cmath>

namespace tangram {

namespace {

int64_t floor_to(int64_t value, int64_t unit) { return value / unit * unit; }
int64_t ceil_to(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

KernelWork& KernelWork::operator+=(const KernelWork& other) {
  area += other.area;
  issued += other.issued;
  cut += other.cut;
  items += other.items;
  longest = std::max(longest, other.longest);
  return *this;
}

KernelWork count_work(const AttnSlice& slice, const KernelModel& kernel) {
  const Range q = slice.q_range;
  const Range k = slice.k_range;
  if (q.empty() || k.empty()) return {};
  const int64_t rows = q.size();
  // Rows whose last (first) key is cut off by a diagonal; the others end (begin) where the range does.
  const int64_t rows_cut_above = std::clamp<int64_t>(k.end - 1 - slice.max_diag - q.begin, 0, rows);
  const int64_t rows_cut_below = std::clamp<int64_t>(q.end - (k.begin - slice.min_diag), 0, rows);
  const double cut_rows = static_cast<double>(rows_cut_above + rows_cut_below);
  const double straight =
      static_cast<double>(rows - rows_cut_above) * static_cast<double>(ceil_to(k.end, kernel.tile_cols) - k.end) +
      static_cast<double>(rows - rows_cut_below) * static_cast<double>(k.begin - floor_to(k.begin, kernel.tile_cols));
  // A diagonal crosses a band of tiles of which half is visible on average; single cells are never cut.
  const double band = kernel.tile_rows + kernel.tile_cols - 2;
  const double padded_rows =
      static_cast<double>(ceil_to(q.end, kernel.tile_rows) - floor_to(q.begin, kernel.tile_rows)) /
      static_cast<double>(rows);
  KernelWork work;
  work.area = static_cast<double>(area(slice));
  work.issued = (work.area + straight + cut_rows * band / 2) * padded_rows;
  work.cut = cut_rows * band * padded_rows;
  const Range scheduled = kernel.items_by_keys ? k : q;
  work.items =
      static_cast<double>(ceil_to(scheduled.end, kernel.item_rows) - floor_to(scheduled.begin, kernel.item_rows)) /
      kernel.item_rows;
  const int64_t across = kernel.items_by_keys ? q.size() : k.size();
  const int64_t widest = std::min(across, slice.max_diag - slice.min_diag + 1);
  work.longest = static_cast<double>(widest) * kernel.item_rows;
  return work;
}

KernelWork count_work(std::span<const AttnSlice> slices, const KernelModel& kernel) {
  KernelWork work;
  for (const AttnSlice& slice : slices) work += count_work(slice, kernel);
  return work;
}

KernelWork of_one_call(KernelWork work, double keys, const KernelModel& kernel) {
  if (kernel.items_by_keys) work.items = std::min(work.items, std::ceil(keys / kernel.item_rows));
  return work;
}

double call_seconds(const KernelModel& kernel, const KernelWork& work, const CallSize& size) {
  const double cells = work.issued + kernel.masked_tile_cost * work.cut;
  const double busy =
      size.num_heads * (cells * size.flops / kernel.flops_per_s + work.items * kernel.item_s / size.workers);
  const double last = kernel.tail * work.longest * size.flops * size.workers / kernel.flops_per_s;
  return kernel.call_s + (busy + last) / size.share;
}

}  // namespace tangram
