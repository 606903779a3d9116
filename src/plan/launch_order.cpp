// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include <array>
#include <string>
#include <utility>

#include "core/nearest_word.hpp"
#include "core/require.hpp"
#include "tangram/config.hpp"

namespace tangram {

namespace {

constexpr std::array<std::pair<LaunchOrder, std::string_view>, 5> kNames = {
    {{LaunchOrder::kAuto, "auto"},
     {LaunchOrder::kCopyEngine, "copy_engine"},
     {LaunchOrder::kSmMargin, "sm_margin"},
     {LaunchOrder::kHighPriority, "high_priority"},
     {LaunchOrder::kKernelBarrier, "kernel_barrier"}}};

}  // namespace

std::string_view to_string(LaunchOrder order) {
  for (const auto& [value, name] : kNames) {
    if (value == order) return name;
  }
  return "unknown";
}

LaunchOrder parse_launch_order(std::string_view name) {
  std::string list;
  std::vector<std::string_view> names;
  for (const auto& [value, known] : kNames) {
    if (known == name) return value;
    names.push_back(known);
    list += (list.empty() ? "" : ", ") + std::string(known);
  }
  require(false, "parse_launch_order: name must be one of {} (got '{}'){}", list, name, did_you_mean(name, names));
  return LaunchOrder::kAuto;
}

}  // namespace tangram
