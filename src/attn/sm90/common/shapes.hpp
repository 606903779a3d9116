// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// What is fixed at compile time for each class of head dimensions, one row each: kernels, and the host code that cuts
// masks into their tiles, read the same table. A new class is a row here, its instances and its tests.
#pragma once

#include <cstddef>
#include <iterator>
#include <utility>

namespace tangram::sm90 {

struct ShapeClass {
  int head_dim;    ///< of q and k
  int head_dim_v;  ///< of v and out
  // Compiled for exactly these dimensions too, besides any that are smaller.
  bool exact;
  // Forward: items of 64 packed rows a warpgroup, steps of so many keys (fewer with softcap, whose tanh needs
  // registers). A thread of a service warp and of a consumer have so many registers; K has more stages than V where a
  // step keeps it until it knows that it needs no second look, and there is no room for both.
  int forward_warpgroups;
  int forward_keys;
  int forward_keys_softcap;
  int forward_service_registers;
  int forward_consumer_registers;
  int forward_stages_q;
  int forward_stages_k;
  int forward_stages_v;
  // Steps do not look for maxima before they see that they should have, and keep K for that: for classes whose
  // exponentials are scarce and whose K has room to wait.
  bool forward_second_look;
  // Backward: steps of 64 queries that consumers take at once, without softcap. Large: dq leaves in pieces, through
  // what shared memory is left (LargeTraits), with so many stages of Q and dout; split: dk and dq by one kernel and dv
  // by another, since registers do not hold dk and dv.
  int backward_at_once = 1;
  bool backward_large = false;
  bool backward_split = false;
  int backward_stages = 0;
};

/// In the order in which a class is looked for.
inline constexpr ShapeClass kShapeClasses[] = {
    // Exponentials take longer than products, as long with 64: a third warpgroup keeps both busy.
    {.head_dim = 32,
     .head_dim_v = 32,
     .exact = false,
     .forward_warpgroups = 3,
     .forward_keys = 128,
     .forward_keys_softcap = 128,
     .forward_service_registers = 32,
     .forward_consumer_registers = 160,
     .forward_stages_q = 2,
     .forward_stages_k = 4,
     .forward_stages_v = 4,
     .forward_second_look = true,
     .backward_at_once = 2},
    {.head_dim = 64,
     .head_dim_v = 64,
     .exact = true,
     .forward_warpgroups = 3,
     .forward_keys = 128,
     .forward_keys_softcap = 96,
     .forward_service_registers = 32,
     .forward_consumer_registers = 160,
     .forward_stages_q = 2,
     .forward_stages_k = 4,
     .forward_stages_v = 4,
     .forward_second_look = true,
     .backward_at_once = 2},
    {.head_dim = 96,
     .head_dim_v = 96,
     .exact = false,
     .forward_warpgroups = 2,
     .forward_keys = 128,
     .forward_keys_softcap = 128,
     .forward_service_registers = 40,
     .forward_consumer_registers = 232,
     .forward_stages_q = 2,
     .forward_stages_k = 3,
     .forward_stages_v = 2,
     .forward_second_look = true,
     .backward_at_once = 1},
    {.head_dim = 128,
     .head_dim_v = 128,
     .exact = true,
     .forward_warpgroups = 2,
     .forward_keys = 128,
     .forward_keys_softcap = 96,
     .forward_service_registers = 40,
     .forward_consumer_registers = 232,
     .forward_stages_q = 2,
     .forward_stages_k = 3,
     .forward_stages_v = 2,
     .forward_second_look = true,
     .backward_at_once = 1},
    // Q has one stage: an item ends before the next one begins.
    {.head_dim = 192,
     .head_dim_v = 128,
     .exact = false,
     .forward_warpgroups = 2,
     .forward_keys = 128,
     .forward_keys_softcap = 96,
     .forward_service_registers = 40,
     .forward_consumer_registers = 232,
     .forward_stages_q = 1,
     .forward_stages_k = 2,
     .forward_stages_v = 2,
     .forward_second_look = false,
     .backward_large = true,
     .backward_stages = 2},
    {.head_dim = 256,
     .head_dim_v = 256,
     .exact = false,
     .forward_warpgroups = 2,
     .forward_keys = 80,
     .forward_keys_softcap = 80,
     .forward_service_registers = 40,
     .forward_consumer_registers = 232,
     .forward_stages_q = 1,
     .forward_stages_k = 2,
     .forward_stages_v = 2,
     .forward_second_look = false,
     .backward_large = true,
     .backward_split = true,
     .backward_stages = 1},
};

/// The last class holds all others.
inline constexpr int kLargestHeadDim = std::end(kShapeClasses)[-1].head_dim;
static_assert(kLargestHeadDim == std::end(kShapeClasses)[-1].head_dim_v);

/// The first class that holds both dimensions, multiples of 8; null where none does.
constexpr const ShapeClass* find_shape_class(int head_dim, int head_dim_v) {
  if (head_dim <= 0 || head_dim_v <= 0 || head_dim % 8 != 0 || head_dim_v % 8 != 0) return nullptr;
  for (const ShapeClass& row : kShapeClasses) {
    if (head_dim <= row.head_dim && head_dim_v <= row.head_dim_v) return &row;
  }
  return nullptr;
}

/// That of dimensions which have one.
constexpr const ShapeClass& shape_class(int head_dim, int head_dim_v) {
  return *find_shape_class(head_dim, head_dim_v);
}

/// Whether kernels are compiled for exactly these dimensions, which have a class.
constexpr bool has_exact_kernels(int head_dim, int head_dim_v) {
  const ShapeClass& row = shape_class(head_dim, head_dim_v);
  return row.exact && row.head_dim == head_dim && row.head_dim_v == head_dim_v;
}

/// Rows (query rows times packed heads) of a forward item, and keys of its steps.
constexpr int forward_tile_rows(int head_dim, int head_dim_v) {
  return 64 * shape_class(head_dim, head_dim_v).forward_warpgroups;
}
constexpr int forward_tile_keys(int head_dim, int head_dim_v, bool softcap) {
  const ShapeClass& row = shape_class(head_dim, head_dim_v);
  return softcap ? row.forward_keys_softcap : row.forward_keys;
}

/// Calls function.template operator()<kHeadDim, kHeadDimV>() for the class of dimensions that have one.
template <typename Function>
void with_shape_class(int head_dim, int head_dim_v, const Function& function) {
  const ShapeClass* const found = &shape_class(head_dim, head_dim_v);
  [&]<size_t... kRows>(std::index_sequence<kRows...>) {
    ((found == &kShapeClasses[kRows]
          ? function.template operator()<kShapeClasses[kRows].head_dim, kShapeClasses[kRows].head_dim_v>()
          : void()),
     ...);
  }(std::make_index_sequence<std::size(kShapeClasses)>());
}

/// Calls function.template operator()<kHeadDim>() where kernels are compiled for exactly these dimensions, which have a
/// class; returns whether they are.
template <typename Function>
bool with_exact_class(int head_dim, int head_dim_v, const Function& function) {
  if (!has_exact_kernels(head_dim, head_dim_v)) return false;
  with_shape_class(head_dim, head_dim_v, [&]<int kHeadDim, int kHeadDimV> {
    if constexpr (shape_class(kHeadDim, kHeadDimV).exact) function.template operator()<kHeadDim>();
  });
  return true;
}

}  // namespace tangram::sm90
