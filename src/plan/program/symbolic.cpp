// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/program/symbolic.hpp"

#include <fmt/format.h>

#include <set>

namespace tangram {

namespace {

__extension__ using Wide = unsigned __int128;

/// Regions of which single floats are addressed: each is a cell.
std::set<int> regions_of_floats(const Program& program) {
  std::set<int> regions;
  const auto add = [&](const FloatRef& ref) {
    if (ref.region >= 0) regions.insert(ref.region);
  };
  for (const Op& op : program.ops) {
    if (const auto* copies = std::get_if<FloatCopiesOp>(&op)) {
      for (const FloatCopyOp& copy : copies->copies) {
        add(copy.from);
        add(copy.to);
      }
    } else if (const auto* attend = std::get_if<AttendOp>(&op)) {
      for (const FloatRef* ref : {&attend->lse, &attend->sink, &attend->max_logits, &attend->dsink, &attend->delta})
        add(*ref);
    }
  }
  return regions;
}

void require_final(const Cells::Cell& cell) {
  if (cell.recv_buffers >= 0) {
    throw ProgramFault{fmt::format("uses rows that cast {} brings, which was not waited for", cell.recv_buffers)};
  }
  if (cell.adders > 0) throw ProgramFault{"uses rows to which a cast under way adds"};
}

Element checked_value(const Cells& cells, size_t index) {
  const Cells::Cell& cell = cells.cells[index];
  require_final(cell);
  if (!cell.written) throw ProgramFault{"reads what nothing has written"};
  return cell.value;
}

void checked_write(Cells& cells, size_t index, Element value) {
  Cells::Cell& cell = cells.cells[index];
  require_final(cell);
  if (cells.read_only) throw ProgramFault{"writes an operand of the pass"};
  if (cell.readers > 0) throw ProgramFault{"writes what a cast under way reads"};
  cell.value = value;
  cell.written = true;
}

}  // namespace

Element Element::of(Memory tensor, int64_t row, int64_t head) {
  uint64_t x = static_cast<uint64_t>(tensor) << 58 ^ static_cast<uint64_t>(head) << 44 ^ static_cast<uint64_t>(row);
  for (const uint64_t factor : {0xbf58476d1ce4e5b9ULL, 0x94d049bb133111ebULL}) {  // splitmix64
    x += 0x9e3779b97f4a7c15ULL;
    x = (x ^ x >> 30) * factor;
  }
  x ^= x >> 31;
  return Element(x % (kPrime - 1) + 1);
}

Element Element::operator+(Element other) const { return Element(value_ + other.value_); }
Element Element::operator-(Element other) const { return Element(value_ + kPrime - other.value_); }
Element Element::operator*(Element other) const {
  return Element(static_cast<uint64_t>(static_cast<Wide>(value_) * other.value_ % kPrime));
}

SymbolicMemory::SymbolicMemory(const Program& program, const SymbolicMemory* kept) : program_(program) {
  const std::set<int> floats = regions_of_floats(program);
  for (const Region& region : program.regions) {
    const auto number = static_cast<int>(regions_.size());
    if (kept != nullptr && number < program.num_kept) {
      regions_.push_back(kept->regions_[static_cast<size_t>(number)]);
      continue;
    }
    Cells& cells = regions_.emplace_back();
    cells.columns = floats.contains(number) ? int64_t{region.heads} * region.dim : region.heads;
    cells.cells.resize(static_cast<size_t>(region.rows * cells.columns));
    for (Cells::Cell& cell : cells.cells) cell.written = region.memory == Memory::kReturned;
  }
}

void SymbolicMemory::add_argument(Memory where, int64_t rows, int64_t columns, bool read_only) {
  Cells& cells = argument(where);
  cells.cells.resize(static_cast<size_t>(rows * columns));
  cells.columns = columns;
  cells.read_only = read_only;
}

template <class Ref>
const Cells& SymbolicMemory::of(const Ref& ref) const {
  if (ref.region < 0) return arguments_[static_cast<size_t>(ref.memory)];
  if (static_cast<size_t>(ref.region) >= regions_.size()) {
    throw ProgramFault{fmt::format("names region {} of {}", ref.region, regions_.size())};
  }
  if (program_.regions[static_cast<size_t>(ref.region)].memory != ref.memory) {
    throw ProgramFault{fmt::format("names region {} in another memory", ref.region)};
  }
  return regions_[static_cast<size_t>(ref.region)];
}

size_t SymbolicMemory::index(const TensorRef& ref, int64_t row, int head) const {
  const Cells& cells = of(ref);
  if (ref.region >= 0) {
    const Region& region = program_.regions[static_cast<size_t>(ref.region)];
    const bool has_heads = ref.first_head >= 0 && ref.first_head + ref.heads <= region.heads;
    if (ref.dtype != region.dtype || !has_heads || ref.dim != region.dim) {
      throw ProgramFault{fmt::format("takes region {} for another tensor than it is", ref.region)};
    }
  }
  const int64_t at = ref.first_row + row, column = ref.first_head + head;
  if (row < 0 || row >= ref.rows || at < 0 || at >= cells.rows() || head < 0 || head >= ref.heads ||
      column >= cells.columns) {
    throw ProgramFault{fmt::format("row {}, head {} lie outside of their tensor", at, column)};
  }
  return static_cast<size_t>(at * cells.columns + column);
}

size_t SymbolicMemory::index(const FloatRef& ref, int64_t row, int64_t column) const {
  const int64_t at = ref.offset + row * ref.stride + column;
  if (at < 0 || at >= static_cast<int64_t>(of(ref).cells.size())) {
    throw ProgramFault{fmt::format("value {} lies outside of its floats", at)};
  }
  return static_cast<size_t>(at);
}

Element SymbolicMemory::read(const TensorRef& ref, int64_t row, int head) const {
  return checked_value(of(ref), index(ref, row, head));
}
Element SymbolicMemory::read(const FloatRef& ref, int64_t row, int64_t column) const {
  return checked_value(of(ref), index(ref, row, column));
}
void SymbolicMemory::write(const TensorRef& ref, int64_t row, int head, Element value) {
  checked_write(const_cast<Cells&>(of(ref)), index(ref, row, head), value);
}
void SymbolicMemory::write(const FloatRef& ref, int64_t row, int64_t column, Element value) {
  checked_write(const_cast<Cells&>(of(ref)), index(ref, row, column), value);
}

std::span<const int32_t> SymbolicMemory::rows_of(const RowListsRef& ref, int64_t row) const {
  if (ref.lists < 0 || ref.lists >= std::ssize(program_.row_lists)) throw ProgramFault{"names row lists that are none"};
  const RowLists& lists = program_.row_lists[static_cast<size_t>(ref.lists)];
  const int64_t at = ref.first + row;
  if (at < 0 || at >= lists.size()) throw ProgramFault{fmt::format("row {} has no list of rows", at)};
  const auto begin = static_cast<size_t>(lists.begins[static_cast<size_t>(at)]);
  return std::span(lists.rows).subspan(begin, static_cast<size_t>(lists.begins[static_cast<size_t>(at) + 1]) - begin);
}

template <class Visit>
void SymbolicMemory::for_each(const TensorRef& ref, Range rows, const Visit& visit) {
  Cells& cells = const_cast<Cells&>(of(ref));
  if (rows.begin < 0 || rows.end > ref.rows || ref.first_row + rows.end > cells.rows()) {
    throw ProgramFault{fmt::format("rows [{}, {}) of a cast lie outside of their tensor", rows.begin, rows.end)};
  }
  // Arguments: the given heads. Regions: all columns, however many a head has.
  const int64_t first = ref.region < 0 ? ref.first_head : 0;
  const int64_t count = ref.region < 0 ? ref.heads : cells.columns;
  for (int64_t row = ref.first_row + rows.begin; row < ref.first_row + rows.end; ++row) {
    for (int64_t column = first; column < first + count; ++column) {
      visit(cells.cells[static_cast<size_t>(row * cells.columns + column)]);
    }
  }
}

void SymbolicMemory::expect(const TensorRef& target, Range rows, int cast) {
  for_each(target, rows, [&](Cells::Cell& cell) {
    if (cell.recv_buffers >= 0) {
      throw ProgramFault{fmt::format("casts {} and {} both bring a row", cell.recv_buffers, cast)};
    }
    if (cell.readers > 0) throw ProgramFault{"lets a cast write what another one still reads"};
    cell.recv_buffers = cast;
  });
}

std::vector<Element> SymbolicMemory::begin_read(const TensorRef& source, Range rows) {
  std::vector<Element> values;
  for_each(source, rows, [&](Cells::Cell& cell) {
    require_final(cell);
    if (!cell.written) throw ProgramFault{"sends what nothing has written"};
    ++cell.readers;
    values.push_back(cell.value);
  });
  return values;
}

void SymbolicMemory::end_read(const TensorRef& source, Range rows) {
  for_each(source, rows, [](Cells::Cell& cell) { --cell.readers; });
}

template <class Visit>
void SymbolicMemory::receive(const TensorRef& target, Range rows, const std::vector<Element>& values,
                             const Visit& visit) {
  size_t next = 0;
  for_each(target, rows, [&](Cells::Cell& cell) {
    if (next == values.size()) throw ProgramFault{"more comes than was sent"};
    visit(cell, values[next++]);
  });
  if (next != values.size()) throw ProgramFault{"less comes than was sent"};
}

void SymbolicMemory::land(const TensorRef& target, Range rows, const std::vector<Element>& values) {
  receive(target, rows, values, [](Cells::Cell& cell, Element value) { cell = {value, true}; });
}

void SymbolicMemory::begin_add(const TensorRef& target, Range rows) {
  for_each(target, rows, [](Cells::Cell& cell) {
    if (!cell.written || cell.readers > 0) throw ProgramFault{"adds to what nothing has written or a cast reads"};
    ++cell.adders;
  });
}

void SymbolicMemory::add(const TensorRef& target, Range rows, const std::vector<Element>& values) {
  receive(target, rows, values, [](Cells::Cell& cell, Element value) {
    cell.value += value;
    --cell.adders;
  });
}

}  // namespace tangram
