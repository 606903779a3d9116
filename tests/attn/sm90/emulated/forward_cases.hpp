// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Problems for the emulated forward kernel.
#pragma once

#include <vector>

#include "attn/sm90/emulated/awaited_keys.hpp"
#include "attn/sm90/emulated/problem.hpp"

namespace tangram::test::emulated_forward {

using emulated_problem::documents;
using emulated_problem::LateKind;
using emulated_problem::shape_of;
using emulated_problem::short_slices;
using emulated_problem::small_documents;

struct Case {
  const char* name;
  AttnShape shape;
  std::vector<AttnSlice> slices;
  float growth = 0;  // keys grow along the sequence: references must follow the scores
  DType out = DType::kBFloat16;
  int64_t sinks = 0;
  bool accumulate = false;  // out and lse hold an earlier part
  bool strided = false;
  bool max_logits = false;
  LateKind late = LateKind::kNone;
  bool elsewhere = false;  // most keys lie in other tensors
  int64_t part_steps = 0;  // unless 0: work tiles are cut into parts of at most so many steps
  SinkLayout sink_layout = SinkLayout::kSh;
  int anew_every = 0;  // as in TileShape
};

inline std::vector<Case> cases() {
  return {
      {"full", shape_of(200, 1000, 2, 1), {AttnSlice::full({0, 200}, {0, 1000})}},
      {"causal", shape_of(700, 700, 4, 2), {AttnSlice::causal({0, 700}, {0, 700})}},
      {"growing", shape_of(192, 900, 1, 1), {AttnSlice::full({0, 192}, {0, 900})}, 60},
      {"window", shape_of(900, 900, 4, 1), {{{0, 900}, {0, 900}, -200, 0}}},
      {"documents", shape_of(700, 700, 2, 2), documents()},
      {"short", shape_of(70, 130, 8, 1), short_slices()},
      {"five heads a key head", shape_of(150, 150, 10, 2), {AttnSlice::causal({0, 150}, {0, 150})}},
      {"twelve heads a key head", shape_of(70, 70, 24, 2), {AttnSlice::causal({0, 70}, {0, 70})}},
      {"nothing", shape_of(100, 100, 2, 1), {}},
  };
}

/// Cases of kernels for any head dimension: all ways in which rows leave them, and gaps behind each row that hold NaN.
inline std::vector<Case> any_dim_cases() {
  return {
      {.name = "causal",
       .shape = shape_of(300, 300, 4, 2),
       .slices = {AttnSlice::causal({0, 300}, {0, 300})},
       .strided = true},
      {.name = "documents",
       .shape = shape_of(270, 300, 2, 2),
       .slices = small_documents(),
       .out = DType::kFloat32,
       .sinks = 2,
       .strided = true},
      {.name = "window",
       .shape = shape_of(400, 400, 4, 1),
       .slices = {{{0, 400}, {0, 400}, -200, 0}},
       .out = DType::kFloat32,
       .accumulate = true},
      {.name = "short", .shape = shape_of(70, 130, 8, 1), .slices = short_slices(), .strided = true},
  };
}

/// Mask of 700 keys, all visible.
inline std::vector<AttnSlice> upper_and_rest(int64_t rows) {
  return {AttnSlice::causal({0, rows * 3 / 4}, {0, 650}), AttnSlice::full({rows * 3 / 4, rows}, {100, 700})};
}

/// What any_dim_cases lack: awaited keys, local K/V in other tensors, parts of tiles, maxima.
inline std::vector<Case> option_cases() {
  return {
      {.name = "awaited keys",
       .shape = shape_of(200, 700, 4, 2),
       .slices = upper_and_rest(200),
       .strided = true,
       .late = LateKind::kCome},
      {.name = "awaited keys, in parts",
       .shape = shape_of(20, 700, 4, 2),
       .slices = {AttnSlice::causal({0, 20}, {0, 700})},
       .out = DType::kFloat32,
       .late = LateKind::kCome,
       .part_steps = 2},
      {.name = "keys that never come",
       .shape = shape_of(200, 700, 4, 2),
       .slices = upper_and_rest(200),
       .late = LateKind::kNeverCome},
      {.name = "keys elsewhere, cross attention",
       .shape = shape_of(100, 700, 4, 2),
       .slices = upper_and_rest(100),
       .max_logits = true,
       .elsewhere = true},
      {.name = "awaited keys, others elsewhere",
       .shape = shape_of(130, 700, 2, 1),
       .slices = upper_and_rest(130),
       .out = DType::kFloat32,
       .late = LateKind::kCome,
       .elsewhere = true},
      {.name = "parts",
       .shape = shape_of(21, 1001, 4, 2),
       .slices = {{{0, 21}, {0, 1001}, 50, 900}},
       .strided = true,
       .max_logits = true,
       .part_steps = 3},
      {.name = "sinks of rows, maxima",
       .shape = shape_of(270, 300, 2, 2),
       .slices = small_documents(),
       .sinks = 2,
       .max_logits = true,
       .sink_layout = SinkLayout::kSsh},
  };
}

}  // namespace tangram::test::emulated_forward
