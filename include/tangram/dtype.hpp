// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Element types of tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tangram {

/// Storage type of a tensor. Arithmetic always accumulates in float32.
enum class DType : uint8_t { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };

constexpr size_t size_of(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

/// `float32`, `bfloat16`, `float16`.
std::string_view to_string(DType dtype);

/// Accepts `float32|fp32`, `bfloat16|bf16`, `float16|fp16`; anything else throws InvalidArgument.
DType parse_dtype(std::string_view name);

/// Conversions of single values, round to nearest even; NaN stays NaN.
uint16_t float_to_bfloat16(float value);
float bfloat16_to_float(uint16_t bits);
uint16_t float_to_float16(float value);
float float16_to_float(uint16_t bits);

}  // namespace tangram
