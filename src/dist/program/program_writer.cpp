// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "dist/program/program_writer.hpp"

#include <algorithm>

#include "core/require.hpp"

namespace tangram {

namespace {

constexpr int64_t kAlignment = 256;

TensorRef place(Place where, int64_t& end, DType dtype, int64_t rows, int heads, int dim) {
  TensorRef tensor{where, end, dtype, 0, rows, 0, heads, dim};
  end += (rows * tensor.row_bytes() + kAlignment - 1) / kAlignment * kAlignment;
  return tensor;
}

// `row` of `tensor` in arena units.
int64_t unit_of(const TensorRef& tensor, int64_t row) {
  const int64_t byte = tensor.offset + (tensor.first_row + row) * tensor.row_bytes();
  TANGRAM_ASSERT(tensor.place == Place::kArena && byte % kArenaUnit == 0);
  return byte / kArenaUnit;
}

}  // namespace

TensorRef TensorRef::slice(Range range) const {
  TANGRAM_ASSERT(range.begin >= 0 && range.end <= rows);
  TensorRef result = *this;
  result.first_row += range.begin;
  result.rows = range.size();
  return result;
}

int64_t GridProgram::bytes_received() const {
  int64_t units = 0;
  for (const Exchange& exchange : casts) units += exchange.rows_received();
  return units * kArenaUnit;
}

TensorRef ProgramWriter::arena(DType dtype, int64_t rows, int heads, int dim) {
  return place(Place::kArena, program_.arena_bytes, dtype, rows, heads, dim);
}

TensorRef ProgramWriter::work(DType dtype, int64_t rows, int heads, int dim) {
  return place(Place::kWork, program_.work_bytes, dtype, rows, heads, dim);
}

FloatRef ProgramWriter::float_work(int64_t rows, int columns) {
  const TensorRef memory = work(DType::kFloat32, rows, columns, 1);
  return {Place::kWork, memory.offset / static_cast<int64_t>(sizeof(float)), columns};
}

int ProgramWriter::add_stage(std::span<const CastItem> items) {
  Exchange units;
  for (const CastItem& item : items) {
    TANGRAM_ASSERT(item.source.row_bytes() == item.target.row_bytes());
    const auto append = [](std::vector<RowCopy>& to, const std::vector<RowCopy>& rows, const TensorRef& mine,
                           const TensorRef& theirs) {
      for (const RowCopy& copy : rows) {
        to.push_back({copy.peer,
                      {unit_of(mine, copy.rows.begin), unit_of(mine, copy.rows.end)},
                      unit_of(theirs, copy.peer_row)});
      }
    };
    append(units.sends, item.exchange.sends, item.source, item.target);
    append(units.recvs, item.exchange.recvs, item.target, item.source);
  }
  std::sort(units.sends.begin(), units.sends.end());
  std::sort(units.recvs.begin(), units.recvs.end());
  program_.casts.push_back(std::move(units));
  return static_cast<int>(program_.casts.size()) - 1;
}

void ProgramWriter::cast(int stage) {
  under_way_.insert(stage);
  program_.ops.emplace_back(CastOp{stage});
}

void ProgramWriter::wait(int stage) {
  under_way_.erase(stage);
  program_.ops.emplace_back(WaitOp{stage});
}

void ProgramWriter::sum_rows(std::vector<RowSumOp> sums) {
  std::erase_if(sums, [](const RowSumOp& sum) { return sum.result.rows == 0; });
  if (!sums.empty()) program_.ops.emplace_back(RowSumsOp{std::move(sums)});
}

void ProgramWriter::copy_floats(std::vector<FloatCopyOp> copies) {
  std::erase_if(copies, [](const FloatCopyOp& copy) { return copy.rows == 0 || copy.columns == 0; });
  if (!copies.empty()) program_.ops.emplace_back(FloatCopiesOp{std::move(copies)});
}

void ProgramWriter::sum_in_order(std::span<const TensorRef> terms, const TensorRef& result) {
  if (terms.size() <= 2) {
    sum_rows({{terms[0], terms.size() == 2 ? terms[1] : TensorRef{}, result}});
    return;
  }
  const TensorRef sum = work(DType::kFloat32, result.rows, result.heads, result.dim);
  sum_rows({{terms[0], terms[1], sum}});
  for (size_t i = 2; i + 1 < terms.size(); ++i) sum_rows({{sum, terms[i], sum}});
  sum_rows({{sum, terms.back(), result}});
}

void ProgramWriter::attend(AttendOp op) {
  op.beside_transfers = !under_way_.empty();
  program_.ops.emplace_back(std::move(op));
}

}  // namespace tangram
