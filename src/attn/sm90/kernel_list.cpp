// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Says again what launch_impl.cuh of both passes instantiates, since only a compiler of CUDA could be asked. The test
// compares it with tools/machine_code.txt: the kernels as they were compiled.
#include "attn/sm90/kernel_list.hpp"

#include "attn/sm90/common/shapes.hpp"
#ifdef TANGRAM_HAVE_CUDA
#include "attn/sm90/backward/params.hpp"
#endif

namespace tangram::sm90 {

namespace {

constexpr int kDTypes = 2, kSoftcaps = 2, kDeterministic = 2;  // instances of each: with and without
constexpr int kWholeOrParts = 2;                               // kernels for any dimensions do both alike
constexpr int kWorkTileKeys = 128, kStepQueries = 64;
constexpr int kBackwardWarpgroups = 2;
#ifdef TANGRAM_HAVE_CUDA
static_assert(backward::kTileShape.block_m == kWorkTileKeys && backward::kTileShape.block_n == kStepQueries);
#endif

/// See kernel_sample.hpp.
bool in_sample_of_any_dims(const ShapeClass& row) { return row.head_dim == 128 || row.head_dim == 256; }

KernelFamily forward_family(const ShapeClass& row, bool exact, bool many) {
  const ForwardShape& shape = many ? row.forward_many : row.forward;
  KernelFamily family{.pass = AttnPass::kForward,
                      .head_dim = row.head_dim,
                      .head_dim_v = row.head_dim_v,
                      .exact = exact,
                      .min_rows = many ? kManyRows : 0,
                      .work_tile = 64 * shape.warpgroups,
                      .step = shape.keys,
                      .step_softcap = shape.keys_softcap,
                      .warpgroups = shape.warpgroups,
                      .gathered = exact && row.gathers};
  family.num_kernels = kDTypes * kSoftcaps * (exact ? kWholeOrParts + (family.gathered ? 1 : 0) : 1);
  if (exact && fetches_runs(row.head_dim, row.head_dim_v)) family.num_kernels += kDTypes;  // without softcap
  if (exact && aligns_work_tiles(row.head_dim, row.head_dim_v)) family.num_kernels += kDTypes * kSoftcaps;
  if (exact && packs_any_heads(row.head_dim, row.head_dim_v)) {
    family.num_kernels += kDTypes * kSoftcaps * kWholeOrParts;
  }
  family.num_in_sample = !exact && in_sample_of_any_dims(row) ? 1 : 0;
  if (exact) family.num_in_sample = family.num_kernels / kDTypes;
  if (exact && packs_any_heads(row.head_dim, row.head_dim_v)) family.num_in_sample -= kSoftcaps * kWholeOrParts;
  return family;
}

KernelFamily backward_family(const ShapeClass& row, bool exact) {
  const int kernels = row.backward_split ? 2 : 1;
  // The gathering kernel of each dtype is Q-stationary, without softcap, with sums in any order.
  const bool gathered = exact;
  const int in_sample = exact ? kSoftcaps : in_sample_of_any_dims(row) ? 1 : 0;
  return {.pass = AttnPass::kBackward,
          .head_dim = row.head_dim,
          .head_dim_v = row.head_dim_v,
          .exact = exact,
          .work_tile = kWorkTileKeys,
          .step = kStepQueries * row.backward_at_once,
          .step_softcap = kStepQueries,
          .warpgroups = kBackwardWarpgroups,
          .kernels_a_call = kernels,
          .gathered = gathered,
          .num_kernels = kDTypes * kSoftcaps * kDeterministic * kernels + (gathered ? kDTypes : 0),
          .num_in_sample = in_sample * kDeterministic * kernels + (gathered ? 1 : 0)};
}

KernelSet kernels_of_build() {
#if !defined(TANGRAM_HAVE_CUDA)
  return KernelSet::kNone;
#elif defined(TANGRAM_SM90_SAMPLE)
  return KernelSet::kSample;
#else
  return KernelSet::kAll;
#endif
}

std::vector<KernelFamily> list_kernels() {
  std::vector<KernelFamily> list;
  for (const ShapeClass& row : kShapeClasses) {
    if (row.exact) list.push_back(forward_family(row, true, false));
    list.push_back(forward_family(row, false, false));
    if (row.forward_many.warpgroups > 0) list.push_back(forward_family(row, false, true));
  }
  for (const ShapeClass& row : kShapeClasses) {
    if (row.exact) list.push_back(backward_family(row, true));
    list.push_back(backward_family(row, false));
  }
  return list;
}

std::optional<HeadDimClass> class_of(int head_dim, int head_dim_v) {
  const ShapeClass* const row = find_shape_class(head_dim, head_dim_v);
  if (row == nullptr) return {};
  return HeadDimClass{row->head_dim, row->head_dim_v, has_exact_kernels(head_dim, head_dim_v)};
}

}  // namespace

KernelCatalog kernel_catalog() {
  return {"sm90",         kernels_of_build(), "TANGRAM_SM90_KERNELS", kLargestHeadDim,
          list_kernels(), class_of,           h200::kHeadDimRates};
}

}  // namespace tangram::sm90
