// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// What is fixed at compile time for each head dimension, one row each: kernels, and the host code that cuts masks into
// their tiles, read the same table. A new class is a row here and its tests.
#pragma once

#include <cstddef>
#include <iterator>
#include <utility>

namespace tangram::sm90 {

struct ShapeClass {
  int head_dim;
  // Forward: items of 64 packed rows a warpgroup, steps of so many keys (fewer with softcap, whose tanh needs
  // registers). A thread of a service warp and of a consumer have so many registers; K has more stages than V where a
  // step keeps it until it knows that it needs no second look, and there is no room for both.
  int forward_warpgroups;
  int forward_keys;
  int forward_keys_softcap;
  int forward_service_registers;
  int forward_consumer_registers;
  int forward_stages_k;
  int forward_stages_v;
  // Backward: steps of 64 queries that consumers take at once, without softcap.
  int backward_at_once;
};

inline constexpr ShapeClass kShapeClasses[] = {
    // Exponentials take as long as products: a third warpgroup keeps both busy.
    {.head_dim = 64,
     .forward_warpgroups = 3,
     .forward_keys = 128,
     .forward_keys_softcap = 96,
     .forward_service_registers = 32,
     .forward_consumer_registers = 160,
     .forward_stages_k = 4,
     .forward_stages_v = 4,
     .backward_at_once = 2},
    {.head_dim = 128,
     .forward_warpgroups = 2,
     .forward_keys = 128,
     .forward_keys_softcap = 96,
     .forward_service_registers = 40,
     .forward_consumer_registers = 232,
     .forward_stages_k = 3,
     .forward_stages_v = 2,
     .backward_at_once = 1},
};

constexpr bool has_shape_class(int head_dim) {
  for (const ShapeClass& row : kShapeClasses) {
    if (row.head_dim == head_dim) return true;
  }
  return false;
}

/// That of a head_dim which has one.
constexpr const ShapeClass& shape_class(int head_dim) {
  for (const ShapeClass& row : kShapeClasses) {
    if (row.head_dim == head_dim) return row;
  }
  return kShapeClasses[0];
}

/// Rows (query rows times packed heads) of a forward item, and keys of its steps.
constexpr int forward_tile_rows(int head_dim) { return 64 * shape_class(head_dim).forward_warpgroups; }
constexpr int forward_tile_keys(int head_dim, bool softcap) {
  return softcap ? shape_class(head_dim).forward_keys_softcap : shape_class(head_dim).forward_keys;
}

/// Calls function.template operator()<kHeadDim>() for the class of `head_dim`, which has one.
template <typename Function>
void with_head_dim(int head_dim, const Function& function) {
  [&]<size_t... kRows>(std::index_sequence<kRows...>) {
    ((kShapeClasses[kRows].head_dim == head_dim ? function.template operator()<kShapeClasses[kRows].head_dim>()
                                                : void()),
     ...);
  }(std::make_index_sequence<std::size(kShapeClasses)>());
}

}  // namespace tangram::sm90
