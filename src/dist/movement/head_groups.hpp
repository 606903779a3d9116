// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Head groups as rows of their own: [rows, heads, dim] <-> [groups * rows, heads / groups, dim], group after group.
#pragma once

#include "dist/rank_context.hpp"
#include "tangram/tensor.hpp"

namespace tangram {

/// The heads of one group of a view; `groups` divides its heads.
TensorView heads_of_group(const TensorView& view, int group, int groups);
ConstTensorView heads_of_group(const ConstTensorView& view, int group, int groups);

/// A tensor by groups: a copy, or with one group the tensor itself.
class GroupedRows {
 public:
  GroupedRows(PassRecorder& recorder, const ConstTensorView& view, int groups);
  const ConstTensorView& view() const { return view_; }

 private:
  HostTensor memory_;
  ConstTensorView view_;
};

/// Writes rows by groups, plus `addend` where given, to a tensor of all heads; converts as convert_rows.
void write_groups(const ConstTensorView& grouped, const ConstTensorView* addend, const TensorView& target, int groups);

}  // namespace tangram
