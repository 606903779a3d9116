// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Time of kernels: how many cells the tiles of a mask hold, in closed form, and what they take.
#include <algorithm>
#include <cmath>

#include "plan/cost.hpp"
#include "plan/simulate/strategies.hpp"

namespace tangram::sim {

namespace {

int64_t floor_to(int64_t value, int64_t unit) { return value / unit * unit; }
int64_t ceil_to(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

Work& Work::operator+=(const Work& other) {
  area += other.area;
  issued += other.issued;
  cut += other.cut;
  items += other.items;
  longest = std::max(longest, other.longest);
  return *this;
}

Work count_work(const AttnSlice& slice, const KernelModel& kernel) {
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
  Work work;
  work.area = static_cast<double>(area(slice));
  work.issued = (work.area + straight + cut_rows * band / 2) * padded_rows;
  work.cut = cut_rows * band * padded_rows;
  const Range dealt = kernel.items_by_keys ? k : q;
  work.items = static_cast<double>(ceil_to(dealt.end, kernel.item_rows) - floor_to(dealt.begin, kernel.item_rows)) /
               kernel.item_rows;
  const int64_t across = kernel.items_by_keys ? q.size() : k.size();
  const int64_t widest = std::min(across, slice.max_diag - slice.min_diag + 1);
  work.longest = static_cast<double>(widest) * kernel.item_rows;
  return work;
}

Work count_work(std::span<const AttnSlice> slices, const KernelModel& kernel) {
  Work work;
  for (const AttnSlice& slice : slices) work += count_work(slice, kernel);
  return work;
}

Work of_one_call(Work work, double keys, const KernelModel& kernel) {
  if (kernel.items_by_keys) work.items = std::min(work.items, std::ceil(keys / kernel.item_rows));
  return work;
}

double work_seconds(const SimInput& input, Pass pass, const Work& work, double num_heads, bool comm_active) {
  if (work.area == 0) return 0;
  const MachineModel& machine = input.machine;
  const KernelModel& kernel = input.kernel(pass);
  double share = 1;  // of the device that the rank's kernels have
  if (comm_active && machine.engine == CommEngine::kWorkers) {
    share = static_cast<double>(machine.workers - machine.comm_workers) / machine.workers;
  }
  const double ranks_here = std::min(input.cp_size(), machine.ranks_per_node);
  if (ranks_here > machine.devices_per_node) share *= machine.devices_per_node / ranks_here;
  const double flops = flops_per_head_cell(input.config.heads, pass);
  const double cells = work.issued + kernel.masked_tile_cost * work.cut;
  const double busy = num_heads * (cells * flops / kernel.flops_per_s + work.items * kernel.item_s / machine.workers);
  const double last = kernel.tail * work.longest * flops * machine.workers / kernel.flops_per_s;
  return kernel.call_s + (busy + last) / share;
}

}  // namespace tangram::sim
