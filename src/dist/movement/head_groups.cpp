// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "dist/movement/head_groups.hpp"

#include "comm/row_moves.hpp"
#include "dist/rows.hpp"

namespace tangram {

namespace {

template <class View, class Byte>
View group_view(View view, Byte* data, int group, int groups) {
  view.heads /= groups;
  view.data = data + int64_t{group} * view.heads * view.head_stride * static_cast<int64_t>(size_of(view.dtype));
  return view;
}

Range rows_of_group(int64_t rows, int group) { return {group * rows, (group + 1) * rows}; }

}  // namespace

TensorView heads_of_group(const TensorView& view, int group, int groups) {
  return groups == 1 ? view : group_view(view, static_cast<char*>(view.data), group, groups);
}

ConstTensorView heads_of_group(const ConstTensorView& view, int group, int groups) {
  return groups == 1 ? view : group_view(view, static_cast<const char*>(view.data), group, groups);
}

GroupedRows::GroupedRows(PassRecorder& recorder, const ConstTensorView& view, int groups) : view_(view) {
  if (groups == 1) return;
  memory_ = recorder.allocate(view.dtype, groups * view.rows, view.heads / groups, view.dim);
  for (int group = 0; group < groups; ++group) {
    comm::copy_rows(heads_of_group(view, group, groups), slice_rows(memory_.view(), rows_of_group(view.rows, group)));
  }
  view_ = memory_;
}

void write_groups(const ConstTensorView& grouped, const ConstTensorView* addend, const TensorView& target, int groups) {
  for (int group = 0; group < groups; ++group) {
    const Range rows = rows_of_group(target.rows, group);
    ConstTensorView more;
    if (addend != nullptr) more = slice_rows(*addend, rows);
    convert_rows(slice_rows(grouped, rows), heads_of_group(target, group, groups), addend != nullptr ? &more : nullptr);
  }
}

}  // namespace tangram
