// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What the backend can do. Calls: sm90_forward.cpp, sm90_backward.cpp.

#include "attn/sm90/sm90_backend.hpp"

#include "attn/gpu/abilities.hpp"
#include "attn/gpu/gpu_model.hpp"
#include "attn/sm90/common/shapes.hpp"
#include "attn/sm90/forward/launch.hpp"
#include "attn/sm90/kernel_table.hpp"
#include "core/require.hpp"

namespace tangram {

AttnCaps Sm90Backend::caps() const {
  return {.name = "sm90",
          .memory = MemoryKind::kDevice,
          .gpu = gpu::gpu_of_current_device_or_default(),
          .delta = true,
          .head_masks = true,
          .padded_slots = true,
          .max_ready_flags = kMaxReadyFlags,
          .local_kv_halo = kLocalKvHalo};
}

void Sm90Backend::check(const AttnShape& shape) const {
  require(shape.dtype == DType::kBFloat16 || shape.dtype == DType::kFloat16,
          "Sm90Backend: dtype must be bfloat16 or float16 (got dtype={})", to_string(shape.dtype));
  require(sm90::find_shape_class(shape.head_dim, shape.head_dim_v) != nullptr,
          "Sm90Backend: head_dim and head_dim_v must be multiples of 8 up to {} (got head_dim={}, head_dim_v={})",
          sm90::kLargestHeadDim, shape.head_dim, shape.head_dim_v);
  require(shape.num_heads_q > 0 && shape.num_heads_kv > 0 && shape.num_heads_q % shape.num_heads_kv == 0,
          "Sm90Backend: num_heads_kv must divide num_heads_q (got num_heads_q={}, num_heads_kv={})", shape.num_heads_q,
          shape.num_heads_kv);
}

schedule::KernelTable Sm90Backend::kernel_table(const AttnShape& shape) const {
  return sm90::kernel_table(shape.head_dim, shape.head_dim_v);
}

void Sm90Backend::load_combine(const AttnShape& shape) const {
  sm90::load_merge(shape.dtype == DType::kFloat16, shape.head_dim, shape.head_dim_v);
}

}  // namespace tangram
