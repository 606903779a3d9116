// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// tangram/mask.hpp and tangram/mask_builders.hpp.
#include "tangram/mask.hpp"

#include <fmt/core.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <bit>
#include <cstring>
#include <utility>

#include "bind.hpp"
#include "core/require.hpp"
#include "tangram/error.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram::python {

namespace {

using NestedRanges = std::vector<std::pair<int64_t, int64_t>>;

Window window_of(nb::handle window, const char* function, const char* name = "window") {
  std::pair<int64_t, int64_t> value;
  if (!nb::try_cast(window, value)) {
    refuse_type(function, name, "a pair (left, right) of whole numbers, -1 for no bound", window);
  }
  return {value.first, value.second};
}

// One type for all, or one for each range, as numbers or by name.
std::vector<int64_t> mask_types_of(nb::handle types, size_t count, const char* function) {
  const auto number_of = [&](nb::handle name) -> int64_t {
    constexpr const char* kNames[] = {"full", "causal", "inv_causal", "bi_causal"};
    const std::string text = nb::cast<std::string>(name);
    for (int64_t i = 0; i < 4; ++i) {
      if (text == kNames[i]) return i;
    }
    throw InvalidArgument(
        fmt::format("{}: mask types are full, causal, inv_causal, bi_causal or 0 to 3 (got '{:.40}')", function, text));
  };
  if (nb::isinstance<nb::str>(types)) return std::vector<int64_t>(count, number_of(types));
  if (!nb::isinstance<nb::sequence>(types)) return integers_of(types, function, "mask types");
  bool has_names = false;
  for (const nb::handle type : types) has_names = has_names || nb::isinstance<nb::str>(type);
  if (!has_names) return integers_of(types, function, "mask types");
  std::vector<int64_t> numbers;
  for (const nb::handle type : types) {
    numbers.push_back(nb::isinstance<nb::str>(type) ? number_of(type) : whole(type, function, "a mask type"));
  }
  return numbers;
}

int64_t last_of(const std::vector<Range>& ranges) {
  int64_t last = 0;
  for (const Range& range : ranges) last = std::max(last, range.end);
  return last;
}

// In the caller's words, where Mask would speak of slices.
void require_within(const std::vector<Range>& ranges, int64_t seqlen, const char* function, const char* name) {
  for (size_t i = 0; i < ranges.size(); ++i) {
    const Range& r = ranges[i];
    require(0 <= r.begin && r.begin <= r.end && r.end <= seqlen,
            "{}: {}[{}] must rise from begin to end and lie in [0, {}) (got [{}, {}))", function, name, i, seqlen,
            r.begin, r.end);
  }
}

Mask mask_of_ranges(nb::handle q_ranges, nb::handle k_ranges, nb::handle mask_types, nb::handle seqlen_q,
                    nb::handle seqlen_k) {
  constexpr const char* kFunction = "Mask.from_ranges";
  const std::vector<Range> q = ranges_of(q_ranges, kFunction, "q_ranges");
  const std::vector<Range> k = ranges_of(k_ranges, kFunction, "k_ranges");
  require(q.size() == k.size(),
          "{}: q_ranges and k_ranges must be equally long (got len(q_ranges)={}, len(k_ranges)={})", kFunction,
          q.size(), k.size());
  std::vector<int64_t> types(q.size(), 0);
  if (!mask_types.is_none()) types = mask_types_of(mask_types, q.size(), kFunction);
  require(types.size() == q.size(), "{}: there must be a mask type for each range (got {} types for {} ranges)",
          kFunction, types.size(), q.size());
  const int64_t length_q = seqlen_q.is_none() ? last_of(q) : whole(seqlen_q, kFunction, "seqlen_q");
  const int64_t length_k = seqlen_k.is_none() ? last_of(k) : whole(seqlen_k, kFunction, "seqlen_k");
  require_within(q, length_q, kFunction, "q_ranges");
  require_within(k, length_k, kFunction, "k_ranges");
  std::vector<AttnSlice> slices;
  slices.reserve(q.size());
  for (size_t i = 0; i < q.size(); ++i) {
    require(0 <= types[i] && types[i] <= 3, "{}: mask types are 0 to 3 (got {} for range {})", kFunction, types[i], i);
    slices.push_back(AttnSlice::from_type(static_cast<MaskType>(types[i]), q[i], k[i]));
  }
  return Mask(length_q, length_k, std::move(slices));
}

// Pickles hold slices as so many numbers each: a list of objects would take forty times as long.
constexpr size_t kNumbersOfSlice = 6;
static_assert(std::endian::native == std::endian::little, "pickles go from machine to machine");

nb::bytes bytes_of_slices(const Mask& mask) {
  std::vector<int64_t> numbers;
  numbers.reserve(mask.slices().size() * kNumbersOfSlice);
  for (const AttnSlice& s : mask.slices()) {
    for (const int64_t number :
         {s.q_range.begin, s.q_range.end, s.k_range.begin, s.k_range.end, s.min_diag, s.max_diag}) {
      numbers.push_back(number);
    }
  }
  return nb::bytes(numbers.data(), numbers.size() * sizeof(int64_t));
}

Mask mask_of_bytes(int64_t seqlen_q, int64_t seqlen_k, const nb::bytes& bytes) {
  require(bytes.size() % (kNumbersOfSlice * sizeof(int64_t)) == 0,
          "Mask: a pickle must hold whole slices, write it anew (got {} bytes)", bytes.size());
  std::vector<int64_t> numbers(bytes.size() / sizeof(int64_t));
  if (!numbers.empty()) std::memcpy(numbers.data(), bytes.data(), bytes.size());
  std::vector<AttnSlice> slices;
  slices.reserve(numbers.size() / kNumbersOfSlice);
  for (size_t i = 0; i < numbers.size(); i += kNumbersOfSlice) {
    const int64_t* n = &numbers[i];
    slices.push_back({{n[0], n[1]}, {n[2], n[3]}, n[4], n[5]});
  }
  return Mask(seqlen_q, seqlen_k, std::move(slices));
}

std::pair<int64_t, int64_t> pair_of(const Range& range) { return {range.begin, range.end}; }

std::tuple<NestedRanges, NestedRanges, std::vector<int>> published(const std::vector<TypedSlice>& slices) {
  std::tuple<NestedRanges, NestedRanges, std::vector<int>> result;
  for (const TypedSlice& slice : slices) {
    std::get<0>(result).push_back(pair_of(slice.q_range));
    std::get<1>(result).push_back(pair_of(slice.k_range));
    std::get<2>(result).push_back(static_cast<int>(slice.type));
  }
  return result;
}

/// Rows and sizes of blocks.
struct BlockShape {
  int64_t seqlen_q = 0, seqlen_k = 0, block_q = 0, block_k = 0;

  BlockShape(const char* function, nb::handle rows_q, nb::handle rows_k, nb::handle size_q, nb::handle size_k)
      : seqlen_q(whole(rows_q, function, "seqlen_q")),
        seqlen_k(whole(rows_k, function, "seqlen_k")),
        block_q(whole(size_q, function, "block_q")),
        block_k(whole(size_k, function, "block_k")) {}
};

Mask mask_of_blocks(nb::handle seqlen_q, nb::handle seqlen_k, nb::handle block_q, nb::handle block_k,
                    nb::handle blocks) {
  constexpr const char* kFunction = "Mask.block_sparse";
  const BlockShape shape(kFunction, seqlen_q, seqlen_k, block_q, block_k);
  NestedRanges pairs;
  for (const Range& pair : ranges_of(blocks, kFunction, "blocks", "(query block, key block)")) {
    pairs.push_back(pair_of(pair));
  }
  return block_sparse_mask(shape.seqlen_q, shape.seqlen_k, shape.block_q, shape.block_k, pairs);
}

Mask mask_of_block_indices(nb::handle seqlen_q, nb::handle seqlen_k, nb::handle block_q, nb::handle block_k,
                           nb::handle indices, nb::handle offsets, nb::handle causal) {
  constexpr const char* kFunction = "Mask.from_block_indices";
  const BlockShape shape(kFunction, seqlen_q, seqlen_k, block_q, block_k);
  IntegerRows rows;
  if (offsets.is_none()) {
    rows = integer_rows_of(indices, kFunction, "indices");
    if (shape.seqlen_q >= 0 && shape.block_q > 0) {
      const int64_t wanted = (shape.seqlen_q - 1) / shape.block_q + (shape.seqlen_q > 0 ? 1 : 0);
      require(rows.num_rows == wanted, "{}: indices must have a row for each of the {} query blocks (got {})",
              kFunction, wanted, rows.num_rows);
    }
  } else {
    rows = {integers_of(indices, kFunction, "indices"), integers_of(offsets, kFunction, "offsets")};
  }
  std::vector<int32_t> blocks;
  blocks.reserve(rows.values.size());
  for (const int64_t block : rows.values) {
    require(std::in_range<int32_t>(block), "{}: indices must fit into 32 bits (got {})", kFunction, block);
    blocks.push_back(static_cast<int32_t>(block));
  }
  return mask_from_block_indices({shape.seqlen_q, shape.seqlen_k, shape.block_q, shape.block_k, blocks, rows.offsets,
                                  field<bool>(causal, kFunction, "causal", "a bool")});
}

void bind_builders(nb::class_<Mask>& mask) {
  mask.def_static(
          "full",
          [](nb::handle seqlen_q, nb::handle seqlen_k) {
            const int64_t q = whole(seqlen_q, "Mask.full", "seqlen_q");
            return full_mask(q, seqlen_k.is_none() ? q : whole(seqlen_k, "Mask.full", "seqlen_k"));
          },
          "seqlen_q"_a.none(), "seqlen_k"_a = nb::none(),
          nb::sig("def full(seqlen_q: int, seqlen_k: int | None = None) -> Mask"), "Every query sees every key.")
      .def_static(
          "causal",
          [](nb::handle seqlen_q, nb::handle seqlen_k) {
            const int64_t q = whole(seqlen_q, "Mask.causal", "seqlen_q");
            return causal_mask(q, seqlen_k.is_none() ? q : whole(seqlen_k, "Mask.causal", "seqlen_k"));
          },
          "seqlen_q"_a.none(), "seqlen_k"_a = nb::none(),
          nb::sig("def causal(seqlen_q: int, seqlen_k: int | None = None) -> Mask"),
          "Bottom-right aligned when the lengths differ.")
      .def_static(
          "varlen",
          [](nb::object cu_seqlens_q, nb::object cu_seqlens_k, bool causal) {
            const std::vector<int64_t> q = integers_of(cu_seqlens_q, "Mask.varlen", "cu_seqlens_q");
            if (cu_seqlens_k.is_none()) return varlen_mask(q, causal);
            return varlen_mask(q, integers_of(cu_seqlens_k, "Mask.varlen", "cu_seqlens_k"), causal);
          },
          "cu_seqlens_q"_a, "cu_seqlens_k"_a = nb::none(), "causal"_a = true,
          "Packed documents: queries [cu_q[i], cu_q[i+1]) see keys [cu_k[i], cu_k[i+1]), all or causally.")
      .def_static(
          "sliding_window",
          [](nb::object seqlen, nb::handle window) {
            constexpr const char* kFunction = "Mask.sliding_window";
            int64_t length = 0;
            if (nb::try_cast(seqlen, length)) return sliding_window_mask(length, window_of(window, kFunction));
            return sliding_window_mask(integers_of(seqlen, kFunction, "seqlen"), window_of(window, kFunction));
          },
          "seqlen"_a.none(), "window"_a.none(),
          nb::sig("def sliding_window(seqlen: object, window: tuple[int, int]) -> Mask"),
          "Query i sees keys [i - left, i + right]; -1 is unbounded. seqlen is a length, or cu_seqlens of documents.")
      .def_static(
          "block_causal",
          [](nb::object seqlen, nb::handle block_size) {
            constexpr const char* kFunction = "Mask.block_causal";
            const int64_t block = whole(block_size, kFunction, "block_size");
            int64_t length = 0;
            if (nb::try_cast(seqlen, length)) return block_causal_mask(length, block);
            return block_causal_mask(integers_of(seqlen, kFunction, "seqlen"), block);
          },
          "seqlen"_a.none(), "block_size"_a.none(),
          nb::sig("def block_causal(seqlen: object, block_size: int) -> Mask"),
          "A query sees its own block (a video frame) and all before it. seqlen is a length, or cu_seqlens.")
      .def_static(
          "prefix_lm",
          [](nb::handle seqlen, nb::handle prefix) {
            return prefix_lm_mask(whole(seqlen, "Mask.prefix_lm", "seqlen"), whole(prefix, "Mask.prefix_lm", "prefix"));
          },
          "seqlen"_a.none(), "prefix"_a.none(), nb::sig("def prefix_lm(seqlen: int, prefix: int) -> Mask"),
          "The first prefix keys are visible to all, the rest causally.")
      .def_static(
          "varlen_prefix_lm",
          [](nb::object cu_seqlens, nb::object prefixes) {
            return varlen_prefix_lm_mask(integers_of(cu_seqlens, "Mask.varlen_prefix_lm", "cu_seqlens"),
                                         integers_of(prefixes, "Mask.varlen_prefix_lm", "prefixes"));
          },
          "cu_seqlens"_a, "prefixes"_a, "Packed documents, each with a prefix of its own.")
      .def_static(
          "shared_prefix",
          [](nb::handle prefix, nb::handle lengths) {
            constexpr const char* kFunction = "Mask.shared_prefix";
            return shared_prefix_mask(whole(prefix, kFunction, "prefix"),
                                      integers_of(lengths, kFunction, "continuation_lengths"));
          },
          "prefix"_a.none(), "continuation_lengths"_a.none(),
          nb::sig("def shared_prefix(prefix: int, continuation_lengths: object) -> Mask"),
          "One causal prefix, then continuations that see it and themselves but not each other.")
      .def_static(
          "global_window",
          [](nb::handle seqlen, nb::handle num_global, nb::handle window) {
            constexpr const char* kFunction = "Mask.global_window";
            return global_window_mask(whole(seqlen, kFunction, "seqlen"), whole(num_global, kFunction, "num_global"),
                                      window_of(window, kFunction));
          },
          "seqlen"_a.none(), "num_global"_a.none(), "window"_a.none(),
          nb::sig("def global_window(seqlen: int, num_global: int, window: tuple[int, int]) -> Mask"),
          "A sliding window, and num_global first rows that all see.")
      .def_static(
          "block_sparse", &mask_of_blocks, "seqlen_q"_a.none(), "seqlen_k"_a.none(), "block_q"_a.none(),
          "block_k"_a.none(), "blocks"_a.none(),
          nb::sig("def block_sparse(seqlen_q: int, seqlen_k: int, block_q: int, block_k: int, blocks: object) -> Mask"),
          "Pairs (query block, key block) that are visible whole.")
      .def_static(
          "from_block_indices", &mask_of_block_indices, "seqlen_q"_a.none(), "seqlen_k"_a.none(), "block_q"_a.none(),
          "block_k"_a.none(), "indices"_a.none(), "offsets"_a = nb::none(), "causal"_a.none() = false,
          nb::sig("def from_block_indices(seqlen_q: int, seqlen_k: int, block_q: int, block_k: int, indices: object, "
                  "offsets: object | None = None, causal: bool = False) -> Mask"),
          "The key blocks that every query block sees, as dynamic sparse attention chooses them: a list of lists, "
          "an array [query blocks, n] padded by -1, or one row after the other with offsets [query blocks + 1]. "
          "causal cuts them besides, bottom-right aligned. In host memory.");
}

void bind_published_helpers(nb::module_& m) {
  m.def(
      "infer_attn_mask_from_cu_seqlens",
      [](nb::handle cu_seqlens_q, nb::handle cu_seqlens_k, nb::handle causal, nb::handle window_size,
         nb::handle global_window_size) {
        constexpr const char* kFunction = "infer_attn_mask_from_cu_seqlens";
        const TypedMask mask = infer_attn_mask_from_cu_seqlens(
            integers_of(cu_seqlens_q, kFunction, "cu_seqlens_q"), integers_of(cu_seqlens_k, kFunction, "cu_seqlens_k"),
            field<bool>(causal, kFunction, "causal", "a bool"), window_of(window_size, kFunction, "window_size"),
            whole(global_window_size, kFunction, "global_window_size"));
        return std::tuple_cat(published(mask.slices), std::make_tuple(mask.total_seqlen_q, mask.total_seqlen_k));
      },
      "cu_seqlens_q"_a.none(), "cu_seqlens_k"_a.none(), "causal"_a.none() = false,
      "window_size"_a.none() = std::pair<int64_t, int64_t>{-1, -1}, "global_window_size"_a.none() = 0,
      nb::sig("def infer_attn_mask_from_cu_seqlens(cu_seqlens_q: object, cu_seqlens_k: object, causal: bool = False, "
              "window_size: tuple[int, int] = (-1, -1), global_window_size: int = 0) "
              "-> tuple[list[tuple[int, int]], list[tuple[int, int]], list[int], int, int]"),
      "Packed documents in published form: (q_ranges, k_ranges, mask types, total_seqlen_q, total_seqlen_k).");
  m.def(
      "infer_attn_mask_from_sliding_window",
      [](nb::handle q_range, nb::handle k_range, nb::handle window_size) {
        constexpr const char* kFunction = "infer_attn_mask_from_sliding_window";
        const auto range_of = [](nb::handle range, const char* name) {
          const auto [begin, end] = field<std::pair<int64_t, int64_t>>(range, kFunction, name, "a pair (begin, end)");
          return Range{begin, end};
        };
        return published(infer_attn_mask_from_sliding_window(range_of(q_range, "q_range"), range_of(k_range, "k_range"),
                                                             window_of(window_size, kFunction, "window_size")));
      },
      "q_range"_a.none(), "k_range"_a.none(), "window_size"_a.none(),
      nb::sig("def infer_attn_mask_from_sliding_window(q_range: tuple[int, int], k_range: tuple[int, int], "
              "window_size: tuple[int, int]) -> tuple[list[tuple[int, int]], list[tuple[int, int]], list[int]]"),
      "A window over one pair of ranges in published form: (q_ranges, k_ranges, mask types).");
}

}  // namespace

void bind_mask(nb::module_& m) {
  nb::class_<Mask> mask(
      m, "Mask", "Which keys every query sees: disjoint slices in canonical form. Immutable, comparable, hashable.");
  mask.def(
          "__init__",
          [](Mask* self, nb::handle seqlen_q, nb::handle seqlen_k, nb::handle given) {
            std::vector<AttnSlice> slices;
            if (!nb::try_cast(given, slices)) {
              refuse_type("Mask", "slices", "a list of AttnSlice; Mask.from_ranges takes pairs", given);
            }
            new (self)
                Mask(whole(seqlen_q, "Mask", "seqlen_q"), whole(seqlen_k, "Mask", "seqlen_k"), std::move(slices));
          },
          "seqlen_q"_a.none(), "seqlen_k"_a.none(), "slices"_a.none(),
          nb::sig("def __init__(self, seqlen_q: int, seqlen_k: int, slices: collections.abc.Sequence[AttnSlice]) "
                  "-> None"),
          "Raises InvalidArgument when a slice is out of bounds or two slices cover a cell twice.")
      .def_static(
          "from_ranges", &mask_of_ranges, "q_ranges"_a.none(), "k_ranges"_a.none(), "mask_types"_a = nb::none(),
          "seqlen_q"_a = nb::none(), "seqlen_k"_a = nb::none(),
          nb::sig("def from_ranges(q_ranges: object, k_ranges: object, mask_types: object | None = None, "
                  "seqlen_q: int | None = None, seqlen_k: int | None = None) -> Mask"),
          "The published form: [n, 2] ranges and mask types, one for all or one for each: \"full\" 0, \"causal\" 1, "
          "\"inv_causal\" 2, \"bi_causal\" 3 (none: all full). Lengths default to the largest end.")
      .def_prop_ro("seqlen_q", &Mask::seqlen_q)
      .def_prop_ro("seqlen_k", &Mask::seqlen_k)
      .def_prop_ro("area", &Mask::area, "Number of visible cells.")
      .def_prop_ro("slices",
                   [](const Mask& self) { return std::vector<AttnSlice>(self.slices().begin(), self.slices().end()); })
      // Masks do not change: a copy is the mask itself, for which caches hold what is prepared.
      .def(
          "__copy__", [](nb::handle_t<Mask> self) { return nb::borrow(self); }, nb::sig("def __copy__(self) -> Mask"))
      .def(
          "__deepcopy__", [](nb::handle_t<Mask> self, nb::handle) { return nb::borrow(self); }, "memo"_a,
          nb::sig("def __deepcopy__(self, memo: object) -> Mask"))
      .def("_bytes_of_slices", &bytes_of_slices)
      .def_static("_of_bytes", &mask_of_bytes, "seqlen_q"_a, "seqlen_k"_a, "slices"_a)
      .def(
          "to_typed",
          [](const Mask& self) {
            std::vector<TypedSlice> typed;
            for (const AttnSlice& slice : self.slices()) {
              const std::vector<TypedSlice> pieces = to_typed(slice);
              typed.insert(typed.end(), pieces.begin(), pieces.end());
            }
            return published(typed);
          },
          "The mask in published form: (q_ranges, k_ranges, mask types).")
      .def("padded", &Mask::padded, "seqlen_q"_a, "seqlen_k"_a,
           "The same cells over longer sequences; the added rows see nothing and no row sees them.")
      .def("cloned", &Mask::cloned, "An equal mask in memory of its own, where copies share theirs.")
      .def("__hash__", [](const Mask& self) { return static_cast<Py_hash_t>(self.hash() >> 1); })
      .def(
          "_repr_html_", [](nb::handle self) { return nb::module_::import_("tangram._draw").attr("mask_html")(self); },
          nb::sig("def _repr_html_(self) -> str"), "A drawing, for notebooks.")
      .def("__repr__", [](const Mask& self) {
        return fmt::format("Mask(seqlen_q={}, seqlen_k={}, slices={}, area={})", self.seqlen_q(), self.seqlen_k(),
                           self.slices().size(), self.area());
      });
  bind_equality(mask);
  bind_builders(mask);
  bind_published_helpers(m);
}

}  // namespace tangram::python
