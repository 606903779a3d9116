// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The masks on which dealings of the backward pass are timed (tests/data/dealing_masks.json), and dealings as text.
#pragma once

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "machine/gpu_model.hpp"
#include "schedule/dealing.hpp"
#include "schedule/extents.hpp"
#include "schedule/makespan.hpp"
#include "schedule/tile_list.hpp"
#include "schedule/work_list.hpp"

namespace tangram::test {

struct DealingCase {
  std::string name;
  AttnShape shape;
  std::vector<AttnSlice> slices;
};

/// Throws std::runtime_error where the file cannot be read.
inline std::vector<DealingCase> read_dealing_cases(const std::string& path) {
  std::ifstream stream(path);
  if (!stream) throw std::runtime_error("read_dealing_cases: cannot read " + path);
  std::vector<DealingCase> cases;
  const nlohmann::json all = nlohmann::json::parse(stream);
  for (const nlohmann::json& one : all.at("cases")) {
    DealingCase& c = cases.emplace_back();
    c.name = one.at("mask");
    c.shape = {one.at("seqlen_q"), one.at("seqlen_k"), one.at("heads_q"), one.at("heads_kv"),
               one.at("head_dim"), one.at("head_dim"), DType::kBFloat16};
    for (const nlohmann::json& s : one.at("slices")) {
      c.slices.push_back({{s[0], s[1]},
                          {s[2], s[3]},
                          s[4].is_null() ? kOpenMinDiag : s[4].get<int64_t>(),
                          s[5].is_null() ? kOpenMaxDiag : s[5].get<int64_t>()});
    }
  }
  return cases;
}

/// What of a case the choice of a dealing depends on.
struct DealingProblem {
  explicit DealingProblem(const DealingCase& of) : shape(of.shape), tiles(transposed_tiles(of)) {
    const schedule::WorkList work =
        schedule::make_work_list(tiles, of.slices, shape, {}, {}, {.given = schedule::Dealing{}});
    extents = schedule::measure_extents(tiles, work.run_tiles);
    spread = schedule::length_spread(tiles, work.run_tiles, static_cast<int64_t>(work.q_tiles.size()));
  }

  static TileList transposed_tiles(const DealingCase& of) {
    constexpr TileShape kTileShape{128, 64, true};  // of the backward pass on Hopper
    std::vector<AttnSlice> slices;
    slices.reserve(of.slices.size());
    for (const AttnSlice& slice : of.slices) slices.push_back(schedule::transposed(slice));
    return schedule::build_tile_list(slices, of.shape.seqlen_k, of.shape.seqlen_q, kTileShape);
  }

  schedule::Setting setting(const GpuModel& gpu = {}) const { return {extents, shape, gpu, {}}; }

  AttnShape shape;
  TileList tiles;  // of the transposed mask
  schedule::Extents extents;
  double spread = 0;
};

/// `p4_t1_j2_g_s96_r132_i`: pieces, together, joint, grouped, most_steps,
/// parts_of_rest, heads_inside; what is 0 or false is left out.
inline std::string to_text(const schedule::Dealing& how) {
  std::string text = fmt::format("p{}", how.pieces);
  if (how.together > 0) text += fmt::format("_t{}", how.together);
  if (how.joint > 0) text += fmt::format("_j{}", how.joint);
  if (how.grouped) text += "_g";
  if (how.most_steps > 0) text += fmt::format("_s{}", how.most_steps);
  if (how.parts_of_rest > 0) text += fmt::format("_r{}", how.parts_of_rest);
  if (how.heads_inside) text += "_i";
  return text;
}

/// Throws std::runtime_error for what to_text does not write.
inline schedule::Dealing dealing_from_text(std::string_view text) {
  schedule::Dealing how;
  size_t at = 0;
  const auto number = [&] {
    size_t used = 0;
    const int value = std::stoi(std::string(text.substr(at)), &used);
    at += used;
    return value;
  };
  while (at < text.size()) {
    const char letter = text[at++];
    switch (letter) {
      case '_': break;
      case 'p': how.pieces = number(); break;
      case 't': how.together = number(); break;
      case 'j': how.joint = number(); break;
      case 'g': how.grouped = true; break;
      case 's': how.most_steps = number(); break;
      case 'r': how.parts_of_rest = number(); break;
      case 'i': how.heads_inside = true; break;
      default: throw std::runtime_error(fmt::format("dealing_from_text: cannot read {}", text));
    }
  }
  return how;
}

}  // namespace tangram::test
