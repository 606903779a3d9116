// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>

#include "attn/sm90/common/tensor_map.hpp"
#include "cuda/tensor_map.hpp"

namespace tangram::sm90 {

/// Like cuda::make_token_map, for the parameters of a kernel.
inline TensorMap token_map(const ConstTensorView& view, const cuda::TokenBox& box, bool heads_first) {
  const CUtensorMap map = cuda::make_token_map(view, box, heads_first);
  TensorMap result;
  static_assert(sizeof(result) == sizeof(map));
  std::memcpy(&result, &map, sizeof(map));
  return result;
}

}  // namespace tangram::sm90
