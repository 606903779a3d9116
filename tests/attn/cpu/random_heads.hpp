// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Random problems in which groups of heads see different cells, with the result of dense attention in float64.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "attn/cpu/random_attention.hpp"

namespace tangram::test {

/// One problem twice: for all heads, and for each head group by itself.
struct RandomHeads {
  RandomAttention all;  // its slices and reference problem say nothing of the masks
  std::vector<RandomAttention> groups;
  reference::DenseResult expected;  // of all heads

  std::vector<std::vector<AttnSlice>> slices() const {
    std::vector<std::vector<AttnSlice>> slices;
    for (const RandomAttention& group : groups) slices.push_back(group.slices);
    return slices;
  }
};

/// Puts `[rows, heads of a group, dim]` of each group side by side.
inline std::vector<double> join_heads(const std::vector<const std::vector<double>*>& groups, int64_t heads,
                                      int64_t dim) {
  std::vector<double> joined;
  const auto block = static_cast<size_t>(heads * dim);
  for (size_t at = 0; at < groups[0]->size(); at += block) {
    for (const std::vector<double>* group : groups) {
      joined.insert(joined.end(), group->begin() + static_cast<std::ptrdiff_t>(at),
                    group->begin() + static_cast<std::ptrdiff_t>(at + block));
    }
  }
  return joined;
}

/// `masks[g]` is of group g. Rows that no head of a group sees, or that see nothing there, are NaN in its heads.
inline RandomHeads make_random_heads(const RandomConfig& config, const std::vector<std::vector<AttnSlice>>& masks,
                                     unsigned seed) {
  const auto num_masks = static_cast<int>(masks.size());
  RandomHeads r;
  RandomConfig unpoisoned = config;
  unpoisoned.poison = false;
  r.all = make_random(unpoisoned, {}, seed);
  RandomConfig of_group = config;
  of_group.shape.num_heads_q /= num_masks;
  of_group.shape.num_heads_kv /= num_masks;
  std::vector<reference::DenseResult> results;
  for (int g = 0; g < num_masks; ++g) {
    RandomAttention& one = r.groups.emplace_back(
        make_random(of_group, masks[static_cast<size_t>(g)], seed + 1 + static_cast<unsigned>(g)));
    results.push_back(reference::dense_attention(one.problem));
    for (const auto tensor : {&RandomAttention::q, &RandomAttention::k, &RandomAttention::v, &RandomAttention::dout}) {
      HostTensor& to = r.all.*tensor;
      const HostTensor& from = one.*tensor;
      const bool of_keys = tensor == &RandomAttention::k || tensor == &RandomAttention::v;
      const int heads = of_keys ? of_group.shape.num_heads_kv : of_group.shape.num_heads_q;
      for (int64_t row = 0; row < from.rows(); ++row) {
        for (int h = 0; h < heads; ++h) {
          for (int d = 0; d < from.dim(); ++d) to.set(row, g * heads + h, d, from.at(row, h, d));
        }
      }
    }
    const auto heads = static_cast<size_t>(of_group.shape.num_heads_q);
    for (size_t i = 0; i < one.sink.size(); ++i) {
      r.all.sink[(i / heads * static_cast<size_t>(num_masks) + static_cast<size_t>(g)) * heads + i % heads] =
          one.sink[i];
    }
  }
  const AttnShape& s = of_group.shape;
  const auto join = [&](auto member, int64_t heads, int64_t dim) {
    std::vector<const std::vector<double>*> parts;
    for (const reference::DenseResult& result : results) parts.push_back(&(result.*member));
    r.expected.*member = join_heads(parts, heads, dim);
  };
  join(&reference::DenseResult::out, s.num_heads_q, s.head_dim_v);
  join(&reference::DenseResult::lse, s.num_heads_q, 1);
  join(&reference::DenseResult::max_logits, s.num_heads_q, 1);
  join(&reference::DenseResult::dq, s.num_heads_q, s.head_dim);
  join(&reference::DenseResult::dk, s.num_heads_kv, s.head_dim);
  join(&reference::DenseResult::dv, s.num_heads_kv, s.head_dim_v);
  join(&reference::DenseResult::dsink, s.num_heads_q, 1);
  return r;
}

/// Blocks of `rows` by `keys` that each group chooses at random, some rows among them that see nothing, and one that
/// sees one key.
inline std::vector<std::vector<AttnSlice>> random_blocks(const AttnShape& shape, int num_masks, int64_t rows,
                                                         int64_t keys, double share, unsigned seed) {
  std::mt19937 random(seed);
  std::bernoulli_distribution sees(share);
  std::vector<std::vector<AttnSlice>> masks;
  for (int g = 0; g < num_masks; ++g) {
    std::vector<AttnSlice>& slices = masks.emplace_back();
    for (int64_t q = 0; q < shape.seqlen_q; q += rows) {
      const Range of_q{q, std::min(q + rows, shape.seqlen_q)};
      const int64_t block = q / rows + g;
      if (block % 5 == 1) continue;
      if (block % 5 == 3) {
        slices.push_back(AttnSlice::full(of_q, {(q + g) % shape.seqlen_k, (q + g) % shape.seqlen_k + 1}));
        continue;
      }
      for (int64_t k = 0; k < shape.seqlen_k; k += keys) {
        if (sees(random)) slices.push_back(AttnSlice::full(of_q, {k, std::min(k + keys, shape.seqlen_k)}));
      }
    }
  }
  return masks;
}

}  // namespace tangram::test
