// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// tangram/range.hpp and tangram/slice.hpp.
#include "tangram/slice.hpp"

#include <fmt/core.h>
#include <nanobind/operators.h>
#include <nanobind/stl/string.h>

#include "bind.hpp"

namespace tangram::python {

namespace {

void bind_range(nb::module_& m) {
  nb::class_<Range> range(m, "Range", "Half-open interval [begin, end) of token rows.");
  range
      .def(
          "__init__", [](Range* self, int64_t begin, int64_t end) { new (self) Range{begin, end}; }, "begin"_a, "end"_a)
      .def_ro("begin", &Range::begin)
      .def_ro("end", &Range::end)
      .def("__len__", &Range::size)
      .def(
          "__iter__", [](const Range& r) { return nb::iter(nb::make_tuple(r.begin, r.end)); },
          nb::sig("def __iter__(self) -> collections.abc.Iterator[int]"))
      .def("__contains__", [](const Range& r, int64_t row) { return r.contains(row); })
      .def("__hash__", [](const Range& r) { return nb::hash(nb::make_tuple(r.begin, r.end)); })
      .def(nb::self < nb::self)
      .def("__repr__", [](const Range& r) { return fmt::format("Range({}, {})", r.begin, r.end); });
  bind_equality(range);
}

}  // namespace

void bind_slice(nb::module_& m) {
  bind_range(m);
  nb::enum_<MaskType>(m, "MaskType", "The four published mask types; they only construct slices.", nb::is_arithmetic())
      .value("FULL", MaskType::kFull, "every query of the range sees every key of its range")
      .value("CAUSAL", MaskType::kCausal, "the last query sees all keys, each one above one less")
      .value("INV_CAUSAL", MaskType::kInvCausal,
             "the first query sees all keys, each one below one less, from the front")
      .value("BI_CAUSAL", MaskType::kBiCausal, "both");
  m.attr("OPEN_MIN_DIAG") = kOpenMinDiag;
  m.attr("OPEN_MAX_DIAG") = kOpenMaxDiag;
  nb::class_<AttnSlice> slice(m, "AttnSlice",
                              "One piece of a mask: key j is visible to query i iff both lie in their ranges and "
                              "min_diag <= j - i <= max_diag.");
  slice
      .def(
          "__init__",
          [](AttnSlice* self, Range q, Range k, int64_t min_diag, int64_t max_diag) {
            new (self) AttnSlice{q, k, min_diag, max_diag};
          },
          "q_range"_a, "k_range"_a, "min_diag"_a = kOpenMinDiag, "max_diag"_a = kOpenMaxDiag)
      .def_static("from_type", &AttnSlice::from_type, "mask_type"_a, "q_range"_a, "k_range"_a,
                  "The slice of a published mask type.")
      .def_ro("q_range", &AttnSlice::q_range)
      .def_ro("k_range", &AttnSlice::k_range)
      .def_ro("min_diag", &AttnSlice::min_diag)
      .def_ro("max_diag", &AttnSlice::max_diag)
      .def_prop_ro(
          "area", [](const AttnSlice& s) { return area(s); }, "Number of visible cells.")
      .def("visible", &AttnSlice::visible, "q_row"_a, "k_row"_a, "Whether the query of that row sees the key.")
      .def("__hash__",
           [](const AttnSlice& s) {
             return nb::hash(nb::make_tuple(s.q_range.begin, s.q_range.end, s.k_range.begin, s.k_range.end, s.min_diag,
                                            s.max_diag));
           })
      .def("__repr__", [](const AttnSlice& s) { return "AttnSlice(" + to_string(s) + ")"; });
  bind_equality(slice);
}

}  // namespace tangram::python
