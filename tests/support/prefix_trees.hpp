// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The forests of tests/data/prefix_trees.json, about a million rows each, for tests and benchmarks.
#pragma once

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tangram/mask.hpp"

namespace tangram::test_support {

struct Forest {
  std::string name;
  std::vector<int64_t> lengths;
  std::vector<int> parents;
};

inline std::vector<Forest> forests() {
  std::ifstream file(std::string(TANGRAM_TEST_DATA) + "/prefix_trees.json");
  std::vector<Forest> result;
  const nlohmann::json all = nlohmann::json::parse(file);
  for (const nlohmann::json& one : all.at("forests")) {
    result.push_back({one.at("name"), one.at("lengths"), one.at("parents")});
  }
  return result;
}

/// Rows in preorder, as many as ranks can hold in whole chunks of 128.
/// A node is causal in itself, and the rows below it attend to all of its keys.
inline Mask mask_of(const Forest& forest, int num_ranks) {
  const size_t count = forest.lengths.size();
  std::vector<std::vector<size_t>> children(count + 1);  // of the root of all trees in the end
  for (size_t i = 0; i < count; ++i) {
    children[forest.parents[i] < 0 ? count : static_cast<size_t>(forest.parents[i])].push_back(i);
  }
  std::vector<AttnSlice> slices;
  int64_t row = 0;
  const auto visit = [&](const auto& self, size_t node) -> void {
    const Range own{row, row + forest.lengths[node]};
    row = own.end;
    slices.push_back(AttnSlice::causal(own, own));
    const size_t below = slices.size();
    for (const size_t child : children[node]) self(self, child);
    if (row > own.end)
      slices.insert(slices.begin() + static_cast<std::ptrdiff_t>(below), AttnSlice::full({own.end, row}, own));
  };
  for (const size_t root : children[count]) visit(visit, root);
  const int64_t multiple = num_ranks * 128;
  const int64_t rows = (row + multiple - 1) / multiple * multiple;
  return {rows, rows, std::move(slices)};
}

}  // namespace tangram::test_support
