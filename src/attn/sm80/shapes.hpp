// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Compile-time shapes of each head-dim class, one row each. Kernels, and the host code that cuts masks into their
// tiles, read the same table. A class serves all dimensions up to its own, in eights: rows are filled up with zeros as
// they are copied.
#pragma once

#include <cstddef>
#include <iterator>
#include <utility>

namespace tangram::sm80 {

/// Shape of the forward kernel: work tiles of `rows` packed query rows, steps of `keys`, shared by so many warps.
struct ForwardShape {
  int rows = 0;
  int keys = 0;
  int warps = 0;

  friend bool operator==(const ForwardShape&, const ForwardShape&) = default;
};

/// Shape of the backward kernel: work tiles of `keys`, steps of kStepQueries queries, kBackwardWarps warps.
struct BackwardShape {
  int keys = 0;
  int q_stages = 0;             ///< tiles of Q in shared memory: with two the next one is copied a step ahead
  int dout_stages = 0;          ///< likewise of dout
  bool v_in_registers = false;  ///< V takes no shared memory
  bool own_keys = false;        ///< a warp has 16 keys of its own: P and dS reach dV and dK in registers

  friend bool operator==(const BackwardShape&, const BackwardShape&) = default;
};

/// How much shared memory of a block a device gives: 163 KB (8.0, 9.0, 10.0) or 99 KB (8.6, 8.9, 12.0).
enum class SharedMemoryTier : int { kLarge = 0, kSmall = 1 };
inline constexpr int kTierKb[] = {163, 99};

inline constexpr int kStepQueries = 64;  // as schedule::WorkList has them
inline constexpr int kBackwardWarps = 8;

struct ShapeClass {
  int head_dim;               ///< of q and k
  int head_dim_v;             ///< of v and out
  ForwardShape forward[2];    ///< by SharedMemoryTier
  BackwardShape backward[2];  ///< likewise
};

inline constexpr BackwardShape kOwnKeys{128, 2, 2, true, true};

/// In the order in which a class is looked for.
inline constexpr ShapeClass kShapeClasses[] = {
    {32, 32, {{128, 128, 4}, {128, 128, 4}}, {kOwnKeys, kOwnKeys}},
    {64, 64, {{128, 128, 4}, {128, 64, 4}}, {kOwnKeys, kOwnKeys}},
    {96, 96, {{128, 64, 4}, {64, 64, 4}}, {{128, 2, 2}, {64, 2, 2}}},
    {128, 128, {{128, 64, 4}, {64, 64, 4}}, {{128, 2, 2}, {64, 2, 1}}},
    {192, 128, {{128, 64, 4}, {128, 64, 4}}, {{64, 2, 2}, {64, 1, 1}}},
    {256, 256, {{128, 64, 8}, {128, 32, 8}}, {{64, 1, 1}, {32, 1, 1, true}}},
};
inline constexpr int kLargestHeadDim = 256;

/// The first class that has these dimensions; null: none.
constexpr const ShapeClass* find_shape_class(int head_dim, int head_dim_v) {
  if (head_dim <= 0 || head_dim_v <= 0 || head_dim % 8 != 0 || head_dim_v % 8 != 0) return nullptr;
  for (const ShapeClass& row : kShapeClasses) {
    if (head_dim <= row.head_dim && head_dim_v <= row.head_dim_v) return &row;
  }
  return nullptr;
}

/// Shape class of dimensions that have one.
constexpr const ShapeClass& shape_class(int head_dim, int head_dim_v) {
  return *find_shape_class(head_dim, head_dim_v);
}

/// Whether a tier has a kernel of its own; else it takes that of the larger one.
constexpr bool has_small_forward(int head_dim, int head_dim_v) {
  const ShapeClass& row = shape_class(head_dim, head_dim_v);
  return row.forward[0] != row.forward[1];
}
constexpr bool has_small_backward(int head_dim, int head_dim_v) {
  const ShapeClass& row = shape_class(head_dim, head_dim_v);
  return row.backward[0] != row.backward[1];
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

}  // namespace tangram::sm80
