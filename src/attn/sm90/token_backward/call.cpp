// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/token_backward/call.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "attn/gpu/gpu_model.hpp"
#include "attn/sm90/backward/pre_post_arguments.hpp"
#include "attn/sm90/common/token_map.hpp"
#include "attn/sm90/token_backward/launch.hpp"
#include "core/require.hpp"
#include "cuda/scratch_layout.hpp"

namespace tangram::sm90::token_backward {
namespace {

// Bytes of the lists of a part, unless that is less than kLeastWorkTiles work tiles. More memory would hardly be
// faster, since each part keeps all multiprocessors busy for a while.
constexpr int64_t kListBytes = int64_t{256} << 20;
constexpr int64_t kLeastWorkTiles = 1024;
constexpr int64_t kEntryBytes = sizeof(int32_t) + sizeof(uint16_t);

// Deterministic calls: bytes that the work tiles of a part store, or as much as kLeastOrdered work tiles store.
constexpr int64_t kShareBytes = int64_t{1} << 30;
constexpr int64_t kLeastOrdered = 32;
constexpr int64_t kMultiprocessors = 132;  // of a Hopper GPU

/// Fewer queries a work tile where there would be too few work tiles to keep the multiprocessors of a Hopper GPU busy.
Packing packing_of_call(const AttnShape& shape) {
  constexpr int64_t kBusyWorkTiles = 2 * kMultiprocessors;
  Packing packing = packing_of(shape.num_heads_q / shape.num_heads_kv);
  const int64_t groups = int64_t{shape.num_heads_kv} * packing.parts;
  while (packing.tokens > 1 && shape.seqlen_q * groups < kBusyWorkTiles * packing.tokens) packing.tokens /= 2;
  return packing;
}

struct Sizes {
  bool ordered;  // deterministic
  Packing packing;
  int64_t work_tiles_per_group, work_tiles, capacity, work_tiles_of_part, num_parts;

  Sizes(const AttnShape& shape, int64_t topk, bool deterministic)
      : ordered(deterministic), packing(packing_of_call(shape)), capacity(capacity_of(shape, topk)) {
    // Shares of fewer queries take less memory, and more work tiles are at work.
    while (ordered && packing.tokens > 1 && shares_at_once(shape) < kMultiprocessors) {
      packing.tokens /= 2;
      capacity = capacity_of(shape, topk);
    }
    work_tiles_per_group = (shape.seqlen_q + packing.tokens - 1) / packing.tokens;
    work_tiles = work_tiles_per_group * shape.num_heads_kv * packing.parts;
    work_tiles_of_part = work_tiles;
    if (capacity > 0) {
      const int64_t lists = std::max(kListBytes / (capacity * kEntryBytes), kLeastWorkTiles);
      work_tiles_of_part = std::min(work_tiles, ordered ? std::max(shares_at_once(shape), kLeastOrdered) : lists);
    }
    num_parts = work_tiles == 0 ? 0 : (work_tiles + work_tiles_of_part - 1) / work_tiles_of_part;
  }
  bool has_lists() const { return ordered || packing.tokens > 1; }

 private:
  int64_t capacity_of(const AttnShape& shape, int64_t topk) const {
    return has_lists() ? std::min(shape.seqlen_k, packing.tokens * topk) : 0;
  }
  int64_t shares_at_once(const AttnShape& shape) const {
    return kShareBytes / std::max<int64_t>(2 * capacity * shape.head_dim * static_cast<int64_t>(sizeof(float)), 1);
  }
};

struct CallLayout {
  float *stats, *sums;
  int32_t *tickets, *keys;
  uint16_t* row_blocks;
  ListHead* heads;
  uint8_t* nans;
  float* shares[2] = {};
  size_t bytes;

  CallLayout(const AttnShape& shape, const Sizes& sizes, void* workspace) {
    cuda::ScratchLayout layout(workspace);
    stats = layout.take<float>(static_cast<size_t>(sizes.work_tiles * kStatsFloats));
    sums = layout.take<float>(static_cast<size_t>(2 * shape.num_heads_kv * shape.seqlen_k * shape.head_dim));
    tickets = layout.take<int32_t>(static_cast<size_t>(sizes.num_parts));
    const auto listed = static_cast<size_t>(sizes.has_lists() ? sizes.work_tiles_of_part : 0);
    keys = layout.take<int32_t>(listed * static_cast<size_t>(sizes.capacity));
    row_blocks = layout.take<uint16_t>(listed * static_cast<size_t>(sizes.capacity));
    heads = layout.take<ListHead>(listed);
    nans = layout.take<uint8_t>(
        static_cast<size_t>(sizes.has_lists() ? 2 * shape.num_heads_kv * ((shape.seqlen_k + 7) / 8) : 0));
    for (float*& share : shares) {
      if (sizes.ordered) share = layout.take<float>(listed * static_cast<size_t>(sizes.capacity * shape.head_dim));
    }
    bytes = layout.bytes();
  }
};

PrePostParams edge_of(const AttnShape& shape, const Sizes& sizes, const AttnBackwardArgs& args) {
  PrePostParams pre_post{};
  backward::fill_rows(pre_post, args);
  backward::fill_key_gradients(pre_post, args);
  pre_post.packing = sizes.packing;
  pre_post.seqlen_q = static_cast<int32_t>(shape.seqlen_q);
  pre_post.seqlen_k = static_cast<int32_t>(shape.seqlen_k);
  pre_post.num_heads_kv = shape.num_heads_kv;
  pre_post.work_tiles_per_group = static_cast<int32_t>(sizes.work_tiles_per_group);
  pre_post.num_parts = static_cast<int32_t>(sizes.num_parts);
  pre_post.softmax_scale = args.options.softmax_scale.value_or(1.0f / std::sqrt(static_cast<float>(shape.head_dim)));
  return pre_post;
}

ListParams lists_of(const PrePostParams& pre_post, const Sizes& sizes, const TokenIndices& indices) {
  ListParams lists{};
  lists.indices = indices.indices;
  lists.packing = sizes.packing;
  lists.seqlen_q = pre_post.seqlen_q;
  lists.seqlen_k = pre_post.seqlen_k;
  lists.num_heads_kv = pre_post.num_heads_kv;
  lists.topk = static_cast<int32_t>(indices.topk);
  lists.capacity = static_cast<int32_t>(sizes.capacity);
  lists.work_tiles_per_group = pre_post.work_tiles_per_group;
  return lists;
}

void fill_tensors(Params& params, const AttnBackwardArgs& args) {
  const auto heads = static_cast<uint32_t>(params.lists.packing.heads);
  if (args.q.rows > 0) {  // maps of what is never loaded are empty
    params.q_map = token_map(args.q, {1, heads, 1}, true);
    params.dout_map = token_map(args.dout, {1, heads, 1}, true);
  }
  const ConstTensorView* const keys[] = {&args.k, &args.v};
  for (int i = 0; i < 2; ++i) {
    params.keys[i] = keys[i]->data;
    params.key_head_bytes[i] = keys[i]->head_stride * 2;
    params.key_row_bytes[i] = static_cast<int32_t>(keys[i]->row_stride * 2);
  }
  params.dq = args.dq.data;
  params.dq_row_stride = args.dq.row_stride;
  params.dq_head_stride = args.dq.head_stride;
  params.dq_type = backward::grad_type(args.dq);
}

}  // namespace

std::string refusal(const AttnShape& shape, int64_t topk) {
  if ((shape.head_dim != 64 && shape.head_dim != 128) || shape.head_dim_v != shape.head_dim) {
    return fmt::format("head_dim 64 or 128, of v too (got head_dim={}, head_dim_v={})", shape.head_dim,
                       shape.head_dim_v);
  }
  // Work tiles, rows of sums, and places in lists are 32-bit numbers.
  constexpr int64_t kMost = (int64_t{1} << 31) - 65536;
  for (const bool deterministic : {false, true}) {
    const Sizes sizes(shape, topk, deterministic);
    if (sizes.work_tiles > kMost || shape.num_heads_kv * shape.seqlen_k > kMost || shape.seqlen_k >= kNanInK ||
        sizes.work_tiles_of_part * sizes.capacity > kMost || topk > kMost) {
      return fmt::format("lists of fewer than 2^31 keys (got seqlen_q={}, seqlen_k={}, topk={})", shape.seqlen_q,
                         shape.seqlen_k, topk);
    }
  }
  return {};
}

int64_t workspace_bytes(const AttnShape& shape, int64_t topk, bool deterministic) {
  return static_cast<int64_t>(CallLayout(shape, Sizes(shape, topk, deterministic), nullptr).bytes);
}

void check_taken(const AttnBackwardArgs& args) {
  require(!args.options.deterministic || args.q.dim == kOrderedHeadDim,
          "Sm90Tokens::backward: deterministic calls must be of head_dim {} (got {})", kOrderedHeadDim, args.q.dim);
  for (const ConstTensorView& view : {args.k, args.v}) {
    require(view.row_stride < int64_t{1} << 30,
            "Sm90Tokens::backward: rows of k and v must be less than 2^30 elements apart (got {})", view.row_stride);
  }
}

void enqueue(const AttnShape& shape, const TokenIndices& indices, const AttnBackwardArgs& args, const int32_t* counts,
             void* workspace, cudaStream_t stream) {
  const Sizes sizes(shape, indices.topk, args.options.deterministic);
  const CallLayout layout(shape, sizes, workspace);
  Call call{};
  call.pre_post = edge_of(shape, sizes, args);
  call.params.lists = lists_of(call.pre_post, sizes, indices);
  call.pre_post.counts = call.params.lists.counts = counts;
  call.pre_post.stats = layout.stats;
  call.pre_post.dk_sums = layout.sums;
  call.pre_post.tickets = layout.tickets;
  fill_tensors(call.params, args);
  call.params.lists.keys = layout.keys;
  call.params.lists.row_blocks = layout.row_blocks;
  call.params.lists.heads = layout.heads;
  call.params.lists.nans = layout.nans;
  if (sizes.has_lists()) call.pre_post.nans = layout.nans;
  for (int i = 0; i < 2; ++i) {
    call.pre_post.keys[i] = call.params.keys[i];
    call.pre_post.key_head_bytes[i] = call.params.key_head_bytes[i];
    call.pre_post.key_row_bytes[i] = call.params.key_row_bytes[i];
  }
  call.params.stats = layout.stats;
  call.params.dk_sums = layout.sums;
  call.params.dv_sums = layout.sums + shape.num_heads_kv * shape.seqlen_k * shape.head_dim;
  call.params.softmax_scale = call.pre_post.softmax_scale;
  call.params.scale_log2 = call.pre_post.softmax_scale * std::numbers::log2e_v<float>;
  // Without keys nothing is stored, and the sums are empty too.
  if (sizes.ordered) call.shares[0] = layout.shares[0], call.shares[1] = layout.shares[1];
  call.work_tiles_of_part = static_cast<int32_t>(sizes.work_tiles_of_part);
  call.num_ctas = std::max(gpu::gpu_of_current_device().multiprocessors - args.options.sm_margin, 1);
  launch(shape.dtype == DType::kFloat16, shape.head_dim, call, stream);
}

}  // namespace tangram::sm90::token_backward
