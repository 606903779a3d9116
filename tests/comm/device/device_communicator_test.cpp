// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Device transports: what casts bring and reductions add, over random tables.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/device/device_ranks.hpp"

namespace tangram {
namespace {

using testing::can_run;
using testing::check;
using testing::DeviceBuffer;
using testing::element_value;
using testing::kDim;
using testing::kHeads;
using testing::make_filled;
using testing::make_random_exchange;
using testing::name_of;
using testing::RandomExchange;
using testing::run_device_ranks;
using testing::Stream;
using testing::to_device;
using testing::to_host;
using testing::view_of;

/// One pass of two stages, K and V and their gradients, over random tables.
struct RandomPass {
  RandomPass(int size, int rank, uint64_t seed) {
    const RandomExchange first = make_random_exchange(size, seed), second = make_random_exchange(size, seed + 1000);
    shard_rows = std::max(first.shard_rows, second.shard_rows);
    const auto idx = static_cast<size_t>(rank);
    for (size_t r = 0; r < static_cast<size_t>(size); ++r) {
      all.push_back({first.ranks[r], second.ranks[r]});
      for (RowCopy& copy : all[r][1].recvs) copy.rows = copy.rows.shifted(first.buffer_rows[r]);
      for (RowCopy& copy : all[r][1].sends) copy.peer_row += first.buffer_rows[static_cast<size_t>(copy.peer)];
    }
    buffer_rows = first.buffer_rows[idx] + second.buffer_rows[idx];
    spec.label = "random";
    spec.casts = all[idx];
    spec.recv_buffers.assign(2, {buffer_rows, kHeads, kDim, DType::kBFloat16});
    spec.reduces = all[idx];
    spec.returns.assign(2, {buffer_rows, shard_rows, kHeads, kDim, DType::kFloat32, DType::kFloat32});
  }

  int64_t shard_rows = 0;
  int64_t buffer_rows = 0;
  std::vector<std::vector<Exchange>> all;  // by rank and stage
  DevicePassSpec spec;
};

/// `tensor` of a source tells who sent the row.
void expect_landed(const HostTensor& got, const std::vector<Exchange>& stages, int tensor, const char* where) {
  for (const Exchange& exchange : stages) {
    for (const RowCopy& copy : exchange.recvs) {
      for (int64_t i = 0; i < copy.rows.size(); ++i) {
        for (const int d : {0, kDim - 1}) {
          ASSERT_EQ(got.at(copy.rows.begin + i, 1, d), element_value(copy.peer, tensor, copy.peer_row + i, 1, d))
              << where << ": tensor " << tensor << ", row " << copy.rows.begin + i << " from rank " << copy.peer;
        }
      }
    }
  }
}

struct Group {
  DeviceTransport transport;
  int size;
  uint64_t seed;
};
class DeviceGroups : public ::testing::TestWithParam<Group> {
 protected:
  void SetUp() override {
    if (!can_run(GetParam().transport, GetParam().size)) GTEST_SKIP() << "needs a GPU for each rank";
  }
};

std::vector<Group> groups() {
  std::vector<Group> groups;
  for (const DeviceTransport transport : {DeviceTransport::kCopyEngine, DeviceTransport::kNccl}) {
    for (const auto& [size, seed] : {std::pair{1, 1}, {2, 2}, {2, 3}, {3, 4}, {4, 5}, {4, 6}}) {
      groups.push_back({transport, size, static_cast<uint64_t>(seed)});
    }
  }
  return groups;
}

TEST_P(DeviceGroups, CastBringsTheRowsOfTheTablesEpochAfterEpoch) {
  const auto [transport, size, seed] = GetParam();
  run_device_ranks(transport, size, [&, size = size, seed = seed](DeviceCommunicator& comm) {
    const RandomPass pass_data(size, comm.rank(), seed);
    const auto pass = comm.prepare_pass(pass_data.spec);
    constexpr int kEpochs = 6;
    const Stream stream;
    // What each epoch sends and lands, so that nothing waits for the host between epochs.
    std::vector<DeviceBuffer> sources, landed;
    for (int i = 0; i < 2 * kEpochs; ++i) {
      sources.push_back(to_device(make_filled(DType::kBFloat16, pass_data.shard_rows, kHeads, kDim, comm.rank(), i)));
      landed.emplace_back(static_cast<size_t>(pass->recv_buffers(0, 0).rows * pass->recv_buffers(0, 0).row_bytes()));
    }
    const HostTensor shape(DType::kBFloat16, pass_data.shard_rows, kHeads, kDim);
    std::vector<DeviceBuffer> zeros;
    const HostTensor owned(DType::kFloat32, pass_data.shard_rows, kHeads, kDim);
    const HostTensor partial(DType::kFloat32, pass_data.buffer_rows, kHeads, kDim);
    for (int t = 0; t < 2; ++t) zeros.push_back(DeviceBuffer::zeros(static_cast<size_t>(owned.bytes())));
    const DeviceBuffer partials = DeviceBuffer::zeros(static_cast<size_t>(partial.bytes()));
    comm.reset_counters();
    comm.control().barrier("allocated");
    for (int epoch = 0; epoch < kEpochs; ++epoch) {
      const int slot = pass->begin(stream);
      EXPECT_EQ(slot, epoch % 2);
      const auto source = [&](int t) { return view_of(sources[static_cast<size_t>(2 * epoch + t)], shape); };
      const ConstTensorView both[] = {source(0), source(1)};
      for (int stage = 0; stage < 2; ++stage) pass->cast(stage, both, stream);
      for (int stage = 0; stage < 2; ++stage) pass->wait_group_cast(stage, stream);
      for (int t = 0; t < 2; ++t) {
        const TensorView recv_buffers = pass->recv_buffers(t, slot);
        check(cudaMemcpyAsync(landed[static_cast<size_t>(2 * epoch + t)].as<void>(), recv_buffers.data,
                              static_cast<size_t>(recv_buffers.rows * recv_buffers.row_bytes()),
                              cudaMemcpyDeviceToDevice, stream),
              "copy");
      }
      const ConstTensorView gradients[] = {view_of(partials, partial), view_of(partials, partial)};
      for (int stage = 0; stage < 2; ++stage) pass->reduce(stage, gradients, stream);
      const ConstTensorView own[] = {view_of(zeros[0], owned), view_of(zeros[1], owned)};
      const TensorView sums[] = {view_of(zeros[0], owned), view_of(zeros[1], owned)};
      pass->finish_reduce(own, sums, stream);
      pass->end(stream);
    }
    stream.synchronize();
    comm.check();
    for (int i = 0; i < 2 * kEpochs; ++i) {
      TensorView recv_buffers = pass->recv_buffers(0, 0);
      recv_buffers.data = landed[static_cast<size_t>(i)].as<void>();
      expect_landed(to_host(recv_buffers), pass_data.spec.casts, i, "landed");
    }
    // Counters: what the tables say, K and V, both ways.
    int64_t rows_sent = 0, rows_received = 0;
    for (const Exchange& exchange : pass_data.spec.casts) {
      rows_sent += exchange.rows_sent();
      rows_received += exchange.rows_received();
    }
    const TrafficCounters counters = comm.counters();
    EXPECT_EQ(counters.rows_sent, kEpochs * 2 * (rows_sent + rows_received));
    EXPECT_EQ(counters.rows_received, kEpochs * 2 * (rows_sent + rows_received));
    const int64_t cast_bytes = kHeads * kDim * 2, return_bytes = kHeads * kDim * 4;
    EXPECT_EQ(counters.bytes_sent, kEpochs * 2 * (rows_sent * cast_bytes + rows_received * return_bytes));
    comm.control().barrier("done");
  });
}

/// What the owner must hold: own and returned rows added in rank order in float32, rounded once.
HostTensor expected_sums(const RandomPass& data, int rank, int size, int tensor, DType reduce_dtype, DType sum_dtype) {
  HostTensor expected(sum_dtype, data.shard_rows, kHeads, kDim);
  const auto rounded = [&](float value) {
    return reduce_dtype == DType::kBFloat16 ? bfloat16_to_float(float_to_bfloat16(value)) : value;
  };
  for (int64_t row = 0; row < data.shard_rows; ++row) {
    for (int head = 0; head < kHeads; ++head) {
      for (int d = 0; d < kDim; ++d) {
        float sum = 0;
        for (int peer = 0; peer < size; ++peer) {
          if (peer == rank) {
            sum += 0.1f * element_value(rank, 5 + tensor, row, head, d);
            continue;
          }
          for (const Exchange& exchange : data.all[static_cast<size_t>(rank)]) {
            for (const RowCopy& copy : exchange.sends) {
              if (copy.peer != peer || !copy.rows.contains(row)) continue;
              const int64_t partial_row = copy.peer_row + row - copy.rows.begin;
              sum += rounded(0.1f * element_value(peer, tensor, partial_row, head, d));
            }
          }
        }
        expected.set(row, head, d, sum);
      }
    }
  }
  return expected;
}

HostTensor make_scaled(DType dtype, int64_t rows, int rank, int tensor) {
  HostTensor host(dtype, rows, kHeads, kDim);
  for (int64_t row = 0; row < rows; ++row) {
    for (int head = 0; head < kHeads; ++head) {
      for (int d = 0; d < kDim; ++d) host.set(row, head, d, 0.1f * element_value(rank, tensor, row, head, d));
    }
  }
  return host;
}

void test_reduce(const Group& group, DType partial_dtype, DType reduce_dtype) {
  const int size = group.size;
  const uint64_t seed = group.seed;
  run_device_ranks(group.transport, size, [&](DeviceCommunicator& comm) {
    RandomPass data(size, comm.rank(), seed);
    data.spec.casts.clear();
    data.spec.recv_buffers.clear();
    for (ReturnTensor& tensor : data.spec.returns) {
      tensor.partial_dtype = partial_dtype;
      tensor.reduce_dtype = reduce_dtype;
    }
    const auto pass = comm.prepare_pass(data.spec);
    const Stream stream;
    std::vector<HostTensor> partial_hosts, own_hosts;
    std::vector<DeviceBuffer> partial_buffers, own_buffers, sum_buffers;
    const HostTensor sum_shape(DType::kBFloat16, data.shard_rows, kHeads, kDim);
    for (int t = 0; t < 2; ++t) {
      partial_hosts.push_back(make_scaled(partial_dtype, data.buffer_rows, comm.rank(), t));
      own_hosts.push_back(make_scaled(DType::kFloat32, data.shard_rows, comm.rank(), 5 + t));
      partial_buffers.push_back(to_device(partial_hosts.back()));
      own_buffers.push_back(to_device(own_hosts.back()));
      sum_buffers.push_back(DeviceBuffer::zeros(static_cast<size_t>(sum_shape.bytes())));
    }
    comm.control().barrier("allocated");
    pass->begin(stream);
    const ConstTensorView partials[] = {view_of(partial_buffers[0], partial_hosts[0]),
                                        view_of(partial_buffers[1], partial_hosts[1])};
    for (int stage = 0; stage < 2; ++stage) pass->reduce(stage, partials, stream);
    // In place in float32 for one tensor, rounded to bfloat16 elsewhere for the other.
    const ConstTensorView own[] = {view_of(own_buffers[0], own_hosts[0]), view_of(own_buffers[1], own_hosts[1])};
    const TensorView sums[] = {view_of(own_buffers[0], own_hosts[0]), view_of(sum_buffers[1], sum_shape)};
    pass->finish_reduce_and_end(own, sums, stream);
    stream.synchronize();
    comm.check();
    for (int t = 0; t < 2; ++t) {
      const HostTensor got = to_host(sums[t]);
      const HostTensor expected = expected_sums(data, comm.rank(), size, t, reduce_dtype, got.dtype());
      for (int64_t row = 0; row < got.rows(); ++row) {
        // Sums have equal terms in equal order: bitwise equal.
        for (int d = 0; d < kDim; ++d) ASSERT_EQ(got.at(row, 1, d), expected.at(row, 1, d)) << "row " << row;
      }
    }
    comm.control().barrier("done");
  });
}

TEST_P(DeviceGroups, ReduceAddsInRankOrderInFloat32) { test_reduce(GetParam(), DType::kFloat32, DType::kFloat32); }
TEST_P(DeviceGroups, ReduceConvertsToBfloat16OnTheWay) { test_reduce(GetParam(), DType::kFloat32, DType::kBFloat16); }
TEST_P(DeviceGroups, ReduceOfBfloat16NeedsNoConversion) { test_reduce(GetParam(), DType::kBFloat16, DType::kBFloat16); }

INSTANTIATE_TEST_SUITE_P(Device, DeviceGroups, ::testing::ValuesIn(groups()), [](const auto& param_info) {
  const Group& group = param_info.param;
  return name_of(group.transport) + "On" + std::to_string(group.size) + "Seed" + std::to_string(group.seed);
});

}  // namespace
}  // namespace tangram
