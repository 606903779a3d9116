// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The benchmark masks of tests/data as library masks.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tangram/mask.hpp"

namespace tangram::reference {

struct MaskCase {
  std::string name;  // family:seqlen
  int64_t seqlen = 0;
  int64_t area = 0;  // as the file states it
  std::vector<AttnSlice> slices;
};

inline std::vector<MaskCase> load_mask_cases_from(const std::string& path) {
  std::ifstream stream(path);
  const nlohmann::json data = nlohmann::json::parse(stream);
  std::vector<MaskCase> cases;
  for (const auto& entry : data.at("cases")) {
    MaskCase c;
    c.seqlen = entry.at("seqlen");
    c.area = entry.at("area");
    c.name = entry.at("mask").get<std::string>() + ":" + std::to_string(c.seqlen);
    for (size_t i = 0; i < entry.at("q_ranges").size(); ++i) {
      const auto& q = entry.at("q_ranges")[i];
      const auto& k = entry.at("k_ranges")[i];
      c.slices.push_back(AttnSlice::from_type(static_cast<MaskType>(entry.at("attn_types")[i].get<int>()), {q[0], q[1]},
                                              {k[0], k[1]}));
    }
    cases.push_back(std::move(c));
  }
  return cases;
}

/// A file of tests/data by its name.
inline std::vector<MaskCase> load_mask_cases(const std::string& file) {
  return load_mask_cases_from(std::string(TANGRAM_TEST_DATA) + "/" + file);
}

}  // namespace tangram::reference
