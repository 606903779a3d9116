// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Rates of kernels by the class of their head dimensions.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "tangram/attn_pass.hpp"
#include "tangram/machine.hpp"

namespace tangram {

/// Floating-point operations of one visible cell of one query head.
double flops_per_cell(int head_dim, int head_dim_v, AttnPass pass);

/// The first class that holds both dimensions, the last where none does; null of an empty list.
const HeadDimRate* find_head_dim_rate(std::span<const HeadDimRate> rates, int head_dim, int head_dim_v);

/// Factor of rates for these dimensions. It is the factor of their class times their share of its operations, since a
/// kernel computes all of its columns.
double head_dim_factor(std::span<const HeadDimRate> rates, int head_dim, int head_dim_v, AttnPass pass);

/// Rates relative to those of these dimensions, whose own factors become 1.
std::vector<HeadDimRate> relative_rates(std::span<const HeadDimRate> rates, int head_dim, int head_dim_v);

/// Throws InvalidArgument in the name of `function` for dimensions or factors of `name` that are not positive, and for
/// more classes than any build compiles.
void validate_head_dim_rates(std::span<const HeadDimRate> rates, std::string_view function, std::string_view name);

}  // namespace tangram
