// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Problems for the emulated backward kernels.
#pragma once

#include <vector>

#include "attn/sm90/emulated/awaited_keys.hpp"
#include "attn/sm90/emulated/problem.hpp"

namespace tangram::test::emulated_backward {

using emulated_problem::documents;
using emulated_problem::LateKind;
using emulated_problem::shape_of;
using emulated_problem::short_slices;
using emulated_problem::small_documents;

struct Case {
  const char* name;
  AttnShape shape;
  std::vector<AttnSlice> slices;
  uint32_t blocks;
  int multiprocessors;  // that work tiles are scheduled for
  DType gradients = DType::kBFloat16;
  bool accumulate = false;  // gradients hold 1 before
  bool strided = false;
  LateKind late = LateKind::kNone;
  bool elsewhere = false;  // most keys lie in other tensors
  bool places = false;     // rows of dk and dv go to three tensors
  int64_t sinks = 0;
  bool delta = false;    // given, in the place of out
  bool by_rule = false;  // scheduled as lists that a GPU builds
};

inline std::vector<Case> cases() {
  return {
      {"full", shape_of(320, 300, 2, 1), {AttnSlice::full({0, 320}, {0, 300})}, 2, 132},
      {"sums zeroed before", shape_of(200, 1000, 2, 1), {AttnSlice::full({0, 200}, {0, 1000})}, 4, 132},
      {"one step", shape_of(64, 128, 1, 1), {AttnSlice::full({0, 64}, {0, 128})}, 1, 132},
      {"causal", shape_of(500, 500, 4, 2), {AttnSlice::causal({0, 500}, {0, 500})}, 3, 4},
      {"window", shape_of(600, 600, 4, 1), {{{0, 600}, {0, 600}, -150, 0}}, 3, 132},
      {"documents", shape_of(700, 700, 2, 2), documents(), 3, 132},
      {"short", shape_of(70, 400, 8, 1), short_slices(), 2, 132},
      {"nothing", shape_of(100, 100, 2, 1), {}, 1, 132},
      {"head_splits", shape_of(640, 128, 8, 1), {AttnSlice::full({0, 640}, {0, 128})}, 5, 16},
      {"pieces of two and three heads", shape_of(200, 256, 5, 1), {AttnSlice::causal({0, 200}, {0, 256})}, 3, 4},
  };
}

/// Cases of kernels for any head dimension: all ways in which gradients leave them, and gaps behind each row that hold
/// NaN.
inline std::vector<Case> any_dim_cases() {
  return {
      {.name = "causal",
       .shape = shape_of(300, 300, 4, 2),
       .slices = {AttnSlice::causal({0, 300}, {0, 300})},
       .blocks = 3,
       .multiprocessors = 4,
       .strided = true},
      {.name = "documents",
       .shape = shape_of(270, 300, 2, 2),
       .slices = small_documents(),
       .blocks = 3,
       .multiprocessors = 132,
       .gradients = DType::kFloat32,
       .strided = true},
      {.name = "window",
       .shape = shape_of(300, 300, 4, 1),
       .slices = {{{0, 300}, {0, 300}, -150, 0}},
       .blocks = 2,
       .multiprocessors = 132,
       .gradients = DType::kFloat32,
       .accumulate = true},
      {.name = "head_splits",
       .shape = shape_of(320, 128, 8, 1),
       .slices = {AttnSlice::full({0, 320}, {0, 128})},
       .blocks = 5,
       .multiprocessors = 16},
  };
}

/// What any_dim_cases lack: awaited keys, local K/V in other tensors, gradients that go row by row, sinks, delta in the
/// place of out.
inline std::vector<Case> option_cases() {
  const std::vector<AttnSlice> upper_and_rest{AttnSlice::causal({0, 150}, {0, 650}),
                                              AttnSlice::full({150, 200}, {100, 700})};
  return {
      {.name = "awaited keys",
       .shape = shape_of(200, 700, 4, 2),
       .slices = upper_and_rest,
       .blocks = 3,
       .multiprocessors = 4,
       .strided = true,
       .late = LateKind::kCome},
      {.name = "awaited keys, in pieces, to rows of several tensors",
       .shape = shape_of(130, 384, 4, 1),
       .slices = {AttnSlice::full({0, 130}, {0, 384})},
       .blocks = 4,
       .multiprocessors = 16,
       .gradients = DType::kFloat32,
       .late = LateKind::kCome,
       .places = true},
      {.name = "keys that never come",
       .shape = shape_of(130, 700, 2, 1),
       .slices = {AttnSlice::full({0, 130}, {0, 700})},
       .blocks = 3,
       .multiprocessors = 4,
       .late = LateKind::kNeverCome},
      {.name = "keys elsewhere, sinks, delta",
       .shape = shape_of(100, 700, 2, 1),
       .slices = {AttnSlice::causal({0, 60}, {0, 650}), AttnSlice::full({60, 100}, {100, 700})},
       .blocks = 2,
       .multiprocessors = 132,
       .gradients = DType::kFloat32,
       .elsewhere = true,
       .sinks = 2,
       .delta = true},
      {.name = "rows of several tensors, one head a key head",
       .shape = shape_of(270, 300, 2, 2),
       .slices = small_documents(),
       .blocks = 3,
       .multiprocessors = 132,
       .strided = true,
       .places = true},
  };
}

}  // namespace tangram::test::emulated_backward
