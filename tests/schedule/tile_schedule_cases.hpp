// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The masks on which schedules of the backward pass are timed (tests/data/tile_schedule_masks.json), and schedules as
// text.
#pragma once

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "schedule/extents.hpp"
#include "schedule/makespan.hpp"
#include "schedule/tile_list.hpp"
#include "schedule/tile_schedule.hpp"
#include "schedule/work_list.hpp"
#include "tangram/gpu_model.hpp"

namespace tangram::test {

struct ScheduleCase {
  std::string name;
  AttnShape shape;
  std::vector<AttnSlice> slices;
};

/// Throws std::runtime_error where the file cannot be read.
inline std::vector<ScheduleCase> read_schedule_cases(const std::string& path) {
  std::ifstream stream(path);
  if (!stream) throw std::runtime_error("read_schedule_cases: cannot read " + path);
  std::vector<ScheduleCase> cases;
  const nlohmann::json all = nlohmann::json::parse(stream);
  for (const nlohmann::json& one : all.at("cases")) {
    ScheduleCase& c = cases.emplace_back();
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

/// What of a case the choice of a schedule depends on.
struct ScheduleProblem {
  explicit ScheduleProblem(const ScheduleCase& of) : shape(of.shape), tiles(transposed_tiles(of)) {
    const schedule::WorkList work =
        schedule::make_work_list(tiles, of.slices, shape, {}, {}, {.given = schedule::TileSchedule{}});
    extents = schedule::measure_extents(tiles, work.run_tiles);
    spread = schedule::length_spread(tiles, work.run_tiles, static_cast<int64_t>(work.q_tiles.size()));
  }

  static TileList transposed_tiles(const ScheduleCase& of) {
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

/// `p4_t1_j2_g_s96_r132_i`: head_splits, heads_in_l2, last_wave_heads, by_document, max_steps, guided_divisor,
/// heads_innermost; what is 0 or false is left out.
inline std::string to_text(const schedule::TileSchedule& how) {
  std::string text = fmt::format("p{}", how.head_splits);
  if (how.heads_in_l2 > 0) text += fmt::format("_t{}", how.heads_in_l2);
  if (how.last_wave_heads > 0) text += fmt::format("_j{}", how.last_wave_heads);
  if (how.by_document) text += "_g";
  if (how.max_steps > 0) text += fmt::format("_s{}", how.max_steps);
  if (how.guided_divisor > 0) text += fmt::format("_r{}", how.guided_divisor);
  if (how.heads_innermost) text += "_i";
  return text;
}

/// Throws std::runtime_error for what to_text does not write.
inline schedule::TileSchedule schedule_from_text(std::string_view text) {
  schedule::TileSchedule how;
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
      case 'p': how.head_splits = number(); break;
      case 't': how.heads_in_l2 = number(); break;
      case 'j': how.last_wave_heads = number(); break;
      case 'g': how.by_document = true; break;
      case 's': how.max_steps = number(); break;
      case 'r': how.guided_divisor = number(); break;
      case 'i': how.heads_innermost = true; break;
      default: throw std::runtime_error(fmt::format("schedule_from_text: cannot read {}", text));
    }
  }
  return how;
}

}  // namespace tangram::test
