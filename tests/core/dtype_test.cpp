// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/dtype.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "tangram/error.hpp"

namespace tangram {
namespace {

// The nearest value of a binary format with `mantissa_bits` and `min_exponent`, by arithmetic in double.
double round_to_format(double value, int mantissa_bits, int min_exponent, double max_finite) {
  if (value == 0 || std::isnan(value) || std::isinf(value)) return value;
  const int exponent = std::max(std::ilogb(value), min_exponent);
  const double unit = std::ldexp(1.0, exponent - mantissa_bits);
  const double rounded = std::nearbyint(value / unit) * unit;  // ties to even, the default rounding mode
  return std::abs(rounded) > max_finite ? std::copysign(std::numeric_limits<double>::infinity(), value) : rounded;
}

TEST(DType, Float16RoundsToNearestEven) {
  std::mt19937 rng(1);
  for (int n = 0; n < 200000; ++n) {
    const float value =
        std::ldexp(std::uniform_real_distribution<float>(-2, 2)(rng), static_cast<int>(rng() % 44) - 27);
    EXPECT_EQ(float16_to_float(float_to_float16(value)), round_to_format(value, 10, -14, 65504)) << value;
  }
}

TEST(DType, Float16RoundTripsEveryBitPattern) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = float16_to_float(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(float16_to_float(float_to_float16(value))));
    } else {
      EXPECT_EQ(float_to_float16(value), bits);
    }
  }
}

TEST(DType, BFloat16RoundsToNearestEven) {
  std::mt19937 rng(2);
  const double max_finite = bfloat16_to_float(0x7f7f);
  for (int n = 0; n < 200000; ++n) {
    const float value =
        std::ldexp(std::uniform_real_distribution<float>(-2, 2)(rng), static_cast<int>(rng() % 250) - 126);
    EXPECT_EQ(bfloat16_to_float(float_to_bfloat16(value)), round_to_format(value, 7, -126, max_finite)) << value;
  }
}

TEST(DType, BFloat16RoundTripsEveryBitPattern) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = bfloat16_to_float(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(bfloat16_to_float(float_to_bfloat16(value))));
    } else {
      EXPECT_EQ(float_to_bfloat16(value), bits);
    }
  }
}

TEST(DType, NamesParseBack) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    EXPECT_EQ(parse_dtype(to_string(dtype)), dtype);
  }
  EXPECT_EQ(parse_dtype("bf16"), DType::kBFloat16);
  EXPECT_THROW(parse_dtype("int8"), InvalidArgument);
}

}  // namespace
}  // namespace tangram
