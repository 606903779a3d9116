// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cuda/tensor_map.hpp"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include "cuda/check.hpp"
#include "tangram/error.hpp"

namespace tangram::cuda {
namespace {

PFN_cuTensorMapEncodeTiled_v12000 find_encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
        "cudaGetDriverEntryPointByVersion(cuTensorMapEncodeTiled)");
  if (found != cudaDriverEntryPointSuccess)
    throw CudaError("make_token_map: the driver must know TMA (CUDA 12 or later)");
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}

CUtensorMapDataType map_type(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16: return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DType::kFloat16: return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    default: return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  }
}

}  // namespace

CUtensorMap make_token_map(const ConstTensorView& view, const TokenBox& box, bool heads_first) {
  static const PFN_cuTensorMapEncodeTiled_v12000 encode = find_encoder();
  const auto element = static_cast<uint64_t>(size_of(view.dtype));
  const uint32_t panel_columns = static_cast<uint32_t>(128 / element);
  const uint64_t row_stride = static_cast<uint64_t>(view.row_stride) * element;
  // A dimension of size one is never stepped over, but its stride must still be a valid one.
  const uint64_t head_stride = view.heads > 1 ? static_cast<uint64_t>(view.head_stride) * element : uint64_t{128};
  const auto rows = static_cast<uint64_t>(view.rows), heads = static_cast<uint64_t>(view.heads);
  const bool any_column = box.panels == kAnyColumn;
  const auto dim = static_cast<uint64_t>(view.dim);
  const uint64_t columns = any_column ? dim : panel_columns, panels = any_column ? 1 : dim / panel_columns;
  const uint32_t box_panels = any_column ? 1 : box.panels;
  const uint64_t sizes_heads_first[4] = {columns, heads, rows, panels};
  const uint64_t strides_heads_first[3] = {head_stride, row_stride, 128};
  const uint32_t box_heads_first[4] = {panel_columns, box.heads, box.rows, box_panels};
  const uint64_t sizes_rows_first[4] = {columns, rows, panels, heads};
  const uint64_t strides_rows_first[3] = {row_stride, 128, head_stride};
  const uint32_t box_rows_first[4] = {panel_columns, box.rows, box_panels, box.heads};
  const uint32_t steps[4] = {1, 1, 1, 1};
  CUtensorMap map;
  const auto encode_map = [&] {
    return encode(&map, map_type(view.dtype), 4, const_cast<void*>(view.data),
                  heads_first ? sizes_heads_first : sizes_rows_first,
                  heads_first ? strides_heads_first : strides_rows_first,
                  heads_first ? box_heads_first : box_rows_first, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                  CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  CUresult status = encode_map();
  if (status == CUDA_ERROR_INVALID_CONTEXT) {
    // A thread that has not used the runtime yet (autograd's, for one) has no context: this binds it.
    int device = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    check(cudaSetDevice(device), "cudaSetDevice");
    status = encode_map();
  }
  if (status != CUDA_SUCCESS) {
    throw CudaError(fmt::format("make_token_map: the driver must accept the tensor (got error {} for {})",
                                static_cast<int>(status), shape_text(view)));
  }
  return map;
}

}  // namespace tangram::cuda
