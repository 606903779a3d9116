// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/grid/grid_bytes.hpp"

namespace tangram {

namespace {

int64_t bytes_of(DType dtype) { return static_cast<int64_t>(size_of(dtype)); }

// Bytes of one row of q, out (with lse) and K/V for the given numbers of heads.
struct RowBytes {
  int64_t q = 0;
  int64_t out = 0;
  int64_t dout = 0;
  int64_t dq = 0;
  int64_t kv = 0;
  int64_t dkv = 0;       // as the head exchange returns them
  int64_t ring_dkv = 0;  // as they move between row groups
};

RowBytes row_bytes(const GridSizes& sizes, const GridCall& call, int64_t heads_q, int64_t heads_kv) {
  const HeadConfig& h = sizes.config.heads;
  const bool replicated = sizes.shape.ulysses_degree > h.num_heads_kv;
  const int64_t kv = heads_kv * (h.head_dim + h.head_dim_v);
  RowBytes bytes;
  bytes.q = heads_q * h.head_dim * bytes_of(h.dtype);
  bytes.out = heads_q * (h.head_dim_v * bytes_of(call.out) + bytes_of(DType::kFloat32));
  bytes.dout = heads_q * h.head_dim_v * bytes_of(call.dout);
  bytes.dq = heads_q * h.head_dim * bytes_of(call.grads);
  bytes.kv = kv * bytes_of(h.dtype);
  bytes.dkv = kv * bytes_of(replicated ? sizes.config.reduce_dtype : call.grads);
  bytes.ring_dkv = kv * bytes_of(sizes.config.reduce_dtype);
  return bytes;
}

}  // namespace

HeadBytes head_bytes(const GridSizes& sizes, const GridCall& call, AttnPass pass, int heads_kv) {
  const int ulysses_degree = sizes.shape.ulysses_degree;
  if (ulysses_degree == 1) return {};
  const HeadConfig& h = sizes.config.heads;
  const int64_t heads_q = int64_t{heads_kv} * local_heads_q(h, ulysses_degree) / local_heads_kv(h, ulysses_degree);
  const RowBytes row = row_bytes(sizes, call, heads_q, heads_kv);
  const int64_t sinks = heads_q * call.row_sinks * bytes_of(DType::kFloat32);
  const int64_t q_rows = sizes.q_rows * (ulysses_degree - 1);
  const int64_t k_rows = sizes.k_rows * (ulysses_degree - 1);
  const int64_t inputs = q_rows * (row.q + sinks) + k_rows * row.kv;
  if (pass == AttnPass::kForward) return {inputs, q_rows * row.out, 3, 2};  // q, k, v; out, lse
  HeadBytes bytes{q_rows * row.dout, q_rows * (row.dq + sinks) + k_rows * row.dkv, 1, 3};
  if (!call.kept) {
    bytes.in += inputs + q_rows * row.out;
    bytes.in_copies += 5;
  }
  return bytes;
}

BlockBytes block_bytes(const GridSizes& sizes) {
  const int ulysses_degree = sizes.shape.ulysses_degree;
  const RowBytes row = row_bytes(sizes, {}, 0, local_heads_kv(sizes.config.heads, ulysses_degree));
  const int64_t rows = sizes.k_rows * ulysses_degree;
  return {rows * row.kv, rows * row.ring_dkv};
}

GridTraffic grid_traffic(const GridSizes& sizes, const GridCall& call) {
  const int heads_kv = local_heads_kv(sizes.config.heads, sizes.shape.ulysses_degree);
  const HeadBytes forward = head_bytes(sizes, call, AttnPass::kForward, heads_kv);
  const HeadBytes backward = head_bytes(sizes, call, AttnPass::kBackward, heads_kv);
  const BlockBytes block = block_bytes(sizes);
  const int64_t others = sizes.shape.row_groups - 1;
  // Round a ring, gradients come home with one hop more than K/V makes.
  const int64_t grad_hops = sizes.shape.row_move == RowMove::kRing ? sizes.shape.row_groups : others;
  const int64_t ranks = sizes.config.cp_size;
  return {ranks * (forward.in + forward.back + others * block.kv),
          ranks * (backward.in + backward.back + others * block.kv + grad_hops * block.dkv)};
}

int64_t further_call_bytes(const HeadConfig& heads, AttnPass pass, int64_t q_rows, int64_t heads_q) {
  constexpr int64_t kSum = 2 * sizeof(float);  // read and written
  if (pass == AttnPass::kForward) return q_rows * heads_q * heads.head_dim_v * kSum;
  const int64_t reads = 2 * heads.head_dim_v * bytes_of(heads.dtype);
  return q_rows * heads_q * (heads.head_dim * 2 * kSum + reads);
}

int64_t rounding_bytes(const HeadConfig& heads, AttnPass pass, int64_t q_rows, int64_t heads_q) {
  if (heads.dtype == DType::kFloat32) return 0;
  const int64_t dim = pass == AttnPass::kForward ? heads.head_dim_v : heads.head_dim;
  return q_rows * heads_q * dim * 2 * bytes_of(DType::kFloat32);
}

int64_t head_copy_bytes(int64_t exchanged, int ulysses_degree) {
  return ulysses_degree == 1 ? 0 : 2 * exchanged * ulysses_degree / (ulysses_degree - 1);
}

GridCall predicted_call(const HeadConfig& heads) { return {heads.dtype, heads.dtype, heads.dtype, true}; }

}  // namespace tangram
