// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Backward pass of one tile of keys: keys in lanes. K^T and V^T are packed once for the tile; dk and dv stay in scratch
// until they are final; dq is computed for a block of queries and added in a fixed order (NOTE [order of dq]).
#pragma once

#include "attn/cpu/forward_kernel.hpp"

namespace tangram::cpu::TANGRAM_ISA {

struct BackwardScratch {
  int64_t ld, ld_v;  // head dims rounded up to whole vectors; what is added is zero
  float* k;          // [kTileLanes, ld]
  float* dk;         // [kTileLanes, ld]
  float* dv;         // [kTileLanes, ld_v]
  float* k_t;        // [panels, head_dim, kPanel]
  float* v_t;        // [panels, head_dim_v, kPanel]
  float* q;          // [kQueryGrid, ld]
  float* dout;       // [kQueryGrid, ld_v]
  float* dq;         // [kQueryGrid, ld]
  float* p;          // [kQueryGrid, kPanel], probabilities
  float* ds;         // [kQueryGrid, kPanel], gradient of the scores
  float* lse;        // [kQueryGrid], in powers of two
  float* delta;      // [kQueryGrid]

  static size_t size(const BackwardJob& job) {
    const size_t ld = static_cast<size_t>(round_up(job.q.dim, kLanes));
    const size_t ld_v = static_cast<size_t>(round_up(job.v.dim, kLanes));
    return (3 * ld + 2 * ld_v) * kTileLanes + (2 * ld + ld_v) * kQueryGrid + size_t{2} * kQueryGrid * kPanel +
           2 * kQueryGrid;
  }
  BackwardScratch(const BackwardJob& job, void* memory) {
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
    delta = take(kQueryGrid);
    k = take(kTileLanes * ld);
    dk = take(kTileLanes * ld);
    dv = take(kTileLanes * ld_v);
    k_t = take(kTileLanes * ld);
    v_t = take(kTileLanes * ld_v);
    q = take(kQueryGrid * ld);
    dout = take(kQueryGrid * ld_v);
    dq = take(kQueryGrid * ld);
  }
};

TANGRAM_INLINE void fill_zero(float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = 0;
}

/// A row into a buffer whose rows end in zeros.
TANGRAM_INLINE void load_padded_row(float* to, int64_t ld, const Tokens& from, int64_t row, int head) {
  load_row(to, row_of(from, row, head), from.dtype, from.dim);
  fill_zero(to + from.dim, ld - from.dim);
}

class BackwardTile {
 public:
  BackwardTile(const BackwardJob& job, const TileIndex& index, const LaneTile& tile, int kv_head, void* memory)
      : job_(job),
        index_(index),
        tile_(tile),
        kv_head_(kv_head),
        num_rows_(static_cast<int>(tile.rows.end - tile.rows.begin)),
        s_(job, memory) {}

  void run(const int* turns) {
    load_keys();
    for (int head = kv_head_ * job_.group; head < (kv_head_ + 1) * job_.group; ++head) {
      StepWalker walker(index_, tile_, kQueryGrid, kQueryGrid);
      while (walker.next(block_)) {
        load_queries(head);
        fill_zero(s_.dq, block_.num_steps * s_.ld);
        for (int panel = 0; panel * kPanel < num_rows_; ++panel) add_panel(panel);
        add_dq(head, turns[block_.ordinal]);
      }
    }
    store_gradients();
  }

 private:
  void load_keys() {
    bool seen[kTileLanes] = {};
    index_.find_seen_lanes(tile_, seen);
    // Keys that nobody sees may hold anything; as zeros they add nothing to dq.
    const auto load_tile = [&](const Tokens& from, float* to, int64_t ld) {
      for (int l = 0; l < kTileLanes; ++l) {
        if (seen[l]) {
          load_padded_row(to + l * ld, ld, from, tile_.rows.begin + l, kv_head_);
        } else {
          fill_zero(to + l * ld, ld);
        }
      }
    };
    load_tile(job_.v, s_.dv, s_.ld_v);  // dv lends its memory until it is zeroed
    load_tile(job_.k, s_.k, s_.ld);
    for (int panel = 0; panel < kNumPanels; ++panel) {
      const int64_t first = int64_t{panel} * kPanel;
      transpose(s_.k_t + first * job_.q.dim, kPanel, s_.k + first * s_.ld, s_.ld, kPanel, job_.q.dim);
      transpose(s_.v_t + first * job_.v.dim, kPanel, s_.dv + first * s_.ld_v, s_.ld_v, kPanel, job_.v.dim);
    }
    fill_zero(s_.dk, kTileLanes * s_.ld);
    fill_zero(s_.dv, kTileLanes * s_.ld_v);
  }

  void load_queries(int head) {
    for (int m = 0; m < block_.num_steps; ++m) {
      const int64_t row = block_.rows[m];
      load_padded_row(s_.q + m * s_.ld, s_.ld, job_.q, row, head);
      load_padded_row(s_.dout + m * s_.ld_v, s_.ld_v, job_.dout, row, head);
      const float lse = job_.lse[row * job_.num_heads_q + head];
      s_.lse[m] = lse == kMinusInf ? -kMinusInf : lse * kLog2E;  // exponentials against +inf are 0
      s_.delta[m] = job_.delta[row * job_.num_heads_q + head];
    }
  }

  /// p and ds of one segment.
  void differentiate(int panel, const Segment& g) const {
    const int first = g.vec_begin * kLanes, num_vecs = g.vec_end - g.vec_begin, rows = g.end - g.begin;
    const int64_t at = int64_t{g.begin} * kPanel + first;
    const float* k_t = s_.k_t + int64_t{panel} * kPanel * job_.q.dim + first;
    const float* v_t = s_.v_t + int64_t{panel} * kPanel * job_.v.dim + first;
    product<Float32, AOrder::kInnerContiguous>(
        {rows, job_.q.dim, s_.q + g.begin * s_.ld, s_.ld, k_t, kPanel, s_.p + at, kPanel, false}, num_vecs);
    product<Float32, AOrder::kInnerContiguous>(
        {rows, job_.v.dim, s_.dout + g.begin * s_.ld_v, s_.ld_v, v_t, kPanel, s_.ds + at, kPanel, false}, num_vecs);
    const bool capped = job_.softcap > 0;
    const float to_log2 = (capped ? job_.softcap : job_.scale) * kLog2E;
    for (int m = g.begin; m < g.end; ++m) {
      const uint64_t bits = block_.full ? ~uint64_t{0} : panel_bits(block_, panel, m);
      for (int v = g.vec_begin; v < g.vec_end; ++v) {
        float* p_at = s_.p + m * kPanel + v * kLanes;
        float* ds_at = s_.ds + m * kPanel + v * kLanes;
        Vec score = load(p_at);
        Vec slope = splat(1.0f);
        if (capped) {
          score = tanh_vec(score * (job_.scale / job_.softcap));
          slope = 1.0f - score * score;
        }
        Vec p = exp2_vec(score * to_log2 - s_.lse[m]);
        Vec ds = p * (load(ds_at) - s_.delta[m]) * slope;
        if (!block_.full) {
          p = select_bits(bits >> (v * kLanes), p, Vec{});
          ds = select_bits(bits >> (v * kLanes), ds, Vec{});
        }
        store(p_at, p);
        store(ds_at, ds);
      }
    }
  }

  void add_panel(int panel) {
    Segment segments[kMaxSteps / kStepGroup];
    const int num_lanes = min_of(kPanel, num_rows_ - panel * kPanel);
    const int num_segments = find_segments(block_, panel, num_lanes, segments);
    if (num_segments == 0) return;
    if (!block_.full) {
      fill_zero(s_.p, block_.num_steps * kPanel);
      fill_zero(s_.ds, block_.num_steps * kPanel);
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
      product<Float32, AOrder::kInnerContiguous>(
          {g.end - g.begin, (g.vec_end - g.vec_begin) * kLanes, s_.ds + g.begin * kPanel + first, kPanel,
           s_.k + (panel * kPanel + first) * s_.ld, s_.ld, s_.dq + g.begin * s_.ld, s_.ld, true},
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
    product<Float32, AOrder::kRowsContiguous>(
        {rows, end - begin, s_.p + begin * kPanel + first, kPanel, s_.dout + begin * s_.ld_v, s_.ld_v,
         s_.dv + key * s_.ld_v, s_.ld_v, true},
        static_cast<int>(s_.ld_v) / kLanes);
    product<Float32, AOrder::kRowsContiguous>({rows, end - begin, s_.ds + begin * kPanel + first, kPanel,
                                               s_.q + begin * s_.ld, s_.ld, s_.dk + key * s_.ld, s_.ld, true},
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
  BackwardScratch s_;
  StepBlock block_;
};

static size_t backward_scratch_bytes(const BackwardJob& job) { return BackwardScratch::size(job) * sizeof(float); }

static void backward_tile(const BackwardJob& job, const TileIndex& index, const LaneTile& tile, int kv_head,
                          const int* turns, void* memory) {
  BackwardTile(job, index, tile, kv_head, memory).run(turns);
}

}  // namespace tangram::cpu::TANGRAM_ISA
