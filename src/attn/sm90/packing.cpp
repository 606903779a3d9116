// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/packing.hpp"

#include <algorithm>

#include "attn/sm90/gpu_model.hpp"

namespace tangram::sm90 {

int work_tile_rows(const AttnShape& shape, ForwardWorkTiles work_tiles) {
  return forward_tile_rows(shape.head_dim, shape.head_dim_v, work_tiles);
}

int packed_heads(const AttnShape& shape) {
  const int group = shape.num_heads_q / shape.num_heads_kv;
  int pack = 1;
  while (pack < 64 && group % (2 * pack) == 0) pack *= 2;
  return pack;
}

int packed_heads(const AttnShape& shape, ForwardWorkTiles work_tiles) {
  const int power = packed_heads(shape);
  const bool gathers = work_tiles == ForwardWorkTiles::kGathered || work_tiles == ForwardWorkTiles::kAligned;
  if (gathers || !packs_any_heads(shape.head_dim, shape.head_dim_v)) return power;
  const int group = shape.num_heads_q / shape.num_heads_kv, rows = work_tile_rows(shape, work_tiles);
  const auto fits = [&](int pack) { return group % pack == 0 && rows % pack <= rows / 32; };
  for (int pack = std::min(group, 64); pack > power; --pack) {
    if (fits(pack)) return pack;
  }
  return power;
}

ForwardWorkTiles plain_work_tiles(const AttnShape& shape) {
  return shape.seqlen_q * shape.num_heads_q >= kManyRows ? ForwardWorkTiles::kMany : ForwardWorkTiles::kPlain;
}

TileShape forward_tile(const AttnShape& shape) {
  const ForwardWorkTiles work_tiles = plain_work_tiles(shape);
  return {work_tile_rows(shape, work_tiles) / packed_heads(shape, work_tiles),
          forward_tile_keys(shape.head_dim, shape.head_dim_v, false, work_tiles)};
}

int32_t groups_per_section(const AttnShape& shape, int64_t bytes_of_key, int64_t total_steps, int64_t longest_steps,
                           int pack) {
  const GpuModel gpu = gpu_of_current_device();
  const int64_t head_bytes = std::max<int64_t>(shape.seqlen_k * bytes_of_key, 1);
  const int64_t fitting = std::clamp<int64_t>(kept_in_l2(gpu) / head_bytes, 1, shape.num_heads_kv);
  const int64_t groups_per_head = shape.num_heads_q / shape.num_heads_kv / pack;
  const int64_t head_steps = std::max<int64_t>(total_steps * groups_per_head, 1);
  const int64_t balanced = (4 * longest_steps * gpu.multiprocessors + head_steps - 1) / head_steps;
  const int64_t wanted = std::clamp<int64_t>(std::max(fitting, balanced), 1, shape.num_heads_kv);
  const int64_t sections = (shape.num_heads_kv + wanted - 1) / wanted;
  const int64_t heads = (shape.num_heads_kv + sections - 1) / sections;
  return static_cast<int32_t>(heads * groups_per_head);
}

}  // namespace tangram::sm90
