// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Compile-time shapes of each class of head dims, one row each. Kernels, and the host code that cuts masks into their
// tiles, read the same table. A new class is a row here, its instances and its tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>

#include "schedule/kernel_table.hpp"

namespace tangram::sm90 {

/// Shape of the forward kernel: work tiles of 64 packed rows a warpgroup, keys of a step, registers of a service and of
/// a consumer thread. With softcap, whose tanh needs registers, a step has fewer keys. K has more stages than V if a
/// step keeps K until lazy rescaling needs no recomputation, and there is no room for both.
struct ForwardShape {
  int warpgroups = 0;
  int keys = 0;
  int keys_softcap = 0;
  int service_registers = 0;
  int consumer_registers = 0;
  int stages_q = 0;
  int stages_k = 0;
  int stages_v = 0;
  // Lazy rescaling: steps look for maxima only if a sum shows that they must, and keep K for that. For classes whose
  // exponentials are scarce and whose K can wait.
  bool lazy_rescale = false;
};

using schedule::ForwardWorkTiles;

struct ShapeClass {
  int head_dim;    ///< of q and k
  int head_dim_v;  ///< of v and out
  // Compiled for exactly these dimensions too, besides any that are smaller.
  bool exact;
  ForwardShape forward;
  // Where there are kManyRows and no multiprocessor waits long for the last work tile of another; without warpgroups as
  // where there are fewer.
  ForwardShape forward_many = {};
  // Kernels for exactly these dimensions can gather runs (src/schedule/gather_runs.hpp). They have work tiles of their
  // own if those of `forward` rarely have whole blocks or too few registers. 0 warpgroups: those of `forward`.
  bool gathers = false;
  ForwardShape forward_gathered = {};
  // Backward: steps of 64 queries that consumers take at once, without softcap. Large: dq leaves in pieces, through the
  // remaining shared memory (LargeTraits), with this many stages of Q and dout. split: one kernel for dk and dq and one
  // for dv, since registers do not hold dk and dv.
  int backward_at_once = 1;
  bool backward_large = false;
  bool backward_split = false;
  int backward_stages = 0;
};

/// Classes of head dims, in search order.
inline constexpr ShapeClass kShapeClasses[] = {
    // Exponentials take longer than products, as long with 64: a third warpgroup keeps both busy.
    {.head_dim = 32,
     .head_dim_v = 32,
     .exact = false,
     .forward = {.warpgroups = 3,
                 .keys = 128,
                 .keys_softcap = 128,
                 .service_registers = 32,
                 .consumer_registers = 160,
                 .stages_q = 2,
                 .stages_k = 4,
                 .stages_v = 4,
                 .lazy_rescale = true},
     .backward_at_once = 2},
    {.head_dim = 64,
     .head_dim_v = 64,
     .exact = true,
     .forward = {.warpgroups = 3,
                 .keys = 128,
                 .keys_softcap = 96,
                 .service_registers = 32,
                 .consumer_registers = 160,
                 .stages_q = 2,
                 .stages_k = 4,
                 .stages_v = 4,
                 .lazy_rescale = true},
     .gathers = true,
     .forward_gathered = {.warpgroups = 2,
                          .keys = 128,
                          .keys_softcap = 96,
                          .service_registers = 72,
                          .consumer_registers = 216,
                          .stages_q = 2,
                          .stages_k = 5,
                          .stages_v = 4,
                          .lazy_rescale = true},
     .backward_at_once = 2},
    // Longer steps with a third warpgroup leave no room for K to wait.
    {.head_dim = 96,
     .head_dim_v = 96,
     .exact = false,
     .forward = {.warpgroups = 3,
                 .keys = 112,
                 .keys_softcap = 112,
                 .service_registers = 32,
                 .consumer_registers = 160,
                 .stages_q = 2,
                 .stages_k = 2,
                 .stages_v = 2,
                 .lazy_rescale = false},
     .backward_at_once = 1},
    {.head_dim = 128,
     .head_dim_v = 128,
     .exact = true,
     .forward = {.warpgroups = 2,
                 .keys = 128,
                 .keys_softcap = 96,
                 .service_registers = 40,
                 .consumer_registers = 232,
                 .stages_q = 2,
                 .stages_k = 3,
                 .stages_v = 2,
                 .lazy_rescale = true},
     .gathers = true,
     .backward_at_once = 1},
    // Q has one stage: a work tile ends before the next one begins. A third warpgroup spares a third of the traffic of
    // K and V, but makes work tiles longer.
    {.head_dim = 192,
     .head_dim_v = 128,
     .exact = false,
     .forward = {.warpgroups = 2,
                 .keys = 128,
                 .keys_softcap = 96,
                 .service_registers = 40,
                 .consumer_registers = 232,
                 .stages_q = 1,
                 .stages_k = 2,
                 .stages_v = 2,
                 .lazy_rescale = false},
     .forward_many = {.warpgroups = 3,
                      .keys = 80,
                      .keys_softcap = 80,
                      .service_registers = 32,
                      .consumer_registers = 160,
                      .stages_q = 1,
                      .stages_k = 2,
                      .stages_v = 2,
                      .lazy_rescale = false},
     .backward_large = true,
     .backward_stages = 2},
    {.head_dim = 256,
     .head_dim_v = 256,
     .exact = false,
     .forward = {.warpgroups = 2,
                 .keys = 80,
                 .keys_softcap = 80,
                 .service_registers = 40,
                 .consumer_registers = 232,
                 .stages_q = 1,
                 .stages_k = 2,
                 .stages_v = 2,
                 .lazy_rescale = false},
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

/// Shape class of a supported (head_dim, head_dim_v) pair.
constexpr const ShapeClass& shape_class(int head_dim, int head_dim_v) {
  return *find_shape_class(head_dim, head_dim_v);
}

/// Whether kernels are compiled for exactly these dimensions, which have a class.
constexpr bool has_exact_kernels(int head_dim, int head_dim_v) {
  const ShapeClass& row = shape_class(head_dim, head_dim_v);
  return row.exact && row.head_dim == head_dim && row.head_dim_v == head_dim_v;
}

/// Rows of queries times heads from which forward_many is taken: six of its work tiles a multiprocessor.
inline constexpr int64_t kManyRows = 150'000;

/// Forward shape of dimensions that have a class.
constexpr const ForwardShape& forward_shape(int head_dim, int head_dim_v, ForwardWorkTiles work_tiles) {
  const ShapeClass& row = shape_class(head_dim, head_dim_v);
  if (work_tiles == ForwardWorkTiles::kMany && row.forward_many.warpgroups > 0) return row.forward_many;
  if (work_tiles == ForwardWorkTiles::kGathered && row.forward_gathered.warpgroups > 0) return row.forward_gathered;
  return row.forward;
}

/// Whether there are kernels that gather runs for exactly these dimensions.
constexpr bool gathers_runs(int head_dim, int head_dim_v) {
  return has_exact_kernels(head_dim, head_dim_v) && shape_class(head_dim, head_dim_v).gathers;
}

/// Whether these have, besides, larger work tiles that begin anew with blocks (ForwardWorkTiles::kAligned).
constexpr bool aligns_work_tiles(int head_dim, int head_dim_v) {
  if (!gathers_runs(head_dim, head_dim_v)) return false;
  const ShapeClass& row = shape_class(head_dim, head_dim_v);
  return row.forward_gathered.warpgroups > 0 && row.forward.warpgroups > row.forward_gathered.warpgroups;
}

/// Whether there are kernels for exactly these dimensions that fetch the runs of a work tile ahead (FetchingTraits).
/// They exist if one thread loads keys and writes messages; it would otherwise wait for each run.
constexpr bool fetches_runs(int head_dim, int head_dim_v) {
  return gathers_runs(head_dim, head_dim_v) && shape_class(head_dim, head_dim_v).forward.warpgroups == 2;
}

/// Rows (query rows times packed heads) of a forward work tile, and keys of its steps.
constexpr int forward_tile_rows(int head_dim, int head_dim_v, ForwardWorkTiles work_tiles = ForwardWorkTiles::kPlain) {
  return 64 * forward_shape(head_dim, head_dim_v, work_tiles).warpgroups;
}
constexpr int forward_tile_keys(int head_dim, int head_dim_v, bool softcap,
                                ForwardWorkTiles work_tiles = ForwardWorkTiles::kPlain) {
  const ForwardShape& shape = forward_shape(head_dim, head_dim_v, work_tiles);
  return softcap ? shape.keys_softcap : shape.keys;
}

/// Whether there are kernels for exactly these dimensions whose work tiles, unless gathered, are of any number of query
/// heads (AnyPackTraits).
constexpr bool packs_any_heads(int head_dim, int head_dim_v) {
  return has_exact_kernels(head_dim, head_dim_v) && shape_class(head_dim, head_dim_v).forward.warpgroups == 3;
}

/// Whether backward calls add dq from registers, to sums that are zeroed before. Without turns, if shared memory has no
/// room for dq of a step.
constexpr bool adds_dq_from_registers(int head_dim, int head_dim_v, bool deterministic) {
  return shape_class(head_dim, head_dim_v).backward_large && !deterministic;
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
