// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "core/names.hpp"
#include "tangram/config.hpp"

namespace tangram {

namespace {

constexpr Names<LaunchOrder, 5> kNames = {{{LaunchOrder::kAuto, "auto"},
                                           {LaunchOrder::kCopyEngine, "copy_engine"},
                                           {LaunchOrder::kSmMargin, "sm_margin"},
                                           {LaunchOrder::kHighPriority, "high_priority"},
                                           {LaunchOrder::kKernelBarrier, "kernel_barrier"}}};

}  // namespace

std::string_view to_string(LaunchOrder order) { return name_in(kNames, order); }

LaunchOrder parse_launch_order(std::string_view name) { return value_in(kNames, name, "parse_launch_order"); }

}  // namespace tangram
