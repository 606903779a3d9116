// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Random masks as data of a GPU, and the slices that they are.
#pragma once

#include <algorithm>
#include <random>
#include <vector>

#include "schedule/serial_build.hpp"

namespace tangram::schedule::builder {

inline ImageCase case_of(int64_t rows, int64_t keys, int heads_q, int heads_kv, const MaskCapacity& capacity) {
  return {.shape = {rows, keys, heads_q, heads_kv, 128, 128, DType::kBFloat16},
          .forward = {heads_q == heads_kv ? 128 : 16, 128},
          .capacity = capacity};
}

/// For random_pack().
inline std::vector<ImageCase> document_cases() {
  const MaskCapacity both{.max_documents = 80};
  return {case_of(3000, 3000, 8, 1, both),
          case_of(3000, 3000, 4, 4, both),
          case_of(2048, 900, 16, 2, both),
          case_of(700, 2500, 6, 2, both),
          case_of(3000, 3000, 10, 2, both),
          case_of(3000, 3000, 8, 2, {.max_documents = 80, .passes = AttnPasses::kForward}),
          case_of(3000, 3000, 8, 2, {.max_documents = 80, .passes = AttnPasses::kBackward}),
          case_of(3000, 3000, 8, 2, {.max_documents = 80, .deterministic = true}),
          case_of(700, 2500, 6, 2, {.max_documents = 80, .deterministic = true}),
          case_of(0, 500, 2, 1, both),
          case_of(500, 0, 2, 1, {.max_documents = 80, .deterministic = true})};
}

struct Pack {
  std::vector<int32_t> q, k;
  int64_t left = -1, right = -1;
};

inline Documents documents_of(const Pack& pack) {
  Documents documents;
  documents.cu_q = pack.q.data();
  documents.cu_k = pack.k.data();
  documents.count = static_cast<int32_t>(pack.q.size()) - 1;
  documents.left = pack.left;
  documents.right = pack.right;
  return documents;
}

/// A slice for each document, none joined to another.
inline SliceLists slices_of(const Pack& pack) {
  SliceLists lists;
  for (size_t i = 0; i + 1 < pack.q.size(); ++i) {
    AttnSlice slice = AttnSlice::full({pack.q[i], pack.q[i + 1]}, {pack.k[i], pack.k[i + 1]});
    const int64_t diagonal = int64_t{pack.k[i + 1]} - pack.q[i + 1];
    if (pack.left >= 0) slice.min_diag = diagonal - pack.left;
    if (pack.right >= 0) slice.max_diag = diagonal + pack.right;
    lists.by_rows.push_back(slice);
  }
  lists.by_keys = lists.by_rows;
  return lists;
}

inline int64_t number(std::mt19937& rng, int64_t least, int64_t most) {
  return std::uniform_int_distribution<int64_t>(least, most)(rng);
}

/// Documents of a few kinds of lengths, some of them empty.
inline std::vector<int32_t> random_ends(std::mt19937& rng, int64_t rows, int count) {
  std::vector<int32_t> ends{0};
  const int64_t longest = number(rng, 0, 2) == 0 ? 3 : number(rng, 0, 1) == 0 ? 150 : 2 * rows / count;
  while (static_cast<int>(ends.size()) < count) {
    ends.push_back(static_cast<int32_t>(std::min<int64_t>(rows, ends.back() + number(rng, 0, longest))));
  }
  ends.push_back(static_cast<int32_t>(rows));
  return ends;
}

/// Up to 80 documents, causal, whole or in windows.
inline Pack random_pack(std::mt19937& rng, const ImageCase& c) {
  const int count = static_cast<int>(number(rng, 1, 80));
  const bool is_square = c.shape.seqlen_q == c.shape.seqlen_k;
  Pack pack;
  pack.q = random_ends(rng, c.shape.seqlen_q, count);
  pack.k = is_square && number(rng, 0, 4) > 0 ? pack.q : random_ends(rng, c.shape.seqlen_k, count);
  if (number(rng, 0, 3) > 0) pack.right = number(rng, 0, 2) == 0 ? number(rng, 0, 100) : 0;
  if (number(rng, 0, 2) == 0) pack.left = number(rng, 0, 300);
  return pack;
}

/// For random_choice().
inline std::vector<ImageCase> block_cases() {
  const MaskCapacity both{.max_documents = 80, .max_slices = 16'000};
  ImageCase of_24 = case_of(2000, 2000, 8, 1, both);  // heads of 64: tiles that no block fits
  of_24.forward.block_m = 24;
  // And that begin anew with each block. Scattered work tiles are scheduled in sections where multiprocessors are few.
  ImageCase anew = case_of(2100, 2000, 8, 2, both), of_four = case_of(2000, 2000, 8, 2, both);
  anew.forward = {.block_m = 24, .block_n = 128, .anew_every = 64};
  anew.shape.head_dim = anew.shape.head_dim_v = 64;
  anew.gpu.multiprocessors = of_four.gpu.multiprocessors = 4;
  return {of_24,
          anew,
          of_four,
          case_of(2000, 2000, 8, 1, both),
          case_of(2048, 2048, 4, 4, both),
          case_of(2048, 900, 16, 2, both),
          case_of(700, 2500, 6, 2, both),
          case_of(2000, 2000, 8, 2, {.max_documents = 80, .max_slices = 16'000, .deterministic = true}),
          case_of(2000, 2000, 8, 2, {.max_documents = 80, .max_slices = 16'000, .passes = AttnPasses::kForward}),
          case_of(2000, 2000, 8, 2, {.max_documents = 80, .max_slices = 16'000, .passes = AttnPasses::kBackward})};
}

/// Blocks of keys for each block of queries.
struct Choice {
  std::vector<int32_t> indices;  // [rows, width]
  int32_t width = 0, block = 0;
  bool causal = false;
};

/// Its data, and memory for the bitmap, which `memory` becomes.
inline Blocks blocks_of(const Choice& choice, const ImageCase& c, std::vector<std::byte>& memory) {
  Blocks blocks;
  blocks.indices = choice.indices.data();
  blocks.width = choice.width;
  blocks.block = choice.block;
  blocks.causal = choice.causal;
  memory.assign(place_blocks(blocks, c.shape, nullptr) + 256, std::byte{0x5a});
  place_blocks(blocks, c.shape, memory.data() + (256 - reinterpret_cast<uintptr_t>(memory.data()) % 256));
  return blocks;
}

/// Runs of blocks in each row of the table, and in each column.
inline SliceLists slices_of(const Choice& choice, const ImageCase& c) {
  const int64_t block = choice.block, rows = (c.shape.seqlen_q + block - 1) / block;
  const int64_t columns = (c.shape.seqlen_k + block - 1) / block;
  std::vector<char> is_there(static_cast<size_t>(rows * columns), 0);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < choice.width; ++i) {
      const int32_t index = choice.indices[static_cast<size_t>(row * choice.width + i)];
      if (index >= 0) is_there[static_cast<size_t>(row * columns + index)] = 1;
    }
  }
  const auto slice = [&](int64_t row, int64_t row_end, int64_t column, int64_t column_end) {
    AttnSlice result = AttnSlice::full({row * block, std::min(row_end * block, c.shape.seqlen_q)},
                                       {column * block, std::min(column_end * block, c.shape.seqlen_k)});
    if (choice.causal) result.max_diag = 0;
    return result;
  };
  SliceLists lists;
  // Runs of `length` places that are `step` apart.
  const auto add_runs = [&](int64_t first, int64_t step, int64_t length, const auto& add) {
    const auto has = [&](int64_t i) { return i < length && is_there[static_cast<size_t>(first + i * step)] != 0; };
    for (int64_t begin = 0; begin < length; ++begin) {
      if (!has(begin)) continue;
      int64_t end = begin;
      while (has(end)) ++end;
      add(begin, end);
      begin = end;
    }
  };
  for (int64_t row = 0; row < rows; ++row) {
    add_runs(row * columns, 1, columns, [&](int64_t begin, int64_t end) {
      if (choice.causal && begin > row) return;
      lists.by_rows.push_back(slice(row, row + 1, begin, choice.causal ? std::min(end, row + 1) : end));
    });
  }
  for (int64_t column = 0; column < columns; ++column) {
    add_runs(column, columns, rows, [&](int64_t begin, int64_t end) {
      if (choice.causal && end <= column) return;
      lists.by_keys.push_back(slice(choice.causal ? std::max(begin, column) : begin, end, column, column + 1));
    });
  }
  return lists;
}

/// Few or many blocks, some rows with none; `width` 0: any.
inline Choice random_choice(std::mt19937& rng, const ImageCase& c, int32_t block, int32_t width = 0) {
  Choice choice;
  choice.block = block;
  const int64_t rows = (c.shape.seqlen_q + choice.block - 1) / choice.block;
  const int64_t columns = (c.shape.seqlen_k + choice.block - 1) / choice.block;
  choice.causal = c.shape.seqlen_q == c.shape.seqlen_k && number(rng, 0, 1) == 0;
  const int64_t kept = number(rng, 0, 3);  // of four, at most
  choice.width = static_cast<int32_t>(std::max<int64_t>(1, kept == 0 ? 2 : columns * kept / 4));
  if (width > 0) choice.width = width;
  std::vector<int32_t> all(static_cast<size_t>(columns));
  for (int64_t row = 0; row < rows; ++row) {
    for (int32_t i = 0; i < columns; ++i) all[static_cast<size_t>(i)] = i;
    if (number(rng, 0, 3) > 0) std::shuffle(all.begin(), all.end(), rng);
    const int64_t count = number(rng, 0, 5) == 0 ? number(rng, 0, choice.width) : choice.width;
    for (int64_t i = 0; i < choice.width; ++i) {
      choice.indices.push_back(i < count && i < columns ? all[static_cast<size_t>(i)] : -1);
    }
  }
  return choice;
}

inline Choice random_choice(std::mt19937& rng, const ImageCase& c) {
  constexpr int32_t kBlocks[] = {16, 32, 64, 128, 256, 48, 100};
  return random_choice(rng, c, kBlocks[number(rng, 0, 6)]);
}

/// Typed ranges, as lists of pairs.
struct TypedRanges {
  std::vector<int32_t> q, k, types;
};

inline Ranges ranges_of(const TypedRanges& typed) {
  Ranges ranges;
  ranges.q_ranges = typed.q.data();
  ranges.k_ranges = typed.k.data();
  ranges.types = typed.types.data();
  ranges.count = static_cast<int32_t>(typed.types.size());
  return ranges;
}

/// For random_ranges().
inline std::vector<ImageCase> range_cases() {
  std::vector<ImageCase> cases = document_cases();
  for (ImageCase& c : cases) c.capacity.max_slices = 600;  // of many rows each
  return cases;
}

/// Each a slice, none joined to another.
inline SliceLists slices_of(const TypedRanges& typed) {
  SliceLists lists;
  for (size_t i = 0; i < typed.types.size(); ++i) {
    lists.by_rows.push_back(AttnSlice::from_type(static_cast<MaskType>(typed.types[i]),
                                                 {typed.q[2 * i], typed.q[2 * i + 1]},
                                                 {typed.k[2 * i], typed.k[2 * i + 1]}));
  }
  lists.by_keys = lists.by_rows;
  return lists;
}

/// Disjoint ones of all types, in any order: rectangles of a guillotine cut, some of them left out, some in two
/// triangles that share no cell.
inline TypedRanges random_ranges(std::mt19937& rng, const ImageCase& c) {
  struct Rectangle {
    int32_t q_begin, q_end, k_begin, k_end;
  };
  std::vector<Rectangle> all{{0, static_cast<int32_t>(c.shape.seqlen_q), 0, static_cast<int32_t>(c.shape.seqlen_k)}};
  const int64_t cuts = number(rng, 0, 60);
  for (int64_t cut = 0; cut < cuts; ++cut) {
    Rectangle& rectangle = all[static_cast<size_t>(number(rng, 0, static_cast<int64_t>(all.size()) - 1))];
    Rectangle other = rectangle;
    // Cuts at multiples of 64 let rows and keys of neighbours meet.
    const auto place = [&](int32_t begin, int32_t end) {
      const auto at = static_cast<int32_t>(number(rng, begin, end));
      return number(rng, 0, 1) == 0 ? at : std::max(begin, at / 64 * 64);
    };
    if (number(rng, 0, 1) == 0) {
      rectangle.q_end = other.q_begin = place(rectangle.q_begin, rectangle.q_end);
    } else {
      rectangle.k_end = other.k_begin = place(rectangle.k_begin, rectangle.k_end);
    }
    all.push_back(other);
  }
  std::shuffle(all.begin(), all.end(), rng);
  TypedRanges typed;
  const auto add = [&](const Rectangle& r, int32_t type) {
    typed.q.insert(typed.q.end(), {r.q_begin, r.q_end});
    typed.k.insert(typed.k.end(), {r.k_begin, r.k_end});
    typed.types.push_back(type);
  };
  for (const Rectangle& r : all) {
    const int64_t kind = number(rng, 0, 6);
    const int32_t rows = r.q_end - r.q_begin, keys = r.k_end - r.k_begin;
    if (kind <= 3) add(r, static_cast<int32_t>(kind));
    if (kind == 4 && rows > 1 && rows == keys) {  // below the diagonal, and above it
      add({r.q_begin, r.q_end, r.k_begin, r.k_end}, 1);
      add({r.q_begin, r.q_end - 1, r.k_begin + 1, r.k_end}, 2);
    }
    if (kind == 5) add(r, 0);
  }
  return typed;
}

}  // namespace tangram::schedule::builder
