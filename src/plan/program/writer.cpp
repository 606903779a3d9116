// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/program/writer.hpp"

#include <utility>

#include "core/require.hpp"

namespace tangram {

TensorRef ProgramWriter::region(Memory where, DType dtype, int64_t rows, int heads, int dim) {
  program_.regions.push_back({where, dtype, rows, heads, dim});
  return {where, static_cast<int>(program_.regions.size()) - 1, dtype, 0, rows, 0, heads, dim};
}

FloatRef ProgramWriter::float_work(int64_t rows, int columns) {
  return floats_of(work(DType::kFloat32, rows, columns, 1), columns);
}

RowListsRef ProgramWriter::add_lists(RowLists lists) {
  program_.row_lists.push_back(std::move(lists));
  return {static_cast<int>(program_.row_lists.size()) - 1, 0};
}

int ProgramWriter::add_cast(GroupCast cast) {
  for (const GroupCastTensor& item : cast.items) {
    if (item.target.memory == Memory::kReturned) {  // the transport rounds what goes there
      TANGRAM_ASSERT(cast.adds && item.source.heads == item.target.heads && item.source.dim == item.target.dim);
      continue;
    }
    TANGRAM_ASSERT(item.source.row_bytes() == item.target.row_bytes());
    TANGRAM_ASSERT(cast.adds || item.target.memory == Memory::kArena);
    const bool is_given = item.source.memory == Memory::kK || item.source.memory == Memory::kV;
    TANGRAM_ASSERT(target_.sends_from_anywhere || item.source.memory == Memory::kArena || is_given);
  }
  program_.casts.push_back(std::move(cast));
  return static_cast<int>(program_.casts.size()) - 1;
}

void ProgramWriter::cast(int number) {
  under_way_.insert(number);
  program_.ops.emplace_back(GroupCastOp{number});
}

void ProgramWriter::wait(int number) {
  under_way_.erase(number);
  program_.ops.emplace_back(WaitOp{number});
}

void ProgramWriter::wait_for_all() {
  while (!under_way_.empty()) wait(*under_way_.begin());
}

void ProgramWriter::sum_rows(std::vector<RowSumOp> sums) {
  std::erase_if(sums, [](const RowSumOp& sum) { return sum.result.rows == 0; });
  if (!sums.empty()) program_.ops.emplace_back(RowSumsOp{std::move(sums), step_});
}

void ProgramWriter::copy_floats(std::vector<FloatCopyOp> copies) {
  std::erase_if(copies, [](const FloatCopyOp& copy) { return copy.rows == 0 || copy.columns == 0; });
  if (!copies.empty()) program_.ops.emplace_back(FloatCopiesOp{std::move(copies), step_});
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
  for (const int number : op.ready_flags) under_way_.erase(number);
  op.beside_transfers = !under_way_.empty();
  for (auto number = under_way_.rbegin(); number != under_way_.rend(); ++number) {
    if (!program_.casts[static_cast<size_t>(*number)].results) op.next_cast = *number;
  }
  program_.ops.emplace_back(std::move(op));
}

TensorRef argument(Memory where, DType dtype, int64_t rows, int heads, int dim) {
  return {where, -1, dtype, 0, rows, 0, heads, dim};
}

FloatRef floats_of(const TensorRef& memory, int64_t stride) { return {memory.memory, 0, stride, memory.region}; }

}  // namespace tangram
