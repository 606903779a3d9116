// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Backward pass of one tile of keys: keys in lanes. K^T and V^T are packed once for the tile; dk and dv stay in scratch
// until they are final. dq is computed for a block of queries and added in a fixed order (NOTE [order of dq]).
#pragma once

#include "attn/cpu/forward_kernel.hpp"

namespace tangram::cpu::TANGRAM_ISA {

/// Scratch of the backward pass. With bfloat16 pairs, `inner` rows hold pairs along the head dim and buffers of half
/// the rows pairs of two rows.
struct BackwardScratch {
  int64_t ld, ld_v;   // head dims rounded up to whole vectors; what is added is zero
  float* k;           // [kTileLanes / width, ld]
  float* dk;          // [kTileLanes, ld]
  float* dv;          // [kTileLanes, ld_v]
  float* k_t;         // [panels, inner, kPanel]
  float* v_t;         // [panels, inner_v, kPanel]
  float* q;           // [kQueryGrid / width, ld], as columns of a product
  float* dout;        // [kQueryGrid / width, ld_v]
  float* q_rows;      // [kQueryGrid, inner], as rows; the same as q in float32
  float* dout_rows;   // [kQueryGrid, inner_v]
  float* dq;          // [kQueryGrid, ld]
  float* p;           // [kQueryGrid, kPanel], scores, then probabilities
  float* ds;          // [kQueryGrid, kPanel], gradient of the probabilities, then of the scores
  float* p_columns;   // [kQueryGrid / width, kPanel], p with pairs of queries; the same as p in float32
  float* ds_columns;  // [kQueryGrid / width, kPanel]
  float* ds_rows;     // [kQueryGrid, kPanel / width], ds with pairs of keys
  float* lse;         // [kQueryGrid], natural log, as the caller has it
  float* lse_rest;    // [kQueryGrid], see BackwardJob
  float* delta;       // [kQueryGrid]

  static size_t size(const BackwardJob& job) {
    const size_t ld = static_cast<size_t>(round_up(job.q.dim, kLanes));
    const size_t ld_v = static_cast<size_t>(round_up(job.v.dim, kLanes));
    return (3 * ld + 2 * ld_v) * kTileLanes + (2 * ld + ld_v) * kQueryGrid + size_t{4} * kQueryGrid * kPanel +
           3 * kQueryGrid;
  }
  BackwardScratch(const BackwardJob& job, int width, void* memory) {
    auto* at = static_cast<float*>(memory);
    const auto take = [&at](int64_t n) {
      float* result = at;
      at += n;
      return result;
    };
    ld = round_up(job.q.dim, kLanes);
    ld_v = round_up(job.v.dim, kLanes);
    p = take(kQueryGrid * kPanel);
    ds = take(kQueryGrid * kPanel);
    lse = take(kQueryGrid);
    lse_rest = take(kQueryGrid);
    delta = take(kQueryGrid);
    k = take(kTileLanes * ld);
    dk = take(kTileLanes * ld);
    dv = take(kTileLanes * ld_v);
    k_t = take(kTileLanes * ld);
    v_t = take(kTileLanes * ld_v);
    q = take(kQueryGrid * ld);
    dout = take(kQueryGrid * ld_v);
    dq = take(kQueryGrid * ld);
    // In pairs a buffer of columns takes half of its memory, and the rows take the other half.
    q_rows = width == 1 ? q : q + kQueryGrid / 2 * ld;
    dout_rows = width == 1 ? dout : dout + kQueryGrid / 2 * ld_v;
    p_columns = width == 1 ? p : take(kQueryGrid / 2 * kPanel);
    ds_columns = width == 1 ? ds : take(kQueryGrid / 2 * kPanel);
    ds_rows = width == 1 ? ds : take(kQueryGrid / 2 * kPanel);
  }
};

TANGRAM_INLINE void fill_zero(float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = 0;
}

template <class Element>
class BackwardTile {
 public:
  BackwardTile(const BackwardJob& job, const TileIndex& index, const LaneTile& tile, int kv_head, void* memory)
      : job_(job),
        index_(index),
        tile_(tile),
        kv_head_(kv_head),
        num_rows_(static_cast<int>(tile.rows.end - tile.rows.begin)),
        inner_(inner_dim<Element>(job.q.dim)),
        inner_v_(inner_dim<Element>(job.v.dim)),
        s_(job, Element::kWidth, memory) {}

  void run(const int* turns) {
    load_keys();
    for (int head = kv_head_ * job_.group; head < (kv_head_ + 1) * job_.group; ++head) {
      StepWalker walker(index_, tile_, kQueryGrid, kQueryGrid);
      bool has_block = walker.next(block_);
      while (has_block) {
        load_queries(head);
        has_block = walker.next(next_block_);
        prefetch_rows(head, has_block);
        fill_zero(s_.dq, block_.num_steps * s_.ld);
        for (int panel = 0; panel * kPanel < num_rows_; ++panel) add_panel(panel);
        add_dq(head, turns[block_.ordinal]);
        if (has_block) block_ = next_block_;
      }
    }
    store_gradients();
  }

 private:
  static constexpr int kWidth = Element::kWidth;

  void load_keys() {
    bool seen[kTileLanes] = {};
    index_.find_seen_lanes(tile_, seen);
    // dk and dv lend their memory until they are zeroed.
    load_key_rows(job_.k, seen, s_.dk, inner_);
    load_key_rows(job_.v, seen, s_.dv, inner_v_);
    for (int panel = 0; panel < kNumPanels; ++panel) {
      const int64_t first = int64_t{panel} * kPanel;
      transpose(s_.k_t + first * inner_, kPanel, s_.dk + first * inner_, inner_, kPanel, inner_);
      transpose(s_.v_t + first * inner_v_, kPanel, s_.dv + first * inner_v_, inner_v_, kPanel, inner_v_);
    }
    for (int l = 0; l < kTileLanes; l += kWidth) {
      const float* row = s_.dk + int64_t{l} * inner_;
      load_columns(s_.k + l / kWidth * s_.ld, s_.ld, row, row + inner_, job_.q.dim);
    }
    fill_zero(s_.dk, kTileLanes * s_.ld);
    fill_zero(s_.dv, kTileLanes * s_.ld_v);
  }

  /// Keys that no query sees may hold anything; as zeros they add nothing to dq.
  void load_key_rows(const Tokens& from, const bool* seen, float* to, int inner) const {
    for (int l = 0; l < kTileLanes; ++l, to += inner) {
      if (seen[l]) {
        load_inner_row<Element>(to, from, tile_.rows.begin + l, kv_head_);
      } else {
        fill_zero(to, inner);
      }
    }
  }

  /// One row of a product's columns, from one row of elements or from two that pair up; ends in zeros.
  static void load_columns(float* to, int64_t ld, const void* first, const void* second, int dim) {
    if constexpr (kWidth == 1) {
      __builtin_memcpy(to, first, static_cast<size_t>(dim) * sizeof(float));
    } else {
      interleave_rows(to, first, second, dim);
    }
    fill_zero(to + dim, ld - dim);
  }

  void load_query_rows(const Tokens& from, int head, float* rows, int inner, float* columns, int64_t ld) const {
    for (int m = 0; m < block_.num_steps; ++m) {
      if constexpr (kWidth == 1) {
        load_row(columns + m * ld, row_of(from, block_.rows[m], head), from.dtype, from.dim);
        fill_zero(columns + m * ld + from.dim, ld - from.dim);
      } else {
        load_inner_row<Element>(rows + m * inner, from, block_.rows[m], head);
      }
    }
    if constexpr (kWidth > 1) {
      if (block_.num_steps % kWidth != 0) fill_zero(rows + block_.num_steps * inner, inner);
      for (int m = 0; m < block_.num_steps; m += kWidth) {
        load_columns(columns + m / kWidth * ld, ld, rows + m * inner, rows + (m + 1) * inner, from.dim);
      }
    }
  }

  void load_queries(int head) {
    load_query_rows(job_.q, head, s_.q_rows, inner_, s_.q, s_.ld);
    load_query_rows(job_.dout, head, s_.dout_rows, inner_v_, s_.dout, s_.ld_v);
    has_large_ = false;
    for (int m = 0; m < round_up(block_.num_steps, kWidth); ++m) {
      s_.lse[m] = -kMinusInf;  // exponentials against +inf are 0
      s_.lse_rest[m] = __builtin_nanf("");
      s_.delta[m] = 0;
      if (m == block_.num_steps) break;
      const int64_t at = block_.rows[m] * job_.num_heads_q + head;
      if (job_.lse[at] != kMinusInf) s_.lse[m] = job_.lse[at];
      if (job_.lse[at] == -kMinusInf) s_.lse[m] = __builtin_nanf("");  // scores overflowed
      if (job_.lse_rest != nullptr) s_.lse_rest[m] = job_.lse_rest[at];
      has_large_ = has_large_ || has_rest(m) || __builtin_fabsf(s_.lse[m]) >= kCoarseLse;
      s_.delta[m] = job_.delta[at];
    }
  }

  void prefetch_rows(int head, bool has_next) {
    prefetch_.clear();
    prefetch_.add(job_.dq, head, block_);
    if (!has_next) return;
    prefetch_.add(job_.q, head, next_block_);
    prefetch_.add(job_.dout, head, next_block_);
  }

  /// p and ds of one segment.
  void differentiate(int panel, const Segment& g) {
    const int first = g.vec_begin * kLanes, num_vecs = g.vec_end - g.vec_begin;
    const int end = round_up(g.end, kWidth);
    const int64_t at = int64_t{g.begin} * kPanel + first;
    const float* k_t = s_.k_t + int64_t{panel} * kPanel * inner_ + first;
    const float* v_t = s_.v_t + int64_t{panel} * kPanel * inner_v_ + first;
    const int64_t row_stride = kWidth == 1 ? s_.ld : inner_;
    const int64_t row_stride_v = kWidth == 1 ? s_.ld_v : inner_v_;
    product<Element, AOrder::kInnerContiguous>({end - g.begin, inner_, s_.q_rows + g.begin * row_stride, row_stride,
                                                k_t, kPanel, s_.p + at, kPanel, false, &prefetch_},
                                               num_vecs);
    product<Element, AOrder::kInnerContiguous>({end - g.begin, inner_v_, s_.dout_rows + g.begin * row_stride_v,
                                                row_stride_v, v_t, kPanel, s_.ds + at, kPanel, false, &prefetch_},
                                               num_vecs);
    for (int m = g.begin; m < end; m += kWidth) {
      for (int v = g.vec_begin; v < g.vec_end; ++v) {
        const Cells low = cells(panel, m, v);
        const int column = m / kWidth * kPanel + v * kLanes;
        if constexpr (kWidth == 1) {
          store(s_.p_columns + column, low.p);
          store(s_.ds_columns + column, low.ds);
        } else {
          const Cells high = cells(panel, m + 1, v);
          store(s_.p_columns + column, Element::pair_up(low.p, high.p));
          store(s_.ds_columns + column, Element::pair_up(low.ds, high.ds));
          Element::store_rounded(s_.ds_rows + (m * kPanel + v * kLanes) / kWidth, low.ds);
          Element::store_rounded(s_.ds_rows + ((m + 1) * kPanel + v * kLanes) / kWidth, high.ds);
        }
      }
    }
  }

  /// Probabilities and gradients of the scores of one vector of keys and query `m` of the block.
  struct Cells {
    Vec p, ds;
  };
  TANGRAM_MEMBER_INLINE Cells cells(int panel, int m, int v) const {
    const int at = m * kPanel + v * kLanes;
    Vec score = load(s_.p + at);
    Vec slope = splat(1.0f);
    float scale = job_.scale;
    if (job_.softcap > 0) {
      score = tanh_vec(score * (job_.scale / job_.softcap));
      slope = 1.0f - score * score;
      score = job_.softcap * score;  // rounded as in the forward pass
      scale = 1;
    }
    const Vec below = below_lse(score, scale, m);
    Cells result;
    result.p = exp2_vec(below * kLog2E);
    result.ds = result.p * (load(s_.ds + at) - s_.delta[m]) * slope;
    if (!block_.full) {
      const uint64_t bits = m < block_.num_steps ? panel_bits(block_, panel, m) >> (v * kLanes) : 0;
      result.p = select_bits(bits, result.p, Vec{});
      result.ds = select_bits(bits, result.ds, Vec{});
    }
    return result;
  }

  /// scale * score - lse. The product is rounded at the end alone. Scaling by log2(e) first would round both sides to
  /// steps that exceed 1 if lse is large. A score that rounds to lse has the row to itself, and takes all of it, unless
  /// what lse lost by rounding is known.
  TANGRAM_MEMBER_INLINE Vec below_lse(Vec score, float scale, int m) const {
    const Vec lse = splat(s_.lse[m]);
    const Vec unrounded = multiply_subtract(score, splat(scale), lse);
    const Vec below = score * scale == lse ? Vec{} : unrounded;
    return has_large_ ? below_large_lse(unrounded, below, m) : below;
  }

  TANGRAM_MEMBER_INLINE Vec below_large_lse(Vec unrounded, Vec below, int m) const {
    if (has_rest(m)) return unrounded - s_.lse_rest[m];
    const float magnitude = __builtin_fabsf(s_.lse[m]);
    if (!(magnitude >= kCoarseLse)) return below;
    // All digits of the difference are rounding: whether the probability is 1 or 1e-3 is lost, and NaN says so.
    return below > splat(magnitude * -0x1p-20f) ? splat(__builtin_nanf("")) : below;
  }

  TANGRAM_MEMBER_INLINE bool has_rest(int m) const { return s_.lse_rest[m] == s_.lse_rest[m]; }

  void add_panel(int panel) {
    Segment segments[kMaxSteps / kStepGroup];
    const int num_lanes = min_of(kPanel, num_rows_ - panel * kPanel);
    const int num_segments = find_segments(block_, panel, num_lanes, segments);
    if (num_segments == 0) return;
    if (!block_.full) {
      fill_zero(s_.p_columns, inner_dim<Element>(block_.num_steps) * kPanel);
      fill_zero(s_.ds_columns, inner_dim<Element>(block_.num_steps) * kPanel);
    }
    int step_begin[kVecs], step_end[kVecs];  // of the steps that have work for a vector
    for (int v = 0; v < kVecs; ++v) step_begin[v] = kMaxSteps, step_end[v] = 0;
    for (int n = 0; n < num_segments; ++n) {
      const Segment& g = segments[n];
      differentiate(panel, g);
      for (int v = g.vec_begin; v < g.vec_end; ++v) {
        step_begin[v] = min_of(step_begin[v], g.begin);
        step_end[v] = max_of(step_end[v], g.end);
      }
      const int first = g.vec_begin * kLanes;
      product<Element, AOrder::kInnerContiguous>(
          {g.end - g.begin, (g.vec_end - g.vec_begin) * kLanes / kWidth,
           s_.ds_rows + (g.begin * kPanel + first) / kWidth, kPanel / kWidth,
           s_.k + (panel * kPanel + first) / kWidth * s_.ld, s_.ld, s_.dq + g.begin * s_.ld, s_.ld, true, &prefetch_},
          static_cast<int>(s_.ld) / kLanes);
    }
    for (int v = 0; v < kVecs;) {
      int end = v + 1;
      while (end < kVecs && step_begin[end] == step_begin[v] && step_end[end] == step_end[v]) ++end;
      if (step_begin[v] < step_end[v]) add_key_gradients(panel, v, end, step_begin[v], step_end[v]);
      v = end;
    }
  }

  /// dk and dv of the keys in vectors [vec_begin, vec_end) from steps [begin, end).
  void add_key_gradients(int panel, int vec_begin, int vec_end, int begin, int end) const {
    const int rows = (vec_end - vec_begin) * kLanes, first = vec_begin * kLanes;
    const int64_t key = int64_t{panel} * kPanel + first;
    const int inner = inner_dim<Element>(end - begin), step = begin / kWidth;
    product<Element, AOrder::kRowsContiguous>({rows, inner, s_.p_columns + step * kPanel + first, kPanel,
                                               s_.dout + step * s_.ld_v, s_.ld_v, s_.dv + key * s_.ld_v, s_.ld_v, true},
                                              static_cast<int>(s_.ld_v) / kLanes);
    product<Element, AOrder::kRowsContiguous>({rows, inner, s_.ds_columns + step * kPanel + first, kPanel,
                                               s_.q + step * s_.ld, s_.ld, s_.dk + key * s_.ld, s_.ld, true},
                                              static_cast<int>(s_.ld) / kLanes);
  }

  void add_dq(int head, int turn) const {
    int* progress = job_.progress + head * job_.num_grid_rows + block_.rows[0] / kQueryGrid;
    wait_for_turn(progress, turn);
    for (int m = 0; m < block_.num_steps; ++m) {
      auto* to = static_cast<float*>(mutable_row_of(job_.dq, block_.rows[m], head));
      const float* from = s_.dq + m * s_.ld;
      for (int d = 0; d < job_.q.dim; ++d) to[d] += job_.scale * from[d];
    }
    finish_turn(progress, turn);
  }

  void store_gradients() const {
    for (int l = 0; l < num_rows_; ++l) {
      float* dk = s_.dk + l * s_.ld;
      for (int d = 0; d < job_.q.dim; ++d) dk[d] *= job_.scale;
      store_gradient(job_.dk, tile_.rows.begin + l, dk);
      store_gradient(job_.dv, tile_.rows.begin + l, s_.dv + l * s_.ld_v);
    }
  }

  void store_gradient(const MutableTokens& to, int64_t row, float* values) const {
    void* at = mutable_row_of(to, row, kv_head_);
    if (job_.accumulate_dkv) {
      // A row that no query sees stays untouched: its sum of other stages may be under way to another rank.
      if (std::all_of(values, values + to.dim, [](float value) { return value == 0; })) return;
      const auto* before = static_cast<const float*>(at);
      for (int d = 0; d < to.dim; ++d) values[d] += before[d];
    }
    store_row(at, to.dtype, values, to.dim);
  }

  const BackwardJob& job_;
  const TileIndex& index_;
  const LaneTile& tile_;
  int kv_head_;
  int num_rows_;
  int inner_, inner_v_;  // elements of a row of q and k, of v and dout
  BackwardScratch s_;
  StepBlock block_, next_block_;
  bool has_large_ = false;  // an lse of kCoarseLse or more in the block, or one whose rest is known
  RowPrefetch prefetch_;
};

static size_t backward_scratch_bytes(const BackwardJob& job) { return BackwardScratch::size(job) * sizeof(float); }

/// Products with an exact zero of out are left out: a poisoned dout of a row without keys reaches nothing.
static void row_delta(const BackwardJob& job, const Tokens& out, int64_t row, float* delta, void* memory) {
  const int padded = round_up(out.dim, kLanes);
  auto* out_row = static_cast<float*>(memory);
  float* dout_row = out_row + padded;
  fill_zero(out_row, 2 * padded);
  for (int head = 0; head < job.num_heads_q; ++head) {
    load_row(out_row, row_of(out, row, head), out.dtype, out.dim);
    load_row(dout_row, row_of(job.dout, row, head), job.dout.dtype, out.dim);
    Vec sum{};
    for (int d = 0; d < padded; d += kLanes) {
      const Vec value = load(out_row + d);
      const Vec product = value * load(dout_row + d);
      sum += value == 0.0f ? Vec{} : product;
    }
    delta[head] = 0;
    for (int l = 0; l < kLanes; ++l) delta[head] += sum[l];
  }
}

static void backward_tile(const BackwardJob& job, const TileIndex& index, const LaneTile& tile, int kv_head,
                          const int* turns, void* memory) {
#if defined(__AVX512BF16__)
  if (job.q.dtype == DType::kBFloat16 && job.dout.dtype == DType::kBFloat16) {
    return BackwardTile<BFloat16Pair>(job, index, tile, kv_head, memory).run(turns);
  }
#endif
  BackwardTile<Float32>(job, index, tile, kv_head, memory).run(turns);
}

}  // namespace tangram::cpu::TANGRAM_ISA
