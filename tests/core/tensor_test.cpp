// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/tensor.hpp"

#include <gtest/gtest.h>

#include "tangram/error.hpp"

namespace tangram {
namespace {

TEST(HostTensor, ElementsRoundTripInEveryDtype) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    HostTensor tensor(dtype, 3, 2, 5);
    tensor.fill(0.5f);
    tensor.set(2, 1, 4, -1.25f);
    EXPECT_EQ(tensor.at(2, 1, 4), -1.25f);
    EXPECT_EQ(tensor.at(2, 1, 3), 0.5f);
    EXPECT_EQ(tensor.bytes(), 30 * static_cast<int64_t>(size_of(dtype)));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.view().data) % 64, 0u);
  }
}

TEST(HostTensor, CloneAndConversionAreDeep) {
  HostTensor tensor(DType::kFloat32, 1, 1, 2);
  tensor.fill(1.0f);
  HostTensor copy = tensor.clone();
  HostTensor half = tensor.to(DType::kBFloat16);
  tensor.set(0, 0, 0, 7.0f);
  EXPECT_EQ(copy.at(0, 0, 0), 1.0f);
  EXPECT_EQ(half.at(0, 0, 0), 1.0f);
  EXPECT_EQ(half.dtype(), DType::kBFloat16);
}

TEST(HostTensor, EmptyTensorsAreFine) {
  const HostTensor tensor(DType::kFloat32, 0, 4, 8);
  EXPECT_TRUE(tensor.view().empty());
  EXPECT_EQ(tensor.clone().rows(), 0);
  EXPECT_THROW(HostTensor(DType::kFloat32, -1, 1, 1), InvalidArgument);
}

TEST(HostTensor, MoreBytesThanCanBeCountedAreNotAFewBytes) {
  // 2^62 elements of 4 bytes: 2^64 bytes, which are none where sizes wrap around.
  EXPECT_THROW(HostTensor(DType::kFloat32, int64_t{1} << 30, 1 << 16, 1 << 16), std::bad_alloc);
  EXPECT_THROW(HostTensor(DType::kBFloat16, int64_t{1} << 62, 2, 2), std::bad_alloc);
  const auto asked_for = [](int64_t rows) {
    try {
      HostTensor(DType::kBFloat16, rows, 2, 4);
    } catch (const OutOfMemory& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  EXPECT_EQ(asked_for(int64_t{1} << 50),
            "not enough memory for a tensor bfloat16[1125899906842624, 2, 4]: 18014398509481984 bytes");
  EXPECT_EQ(asked_for(int64_t{1} << 60),
            "not enough memory for a tensor bfloat16[1152921504606846976, 2, 4]: more bytes than can be counted");
  EXPECT_EQ(HostTensor(DType::kFloat32, int64_t{1} << 62, 0, 8).size(), 0);
}

TEST(TensorView, SliceRowsKeepsStridesAndChecksBounds) {
  HostTensor tensor(DType::kFloat16, 4, 2, 3);
  for (int64_t row = 0; row < 4; ++row) tensor.set(row, 1, 2, static_cast<float>(row));
  const TensorView rows = slice_rows(tensor.view(), {1, 3});
  EXPECT_EQ(rows.rows, 2);
  EXPECT_EQ(rows.row_stride, 6);
  EXPECT_EQ(float16_to_float(static_cast<const uint16_t*>(rows.data)[6 + 5]), 2.0f);
  EXPECT_THROW(slice_rows(tensor.view(), {1, 5}), InvalidArgument);
  EXPECT_EQ(shape_text(rows), "float16[2, 2, 3]");
}

}  // namespace
}  // namespace tangram
