// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Against what tests without a GPU do on the host, in float64.
#include "runtime/device/owner_kernels.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "runtime/device/device_step.hpp"
#include "runtime/device/host_program_device.hpp"
#include "runtime/device/row_kernels.hpp"

namespace tangram::device {
namespace {

using testing::DeviceTensor;
using testing::DeviceVector;

constexpr int64_t kRows = 301;
constexpr int kHeads = 5;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Sums of at most 256 float32 products, another order than the host's.
constexpr double kTolerance = 1e-5;

class OwnerKernels : public ::testing::Test {
 protected:
  void SetUp() override {
    if (testing::num_gpus() == 0) GTEST_SKIP() << "needs a GPU";
  }
  HostTensor random(DType dtype, int64_t rows, int heads, int dim) {
    return testing::random_tensor(dtype, rows, heads, dim, rng);
  }
  /// Some rows of each head are -inf.
  HostTensor random_lse(int64_t rows, int heads) {
    HostTensor lse = random(DType::kFloat32, rows, heads, 1);
    for (int64_t row = 0; row < rows; ++row) {
      for (int head = 0; head < heads; ++head) {
        if (rng() % 4 == 0) lse.set(row, head, 0, -kInfinity);
      }
    }
    return lse;
  }
  std::mt19937 rng{7};
  const ProgramDevice host = testing::host_program_device();
};

TEST_F(OwnerKernels, DeltaOfAnyDtypes) {
  for (const int dim : {64, 128, 192, 256}) {
    for (const DType out_dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      for (const DType dout_dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
        HostTensor out = random(out_dtype, kRows, kHeads, dim), dout = random(dout_dtype, kRows, kHeads, dim);
        for (int d = 0; d < dim; ++d) {  // a row that sees nothing
          out.set(7, 2, d, 0);
          dout.set(7, 2, d, std::nanf(""));
        }
        HostTensor expected(DType::kFloat32, kRows, kHeads, 1), got(DType::kFloat32, kRows, kHeads, 1);
        got.fill(-1);
        host.find_delta(out, dout, expected, nullptr);
        const DeviceTensor o(out), d(dout), delta(got);
        find_delta(o, d, delta, nullptr);
        delta.fetch(got);
        EXPECT_LE(testing::relative_error(got, expected), kTolerance) << dim;
        EXPECT_EQ(got.at(7, 2, 0), 0);
      }
    }
  }
}

struct Parts {
  HostTensor out, lse;
};

TEST_F(OwnerKernels, PartsAreJoinedByLse) {
  constexpr int64_t kOthers = 400;
  constexpr int kColumns = 8;  // of the others' lse, of which kHeads are of these heads
  for (const int dim : {64, 128, 256}) {
    for (const bool listed : {false, true}) {
      for (const int num_sinks : {0, 2}) {
        for (const SinkLayout layout : {SinkLayout::kSh, SinkLayout::kSsh}) {
          const int64_t other_rows = listed ? kOthers : kRows;
          Parts own{random(DType::kFloat32, kRows, kHeads, dim), random_lse(kRows, kHeads)};
          for (int64_t row = 0; row < kRows; ++row) {
            for (int head = 0; head < kHeads; ++head) {
              for (int d = 0; d < dim && own.lse.at(row, head, 0) == -kInfinity; ++d) own.out.set(row, head, d, 0);
            }
          }
          const Parts others{random(DType::kFloat32, other_rows, kHeads, dim),
                             random_lse(other_rows, listed ? kColumns : kHeads)};
          std::vector<int32_t> begins = {0}, rows;
          for (int64_t row = 0; row < kRows; ++row) {
            for (uint32_t n = rng() % 4; n > 0; --n) rows.push_back(static_cast<int32_t>(rng() % kOthers));
            begins.push_back(static_cast<int32_t>(rows.size()));
          }
          const size_t sets = layout == SinkLayout::kSh ? 1 : kRows;
          std::vector<float> sinks(sets * static_cast<size_t>(num_sinks * 2 * kHeads));
          std::normal_distribution<float> normal;
          for (float& value : sinks) value = normal(rng);

          const DeviceTensor out(own.out), lse(own.lse), other_out(others.out), other_lse(others.lse);
          const DeviceVector sinks_there(sinks);
          const cuda::DeviceBuffer begins_there = cuda::DeviceBuffer::copy_of(begins),
                                   rows_there = cuda::DeviceBuffer::copy_of(rows);
          const auto merge_of = [&](TensorView a, TensorView b, TensorView c, TensorView d, const int32_t* e,
                                    const int32_t* f, const float* g) {
            d.heads = kHeads;  // of as many columns as there are
            RowMerge merge{{a, b}, {c, d}, {}, {{g + kHeads, num_sinks, layout}, 2 * kHeads}};
            if (listed) merge.other_rows = {e, f};
            if (num_sinks == 0) merge.sinks = {};
            return merge;
          };
          merge_rows(merge_of(out, lse, other_out, other_lse, begins_there.as<int32_t>(), rows_there.as<int32_t>(),
                              sinks_there.data()),
                     nullptr);
          HostTensor got_out = own.out.clone(), got_lse = own.lse.clone();
          out.fetch(got_out), lse.fetch(got_lse);
          host.merge(merge_of(own.out, own.lse, others.out.clone(), others.lse.clone(), begins.data(), rows.data(),
                              sinks.data()),
                     nullptr);
          EXPECT_LE(testing::relative_error(got_out, own.out), kTolerance) << dim << listed << num_sinks;
          EXPECT_LE(testing::relative_error(got_lse, own.lse), kTolerance) << dim << listed << num_sinks;
        }
      }
    }
  }
}

TEST_F(OwnerKernels, GradientsOfSinks) {
  for (const SinkLayout layout : {SinkLayout::kSh, SinkLayout::kSsh}) {
    constexpr int64_t kSinks = 3;
    const int64_t rows = 2000;
    const HostTensor lse = random_lse(rows, kHeads), delta = random(DType::kFloat32, rows, kHeads, 1);
    const size_t count = (layout == SinkLayout::kSh ? 1 : static_cast<size_t>(rows)) * kSinks * 2 * kHeads;
    std::vector<float> sinks(count), expected(count, -1.0f), got(count, -1.0f);
    std::normal_distribution<float> normal;
    for (float& value : sinks) value = normal(rng);
    const DeviceTensor lse_there(lse), delta_there(delta);
    const DeviceVector sinks_there(sinks), dsink_there(got);
    host.find_dsink({lse, delta, {{sinks.data() + kHeads, kSinks, layout}, 2 * kHeads}, expected.data() + kHeads},
                    nullptr);
    find_dsink({lse_there,
                delta_there,
                {{sinks_there.data() + kHeads, kSinks, layout}, 2 * kHeads},
                dsink_there.data() + kHeads},
               nullptr);
    dsink_there.fetch(got);
    for (size_t i = 0; i < count; ++i) ASSERT_NEAR(got[i], expected[i], kTolerance * (1 + std::abs(expected[i]))) << i;
  }
}

TEST_F(OwnerKernels, LargestOfColumns) {
  const int columns = 300;
  std::vector<float> from(7 * 310);
  std::normal_distribution<float> normal;
  for (float& value : from) value = normal(rng);
  for (size_t row = 0; row < 7; ++row) from[row * 310 + 4] = -kInfinity;
  std::vector<float> got(columns, 9.0f), expected(columns);
  const DeviceVector from_there(from), to(got);
  find_maxima({from_there.data(), to.data(), 310, 7, columns}, nullptr);
  host.find_maxima({from.data(), expected.data(), 310, 7, columns}, nullptr);
  to.fetch(got);
  EXPECT_EQ(got, expected);
}

TEST_F(OwnerKernels, RowsOfListsAreAddedInTheirOrder) {
  for (const DType addend_dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const DType result_dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (const bool has_source : {true, false}) {
        const HostTensor source = random(DType::kFloat32, kRows, kHeads, 64),
                         addend = random(addend_dtype, 90, kHeads, 64);
        std::vector<int32_t> begins = {0}, rows;
        for (int64_t row = 0; row < kRows; ++row) {
          for (uint32_t n = rng() % 5; n > 0; --n) rows.push_back(static_cast<int32_t>(rng() % 90));
          begins.push_back(static_cast<int32_t>(rows.size()));
        }
        HostTensor expected(result_dtype, kRows, kHeads, 64), got(result_dtype, kRows, kHeads, 64);
        const ConstTensorView from = has_source ? source.view() : ConstTensorView{};
        const RowSum sum{from, addend, expected, {begins.data(), rows.data()}};
        host.sum_rows({&sum, 1}, nullptr);
        const DeviceTensor s(source), a(addend), r(got);
        const cuda::DeviceBuffer begins_there = cuda::DeviceBuffer::copy_of(begins),
                                 rows_there = cuda::DeviceBuffer::copy_of(rows);
        const ConstTensorView from_there = has_source ? s : ConstTensorView{};
        const RowJob job{
            from_there, a, r, nullptr, rows_there.as<int32_t>(), nullptr, kRows, begins_there.as<int32_t>()};
        run_row_jobs({&job, 1}, nullptr);
        r.fetch(got);
        EXPECT_TRUE(testing::same_bits(got, expected)) << has_source;
      }
    }
  }
}

}  // namespace
}  // namespace tangram::device
