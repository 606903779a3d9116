// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/measure/head_dims.hpp"

#include <algorithm>
#include <string>

#include "cli/doc_lengths.hpp"
#include "core/require.hpp"
#include "tangram/machine.hpp"

namespace tangram::cli {

std::vector<HeadDims> parse_head_dims(std::string_view list, std::string_view what) {
  std::vector<HeadDims> result;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    std::string entry(list.substr(begin, end - begin));
    begin = end + 1;
    require(std::count(entry.begin(), entry.end(), ':') <= 1, "{}: takes one number, or two such as 192:128 (got '{}')",
            what, entry.substr(0, 40));
    std::replace(entry.begin(), entry.end(), ':', ',');
    const std::vector<int64_t> numbers = parse_number_list(entry, what);
    require(numbers.size() == 1 || numbers.size() == 2, "{}: needs a number on either side of a comma (got '{}')", what,
            list.substr(0, 40));
    for (const int64_t number : numbers) {
      require(1 <= number && number <= 1024, "{}: must lie in [1, 1024] (got {})", what, number);
    }
    result.push_back({static_cast<int>(numbers.front()), static_cast<int>(numbers.back())});
  }
  return result;
}

std::vector<HeadDims> gpu_head_dims() {
  std::vector<HeadDims> result;
  for (const HeadDimRate& rate : h200::kHeadDimRates) result.push_back({rate.head_dim, rate.head_dim_v});
  return result;
}

}  // namespace tangram::cli
