// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "runtime/device/buffered_shape.hpp"

#include <fmt/format.h>

#include <array>
#include <tuple>

#include "plan/program/emit.hpp"

namespace tangram {

BufferShape shape_of(const Plan& plan) {
  return {plan.config.heads, plan.config.reduce_dtype, plan.cp_size(), plan.q_dispatch.rows_per_rank(),
          plan.k_dispatch.rows_per_rank()};
}

namespace {

std::string text_of(const BufferShape& shape) {
  return fmt::format("{} ranks of {} query and {} key rows, {} and {} heads of {} and {}, {}, gradients in {}",
                     shape.cp_size, shape.q_rows, shape.k_rows, shape.heads.num_heads_q, shape.heads.num_heads_kv,
                     shape.heads.head_dim, shape.heads.head_dim_v, to_string(shape.heads.dtype),
                     to_string(shape.reduce_dtype));
}

}  // namespace

std::string misfit(const Plan& plan, const BufferShape& shape, const DistMaskCapacity& capacity) {
  if (!moves_kv_alone(plan) || can_keep(plan)) {
    return "DistMaskBuffer::set: the plan must move K/V alone and keep none (got one that does not)";
  }
  if (!(shape_of(plan) == shape)) {
    return fmt::format("DistMaskBuffer::set: the plan must have the buffer's shape, {} (got {})", text_of(shape),
                       text_of(shape_of(plan)));
  }
  const DistMaskCapacity needed = capacity_for(plan);
  const int64_t slices = capacity.slices > 0 ? capacity.slices : capacity.documents;
  const std::array<std::tuple<const char*, int64_t, int64_t>, 4> sizes = {{
      {"kv_rows", needed.kv_rows, capacity.kv_rows},
      {"sent_rows", needed.sent_rows, capacity.sent_rows},
      {"local_ranges", needed.local_ranges, capacity.local_ranges},
      {"slices", needed.slices, slices},
  }};
  for (const auto& [name, need, room] : sizes) {
    if (need <= room) continue;
    return fmt::format(
        "DistMaskBuffer::set: the plan must fit the buffer, more {} make room (got a plan that needs {} on some rank, "
        "{}={})",
        name, need, name, room);
  }
  if (needed.allow_fully_masked_rows && !capacity.allow_fully_masked_rows && capacity.passes != AttnPasses::kForward) {
    return "DistMaskBuffer::set: each query must see a key, as the buffer is made for (got a plan with queries that "
           "see none on some rank, allow_fully_masked_rows=false)";
  }
  return "";
}

}  // namespace tangram
