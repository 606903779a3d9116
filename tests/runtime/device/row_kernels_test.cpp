// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "runtime/device/row_kernels.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>

#include "runtime/device/device_step.hpp"

namespace tangram::device {
namespace {

using testing::DeviceTensor;

class RowKernels : public ::testing::Test {
 protected:
  void SetUp() override {
    if (testing::num_gpus() == 0) GTEST_SKIP() << "needs a GPU";
  }
  std::mt19937 rng{7};
};

TEST_F(RowKernels, SumsOfMappedRowsAreRoundedOnce) {
  constexpr int kHeads = 3, kDim = 64;
  const DType dtypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
  for (const DType source_dtype : dtypes) {
    for (const DType addend_dtype : dtypes) {
      for (const DType result_dtype : dtypes) {
        const HostTensor source = testing::random_tensor(source_dtype, 50, kHeads, kDim, rng);
        const HostTensor addend = testing::random_tensor(addend_dtype, 40, kHeads, kDim, rng);
        HostTensor result(result_dtype, 60, kHeads, kDim);
        result.fill(5);
        std::vector<int32_t> from(30), add_from(30), to(60);
        for (int32_t& row : from) row = static_cast<int32_t>(rng() % 50);
        for (int32_t& row : add_from) row = static_cast<int32_t>(rng() % 41) - 1;
        std::iota(to.begin(), to.end(), 0);
        std::shuffle(to.begin(), to.end(), rng);
        to.resize(30);
        const DeviceTensor s(source), a(addend), r(result);
        const cuda::DeviceBuffer maps[] = {cuda::DeviceBuffer::copy_of(from), cuda::DeviceBuffer::copy_of(add_from),
                                           cuda::DeviceBuffer::copy_of(to)};
        const RowJob job{s, a, r, maps[0].as<int32_t>(), maps[1].as<int32_t>(), maps[2].as<int32_t>(), 30};
        run_row_jobs({&job, 1}, nullptr);
        HostTensor expected = result.clone();
        for (size_t i = 0; i < from.size(); ++i) {
          for (int head = 0; head < kHeads; ++head) {
            for (int d = 0; d < kDim; ++d) {
              const float more = add_from[i] < 0 ? 0.0f : addend.at(add_from[i], head, d);
              expected.set(to[i], head, d, source.at(from[i], head, d) + more);
            }
          }
        }
        r.fetch(result);
        EXPECT_EQ(std::memcmp(result.view().data, expected.view().data, static_cast<size_t>(result.bytes())), 0)
            << to_string(source_dtype) << " + " << to_string(addend_dtype) << " -> " << to_string(result_dtype);
      }
    }
  }
}

TEST_F(RowKernels, CopiesOfSeveralTensorsKeepTheirBits) {
  const HostTensor k = testing::random_tensor(DType::kBFloat16, 500, 8, 128, rng);
  const HostTensor v = testing::random_tensor(DType::kFloat16, 700, 2, 64, rng);
  HostTensor k_copy(DType::kBFloat16, 500, 8, 128), v_copy(DType::kFloat16, 700, 2, 64);
  const DeviceTensor k_from(k), v_from(v), k_to(k_copy), v_to(v_copy);
  const RowJob jobs[] = {{k_from, {}, k_to, nullptr, nullptr, nullptr, 500},
                         {k_from, {}, k_to, nullptr, nullptr, nullptr, 0},
                         {v_from, {}, v_to, nullptr, nullptr, nullptr, 700}};
  run_row_jobs(jobs, nullptr);
  k_to.fetch(k_copy), v_to.fetch(v_copy);
  EXPECT_EQ(std::memcmp(k.view().data, k_copy.view().data, static_cast<size_t>(k.bytes())), 0);
  EXPECT_EQ(std::memcmp(v.view().data, v_copy.view().data, static_cast<size_t>(v.bytes())), 0);
}

TEST_F(RowKernels, ScalesValues) {
  const testing::DeviceVector values(std::vector<float>(1000, 3.0f));
  scale_values(values.data(), 999, 0.5f, nullptr);
  std::vector<float> got(1000);
  values.fetch(got);
  for (size_t i = 0; i < 999; ++i) EXPECT_EQ(got[i], 1.5f);
  EXPECT_EQ(got[999], 3.0f);
}

}  // namespace
}  // namespace tangram::device
