// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Memory of one rank in verify. Each cell (NOTE [fingerprints]) has its element, whether it was written, and which
// transfers read or write it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "plan/program/emit.hpp"

namespace tangram {

/// An element of the field of integers modulo 2^61 - 1.
class Element {
 public:
  Element() = default;
  explicit Element(uint64_t value) : value_(value % kPrime) {}
  /// Random, never zero: of one row and head of a tensor.
  static Element of(Memory tensor, int64_t row, int64_t head);

  Element operator+(Element other) const;
  Element operator-(Element other) const;
  Element operator*(Element other) const;
  Element& operator+=(Element other) { return *this = *this + other; }
  friend bool operator==(Element, Element) = default;

 private:
  static constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;
  uint64_t value_ = 0;
};

/// The cells of a region or an argument, `columns` a row.
struct Cells {
  struct Cell {
    Element value;
    bool written = false;
    int recv_buffers = -1;  ///< the cast that is to write it, not yet waited for
    int readers = 0;        ///< casts under way that read it
    int adders = 0;         ///< casts under way that add to it
  };
  std::vector<Cell> cells;
  int64_t columns = 1;
  bool read_only = false;

  int64_t rows() const { return columns == 0 ? 0 : static_cast<int64_t>(cells.size()) / columns; }
};

/// Calls visit(row, head) for all of them.
template <class Visit>
void for_each_cell(int64_t rows, int heads, const Visit& visit) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int head = 0; head < heads; ++head) visit(row, head);
  }
}

/// A fault in a program. Message without rank and operation.
struct ProgramFault {
  std::string text;
};

class SymbolicMemory {
 public:
  /// Memory for the regions of `program`; regions that it may keep are taken from `kept`, unless that is null.
  SymbolicMemory(const Program& program, const SymbolicMemory* kept);

  void add_argument(Memory where, int64_t rows, int64_t columns, bool read_only);
  Cells& argument(Memory where) { return arguments_[static_cast<size_t>(where)]; }

  /// Throw ProgramFault for cells outside, not written, or under way.
  Element read(const TensorRef& ref, int64_t row, int head) const;
  Element read(const FloatRef& ref, int64_t row, int64_t column) const;
  void write(const TensorRef& ref, int64_t row, int head, Element value);
  void write(const FloatRef& ref, int64_t row, int64_t column, Element value);

  /// The rows that belong to a row.
  std::span<const int32_t> rows_of(const RowListsRef& ref, int64_t row) const;

  /// Whole rows of the tensors of a cast, all columns. `begin_read` returns the elements; `land` makes them readable.
  void expect(const TensorRef& target, Range rows, int cast);
  std::vector<Element> begin_read(const TensorRef& source, Range rows);
  void end_read(const TensorRef& source, Range rows);
  void land(const TensorRef& target, Range rows, const std::vector<Element>& values);
  /// Like land(), for casts that add.
  void begin_add(const TensorRef& target, Range rows);
  void add(const TensorRef& target, Range rows, const std::vector<Element>& values);

 private:
  size_t index(const TensorRef& ref, int64_t row, int head) const;
  size_t index(const FloatRef& ref, int64_t row, int64_t column) const;
  template <class Ref>
  const Cells& of(const Ref& ref) const;
  template <class Visit>
  void for_each(const TensorRef& ref, Range rows, const Visit& visit);
  template <class Visit>
  void receive(const TensorRef& target, Range rows, const std::vector<Element>& values, const Visit& visit);

  const Program& program_;
  std::vector<Cells> regions_;
  std::array<Cells, kNumMemories> arguments_;
};

}  // namespace tangram
