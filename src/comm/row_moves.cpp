// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Reductions walk the owned rows in runs with one set of contributors, and each row's contributors in rank order. So a
// sum does not depend on the order of arrival.
#include "comm/row_moves.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/larger.hpp"
#include "core/require.hpp"

namespace tangram::comm {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

char* row_at(const TensorView& view, int64_t row, int head) {
  return static_cast<char*>(view.data) +
         (row * view.row_stride + head * view.head_stride) * static_cast<int64_t>(size_of(view.dtype));
}
const char* row_at(const ConstTensorView& view, int64_t row, int head) {
  return static_cast<const char*>(view.data) +
         (row * view.row_stride + head * view.head_stride) * static_cast<int64_t>(size_of(view.dtype));
}

/// Calls `visit(floats, i)` with each element of the row as float.
template <class Visit>
void for_each_value(const ConstTensorView& view, int64_t row, Visit visit) {
  for (int head = 0; head < view.heads; ++head) {
    const char* bytes = row_at(view, row, head);
    const int64_t first = int64_t{head} * view.dim;
    if (view.dtype == DType::kFloat32) {
      const float* values = reinterpret_cast<const float*>(bytes);
      for (int d = 0; d < view.dim; ++d) visit(first + d, values[d]);
    } else {
      const uint16_t* values = reinterpret_cast<const uint16_t*>(bytes);
      const auto convert = view.dtype == DType::kBFloat16 ? bfloat16_to_float : float16_to_float;
      for (int d = 0; d < view.dim; ++d) visit(first + d, convert(values[d]));
    }
  }
}

void store_row(const TensorView& view, int64_t row, const float* sums, float scale) {
  for (int head = 0; head < view.heads; ++head) {
    char* bytes = row_at(view, row, head);
    const float* source = sums + int64_t{head} * view.dim;
    if (view.dtype == DType::kFloat32) {
      float* values = reinterpret_cast<float*>(bytes);
      for (int d = 0; d < view.dim; ++d) values[d] = source[d] * scale;
    } else {
      uint16_t* values = reinterpret_cast<uint16_t*>(bytes);
      const auto convert = view.dtype == DType::kBFloat16 ? float_to_bfloat16 : float_to_float16;
      for (int d = 0; d < view.dim; ++d) values[d] = convert(source[d] * scale);
    }
  }
}

/// A piece of a peer, or of the rank itself (piece_idx unused).
struct Contributor {
  int rank = 0;
  size_t piece_idx = 0;
  int64_t first_row = 0;  // owned row at which the piece begins
};

/// Consecutive owned rows with the same contributors, these in rank order, the rank itself among them.
struct Run {
  Range rows;
  std::vector<Contributor> contributors;
};

std::vector<Run> make_runs(std::span<const RowCopy> incoming, int rank, int size) {
  struct Border {
    int64_t row;
    bool begins;
    Contributor contributor;
  };
  std::vector<Border> borders;
  borders.reserve(2 * incoming.size());
  for (int peer = 0; peer < size; ++peer) {
    const std::span<const RowCopy> pieces = pieces_of(incoming, peer);
    for (size_t i = 0; i < pieces.size(); ++i) {
      const Contributor contributor{peer, i, pieces[i].rows.begin};
      borders.push_back({pieces[i].rows.begin, true, contributor});
      borders.push_back({pieces[i].rows.end, false, contributor});
    }
  }
  std::sort(borders.begin(), borders.end(), [](const Border& a, const Border& b) { return a.row < b.row; });

  const auto by_rank = [](const Contributor& a, const Contributor& b) { return a.rank < b.rank; };
  std::vector<Run> runs;
  std::vector<Contributor> active;  // of peers, in rank order; at most one piece of each covers a row
  for (size_t i = 0; i < borders.size();) {
    const int64_t row = borders[i].row;
    // Ends before begins: two pieces of one peer may touch.
    const size_t first = i;
    for (; i < borders.size() && borders[i].row == row; ++i) {
      if (!borders[i].begins) {
        std::erase_if(active, [&](const Contributor& c) { return c.rank == borders[i].contributor.rank; });
      }
    }
    for (size_t j = first; j < i; ++j) {
      if (borders[j].begins) {
        const Contributor& contributor = borders[j].contributor;
        active.insert(std::upper_bound(active.begin(), active.end(), contributor, by_rank), contributor);
      }
    }
    if (active.empty()) continue;
    Run run{{row, borders[i].row}, active};
    const Contributor self{rank, 0, 0};
    run.contributors.insert(std::upper_bound(run.contributors.begin(), run.contributors.end(), self, by_rank), self);
    runs.push_back(std::move(run));
  }
  return runs;
}

/// The contributor's view and the offset from owned rows to its rows.
struct Operand {
  ConstTensorView view;
  int64_t first_row = 0;
};

std::vector<Operand> operands_of(const Run& run, const Operation& operation, int rank, size_t tensor_idx,
                                 const PieceSource& source) {
  std::vector<Operand> operands;
  operands.reserve(run.contributors.size());
  for (const Contributor& contributor : run.contributors) {
    if (contributor.rank == rank) {
      operands.push_back({operation.targets[tensor_idx], 0});
    } else {
      operands.push_back({source(contributor.rank, contributor.piece_idx, tensor_idx), contributor.first_row});
    }
  }
  return operands;
}

void reduce_run(const Run& run, std::span<const Operand> operands, const TensorView& target, ReduceOp op,
                std::vector<float>& sums) {
  const float scale = op == ReduceOp::kAvg ? 1.0f / static_cast<float>(operands.size()) : 1.0f;
  sums.resize(static_cast<size_t>(target.heads) * static_cast<size_t>(target.dim));
  float* const values = sums.data();
  for (int64_t row = run.rows.begin; row < run.rows.end; ++row) {
    for_each_value(operands[0].view, row - operands[0].first_row, [&](int64_t i, float value) { values[i] = value; });
    for (const Operand& operand : operands.subspan(1)) {
      const int64_t operand_row = row - operand.first_row;
      if (op == ReduceOp::kMax) {
        for_each_value(operand.view, operand_row, [&](int64_t i, float v) { values[i] = std::max(values[i], v); });
      } else {
        for_each_value(operand.view, operand_row, [&](int64_t i, float v) { values[i] += v; });
      }
    }
    store_row(target, row, values, scale);
  }
}

/// The merge of partial softmax results: out and lse of each head, weighted by exp(lse_i - lse).
void merge_run(const Run& run, std::span<const Operand> outs, std::span<const Operand> lses, const TensorView& out,
               const TensorView& lse, std::vector<float>& sums) {
  sums.resize(static_cast<size_t>(out.dim));
  for (int64_t row = run.rows.begin; row < run.rows.end; ++row) {
    for (int head = 0; head < out.heads; ++head) {
      const auto lse_of = [&](const Operand& operand) {
        return *reinterpret_cast<const float*>(row_at(operand.view, row - operand.first_row, head));
      };
      float largest = -kInfinity;
      for (const Operand& operand : lses) largest = larger(largest, lse_of(operand));
      float total = 0;
      std::fill(sums.begin(), sums.end(), 0.0f);
      for (size_t i = 0; i < outs.size() && largest != -kInfinity; ++i) {
        const float weight = std::exp(lse_of(lses[i]) - largest);
        if (weight == 0) continue;  // a row that saw nothing may hold anything
        total += weight;
        const float* values = reinterpret_cast<const float*>(row_at(outs[i].view, row - outs[i].first_row, head));
        for (int d = 0; d < out.dim; ++d) sums[static_cast<size_t>(d)] += weight * values[d];
      }
      float* result = reinterpret_cast<float*>(row_at(out, row, head));
      const bool sees_nothing = largest == -kInfinity;
      const float scale = sees_nothing ? 0.0f : 1.0f / total;
      for (int d = 0; d < out.dim; ++d) result[d] = sums[static_cast<size_t>(d)] * scale;
      *reinterpret_cast<float*>(row_at(lse, row, head)) = sees_nothing ? -kInfinity : largest + std::log(total);
    }
  }
}

}  // namespace

void copy_rows(const ConstTensorView& source, const TensorView& target) {
  TANGRAM_ASSERT(source.rows == target.rows && source.heads == target.heads && source.dim == target.dim &&
                 source.dtype == target.dtype);
  if (source.empty()) return;
  if (source.contiguous() && target.contiguous()) {
    std::memcpy(target.data, source.data, static_cast<size_t>(source.rows * source.row_bytes()));
    return;
  }
  const bool whole_rows = source.head_stride == source.dim && target.head_stride == target.dim;
  const size_t head_bytes = static_cast<size_t>(source.dim) * size_of(source.dtype);
  for (int64_t row = 0; row < source.rows; ++row) {
    if (whole_rows) {
      std::memcpy(row_at(target, row, 0), row_at(source, row, 0), static_cast<size_t>(source.row_bytes()));
      continue;
    }
    for (int head = 0; head < source.heads; ++head) {
      std::memcpy(row_at(target, row, head), row_at(source, row, head), head_bytes);
    }
  }
}

void receive_rows(const Operation& operation, int rank, int size, const PieceSource& source) {
  const OpKind kind = operation.kind();
  if (kind == OpKind::kGroupCast || kind == OpKind::kAllToAllV) {
    for (int peer = 0; peer < size; ++peer) {
      const std::span<const RowCopy> pieces = pieces_of(operation.incoming, peer);
      for (size_t i = 0; i < pieces.size(); ++i) {
        for (size_t t = 0; t < operation.targets.size(); ++t) {
          copy_rows(source(peer, i, t), slice_rows(operation.targets[t], pieces[i].rows));
        }
      }
    }
    return;
  }
  std::vector<float> sums;
  for (const Run& run : make_runs(operation.incoming, rank, size)) {
    if (kind == OpKind::kGroupReduceLse) {
      merge_run(run, operands_of(run, operation, rank, 0, source), operands_of(run, operation, rank, 1, source),
                operation.targets[0], operation.targets[1], sums);
      continue;
    }
    for (size_t t = 0; t < operation.targets.size(); ++t) {
      reduce_run(run, operands_of(run, operation, rank, t, source), operation.targets[t], operation.signature.op, sums);
    }
  }
}

}  // namespace tangram::comm
