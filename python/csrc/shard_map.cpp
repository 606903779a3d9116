// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Rows of shards as runs, and as the tables by which tensors are indexed.
#include "tangram/shard_map.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <numeric>
#include <utility>
#include <vector>

#include "bind.hpp"
#include "core/require.hpp"

namespace tangram::python {

namespace {

template <size_t kDims>
using Table = nb::ndarray<nb::ndim<kDims>, nb::c_contig, nb::device::cpu>;

/// Rows in an order, as the runs in which they rise by one.
class RowRuns {
 public:
  explicit RowRuns(std::vector<Range> runs) : runs_(std::move(runs)) {
    for (const Range& run : runs_) rows_ += run.size();
  }

  int64_t rows() const { return rows_; }
  size_t size() const { return runs_.size(); }

  void write(const Table<1>& table) const {
    const bool is_narrow = table.dtype() == nb::dtype<int32_t>();
    require(static_cast<int64_t>(table.size()) == rows_ && (is_narrow || table.dtype() == nb::dtype<int64_t>()),
            "RowRuns.write: table must have {} elements of int32 or int64 (got {} of {} bits)", rows_, table.size(),
            static_cast<int>(table.dtype().bits));
    if (is_narrow) {
      write_to(static_cast<int32_t*>(table.data()));
    } else {
      write_to(static_cast<int64_t*>(table.data()));
    }
  }

  std::vector<std::pair<int64_t, int64_t>> ranges() const {
    std::vector<std::pair<int64_t, int64_t>> ranges;
    ranges.reserve(runs_.size());
    for (const Range& run : runs_) ranges.emplace_back(run.begin, run.end);
    return ranges;
  }

  void write_runs(const Table<2>& table) const {
    require(table.shape(0) == 2 && table.shape(1) == runs_.size() && table.dtype() == nb::dtype<int64_t>(),
            "RowRuns.write_runs: table must be int64 [2, {}] (got [{}, {}] of {} bits)", runs_.size(), table.shape(0),
            table.shape(1), static_cast<int>(table.dtype().bits));
    auto* offsets = static_cast<int64_t*>(table.data());
    int64_t* lengths = offsets + runs_.size();
    int64_t before = 0;
    for (const Range& run : runs_) {
      *offsets++ = run.begin - before;
      *lengths++ = run.size();
      before += run.size();
    }
  }

 private:
  template <class T>
  void write_to(T* at) const {
    for (const Range& run : runs_) {
      std::iota(at, at + run.size(), static_cast<T>(run.begin));
      at += run.size();
    }
  }

  std::vector<Range> runs_;
  int64_t rows_ = 0;
};

}  // namespace

void bind_shard_map(nb::module_& m) {
  nb::class_<RowRuns>(m, "RowRuns", "Rows in an order, as the runs in which they rise by one.")
      .def_prop_ro("rows", &RowRuns::rows, "How many rows they are.")
      .def("__len__", &RowRuns::size)
      .def("ranges", &RowRuns::ranges, "(begin, end) of each run.")
      .def("write", &RowRuns::write, "table"_a, nb::sig("def write(self, table: object) -> None"),
           "The rows, one after the other, into int32 or int64 [rows].")
      .def("write_runs", &RowRuns::write_runs, "table"_a, nb::sig("def write_runs(self, table: object) -> None"),
           "Into int64 [2, runs]: by how much the rows of a run are more than their places here; how many they are.");
  nb::class_<ShardMoves>(m, "ShardMoves",
                         "One rank's part in an exchange in which every rank wants rows of the sequence.")
      .def_prop_ro(
          "sends", [](const ShardMoves& self) { return RowRuns(self.sends); },
          "Rows of this rank's shard: those for rank 0, then those for rank 1, and on.")
      .def_prop_ro(
          "places", [](const ShardMoves& self) { return RowRuns(self.places); },
          "In the order wanted: rows among the rows from rank 0, from rank 1, and on.")
      .def_ro("send_rows", &ShardMoves::send_rows)
      .def_ro("recv_rows", &ShardMoves::recv_rows)
      .def_ro("most_rows", &ShardMoves::most_rows, "That any rank sends to another one.")
      .def_ro("most_table_rows", &ShardMoves::most_table_rows,
              "Rows of sends and of places on the rank where they are most.");
  nb::class_<ShardMap>(m, "ShardMap", "Where the rows of a sequence are, as runs.")
      .def(nb::init<const Dispatch&>(), "dispatch"_a)
      .def_prop_ro("seqlen", &ShardMap::seqlen)
      .def_prop_ro("rows_per_rank", &ShardMap::rows_per_rank)
      .def_prop_ro("fingerprint", &ShardMap::fingerprint, "A hash, the same in every process.")
      .def(
          "rows_of_rank",
          [](const ShardMap& self, int rank, int64_t total) { return RowRuns(self.rows_of_rank(rank, total)); },
          "rank"_a, "total"_a, "Those rows of a rank's shard that are less than `total`, in shard order.")
      .def(
          "rows_of_ranks",
          [](const ShardMap& self) {
            std::vector<Range> all;
            for (int rank = 0; rank < self.cp_size(); ++rank) {
              const std::vector<Range> rows = self.rows_of_rank(rank, self.seqlen());
              all.insert(all.end(), rows.begin(), rows.end());
            }
            return RowRuns(std::move(all));
          },
          "The shards of rank 0, rank 1 and on, one after the other.")
      .def("gather", &ShardMap::gather, "rank"_a, "total"_a, "Every rank wants the first `total` rows of the sequence.")
      .def("roll", &ShardMap::roll, "rank"_a, "total"_a, "shift"_a,
           "Every rank wants for its row i the row (i - shift) mod total; rows from `total` on stay.")
      .def(
          "labels",
          [](const ShardMap& self, int rank, int64_t total, int64_t shift, nb::handle cu_seqlens) {
            const std::vector<int64_t> borders = integers_of(cu_seqlens, "dispatch_labels", "cu_seqlens");
            ShardLabels labels = self.labels(rank, total, shift, borders);
            return std::pair(RowRuns(std::move(labels.sources)), RowRuns(std::move(labels.without)));
          },
          "rank"_a, "total"_a, "shift"_a, "cu_seqlens"_a,
          "The label of row i is row i + shift of the same document: for the rows of a shard without padding, rows "
          "that "
          "hold them; and the rows of the shard that have none, for which any rows stand there.");
}

}  // namespace tangram::python
