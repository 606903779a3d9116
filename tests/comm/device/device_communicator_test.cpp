// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Device transports with ranks as threads, on as many GPUs as there are, possibly one.
#include "tangram/device_communicator.hpp"

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "comm/exchange_tables.hpp"
#include "cuda/check.hpp"
#include "cuda/device_buffer.hpp"
#include "tangram/error.hpp"
#include "tangram/local_group.hpp"

namespace tangram {
namespace {

using cuda::check;
using cuda::DeviceBuffer;
using testing::element_value;
using ::testing::HasSubstr;
using testing::make_filled;
using testing::make_random_exchange;
using testing::RandomExchange;

constexpr int kHeads = 2;
constexpr int kDim = 8;

/// Before CUDA starts: several ranks share a device here, so their streams must not share hardware queues, and no
/// kernel may be loaded while another waits for it.
const bool kEnvironmentIsSet = [] {
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  return true;
}();

class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate"); }
  ~Stream() { static_cast<void>(cudaStreamDestroy(stream_)); }
  operator cudaStream_t() const { return stream_; }
  void synchronize() const { check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  cudaStream_t stream_ = nullptr;
};

DeviceBuffer to_device(const HostTensor& host) {
  return DeviceBuffer::copy_of(host.view().data, static_cast<size_t>(host.bytes()));
}
TensorView view_of(const DeviceBuffer& buffer, const HostTensor& like) {
  TensorView view = const_cast<HostTensor&>(like).view();
  view.data = buffer.as<void>();
  return view;
}
HostTensor to_host(const ConstTensorView& view) {
  HostTensor host(view.dtype, view.rows, view.heads, view.dim);
  check(cudaMemcpy(host.view().data, view.data, static_cast<size_t>(host.bytes()), cudaMemcpyDeviceToHost), "copy");
  return host;
}

int num_gpus() {
  int count = 0;
  check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  return count;
}

/// NCCL wants a GPU for each rank; over copy engines several ranks may share one.
bool can_run(DeviceTransport transport, int size) { return transport != DeviceTransport::kNccl || size <= num_gpus(); }

/// Runs `rank_main` once per rank, on a thread and a device of its own choice.
void run_device_ranks(DeviceTransport transport, int size, const std::function<void(DeviceCommunicator&)>& rank_main,
                      double timeout_s = 20) {
  const int num_devices = num_gpus();
  run_local_ranks(
      size,
      [&](Communicator& control) {
        check(cudaSetDevice(control.rank() % num_devices), "cudaSetDevice");
        const auto communicator = make_device_communicator(control, {transport, timeout_s});
        rank_main(*communicator);
      },
      60);
}

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
    spec.landing.assign(2, {buffer_rows, kHeads, kDim, DType::kBFloat16});
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

std::string name_of(DeviceTransport transport) { return transport == DeviceTransport::kNccl ? "Nccl" : "CopyEngine"; }

/// One of the transports, with as many ranks as the test wants.
class DeviceTransports : public ::testing::TestWithParam<DeviceTransport> {
 protected:
  void run(int size, const std::function<void(DeviceCommunicator&)>& rank_main, double timeout_s = 20) const {
    run_device_ranks(GetParam(), size, rank_main, timeout_s);
  }
};
INSTANTIATE_TEST_SUITE_P(Device, DeviceTransports,
                         ::testing::Values(DeviceTransport::kCopyEngine, DeviceTransport::kNccl),
                         [](const auto& param_info) { return name_of(param_info.param); });

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
      landed.emplace_back(static_cast<size_t>(pass->landing(0, 0).rows * pass->landing(0, 0).row_bytes()));
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
      for (int stage = 0; stage < 2; ++stage) pass->wait_cast(stage, stream);
      for (int t = 0; t < 2; ++t) {
        const TensorView landing = pass->landing(t, slot);
        check(
            cudaMemcpyAsync(landed[static_cast<size_t>(2 * epoch + t)].as<void>(), landing.data,
                            static_cast<size_t>(landing.rows * landing.row_bytes()), cudaMemcpyDeviceToDevice, stream),
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
      TensorView landing = pass->landing(0, 0);
      landing.data = landed[static_cast<size_t>(i)].as<void>();
      expect_landed(to_host(landing), pass_data.spec.casts, i, "landed");
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
    data.spec.landing.clear();
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
    pass->finish_reduce(own, sums, stream);
    pass->end(stream);
    stream.synchronize();
    comm.check();
    for (int t = 0; t < 2; ++t) {
      const HostTensor got = to_host(sums[t]);
      const HostTensor expected = expected_sums(data, comm.rank(), size, t, reduce_dtype, got.dtype());
      for (int64_t row = 0; row < got.rows(); ++row) {
        // The same terms in the same order: bitwise equal.
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

/// A ring: every rank sends all its rows to the next, in one stretch, so that copy engines move them.
DevicePassSpec ring_spec(int rank, int size, int64_t rows, const char* label) {
  DevicePassSpec spec;
  spec.label = label;
  const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
  spec.casts = {{{{next, {0, rows}, 0}}, {{previous, {0, rows}, 0}}}};
  spec.landing = {{rows, kHeads, kDim, DType::kFloat32}};
  return spec;
}

/// Two ranks.
void expect_large_stretches_whole(DeviceCommunicator& comm) {
  constexpr int kSize = 2, kEpochs = 20;
  constexpr int64_t kRows = 1 << 16;  // 4 MiB
  const auto pass = comm.prepare_pass(ring_spec(comm.rank(), kSize, kRows, "ring"));
  const Stream stream;
  const DeviceBuffer source(kRows * kHeads * kDim * 4), landed(kRows * kHeads * kDim * 4 * 2);
  const DeviceBuffer bad = DeviceBuffer::zeros(8);
  HostTensor shape(DType::kFloat32, kRows, kHeads, kDim);
  std::vector<HostTensor> got;
  comm.control().barrier("allocated");
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    check(cudaMemsetAsync(source.as<void>(), 16 * comm.rank() + epoch % 16, source.bytes(), stream), "memset");
    const int slot = pass->begin(stream);
    const ConstTensorView sources[] = {view_of(source, shape)};
    pass->cast(0, sources, stream);
    pass->wait_cast(0, stream);
    if (epoch >= kEpochs - 2) {
      check(cudaMemcpyAsync(landed.as<char>() + (epoch % 2) * source.bytes(), pass->landing(0, slot).data,
                            source.bytes(), cudaMemcpyDeviceToDevice, stream),
            "copy");
    }
    pass->end(stream);
  }
  stream.synchronize();
  comm.check();
  std::vector<unsigned char> bytes(landed.bytes());
  check(cudaMemcpy(bytes.data(), landed.as<void>(), bytes.size(), cudaMemcpyDeviceToHost), "copy");
  for (const int epoch : {kEpochs - 2, kEpochs - 1}) {
    const auto begin = bytes.begin() + static_cast<ptrdiff_t>((epoch % 2) * source.bytes());
    const auto expected = static_cast<unsigned char>(16 * (1 - comm.rank()) + epoch % 16);
    EXPECT_EQ(std::count(begin, begin + static_cast<ptrdiff_t>(source.bytes()), expected), std::ssize(bytes) / 2);
  }
  comm.control().barrier("done");
}

TEST_P(DeviceTransports, LargeStretchesArriveWholeManyEpochsAhead) {
  if (!can_run(GetParam(), 2)) GTEST_SKIP() << "needs a GPU for each rank";
  run(2, expect_large_stretches_whole);
}

TEST(BatchedCopies, LargeStretchesArriveWholeManyEpochsAhead) {
  run_local_ranks(
      2,
      [](Communicator& control) {
        check(cudaSetDevice(control.rank() % num_gpus()), "cudaSetDevice");
        DeviceCommunicatorConfig config;
        config.timeout_s = 20;
        config.batch_copies = true;
        expect_large_stretches_whole(*make_device_communicator(control, config));
      },
      60);
}

TEST_P(DeviceTransports, KeptSlotsStayUntilAnotherPassTakesThem) {
  if (!can_run(GetParam(), 2)) GTEST_SKIP() << "needs a GPU for each rank";
  constexpr int kSize = 2;
  constexpr int64_t kRows = 64;
  run(kSize, [&](DeviceCommunicator& comm) {
    DevicePassSpec spec = ring_spec(comm.rank(), kSize, kRows, "forward");
    spec.num_slots = 3;
    const auto forward = comm.prepare_pass(spec);
    DevicePassSpec backward_spec;
    backward_spec.label = "backward";
    backward_spec.landing = spec.landing;
    backward_spec.landing_of = forward;
    const auto backward = comm.prepare_pass(backward_spec);
    const Stream stream;
    const HostTensor shape(DType::kFloat32, kRows, kHeads, kDim);
    std::vector<DeviceBuffer> sources;
    for (int i = 0; i < 3; ++i) {
      sources.push_back(to_device(make_filled(DType::kFloat32, kRows, kHeads, kDim, comm.rank(), i)));
    }
    comm.control().barrier("allocated");
    std::vector<KeptSlot> kept;
    for (int layer = 0; layer < 2; ++layer) {
      forward->begin(stream);
      const ConstTensorView views[] = {view_of(sources[static_cast<size_t>(layer)], shape)};
      forward->cast(0, views, stream);
      forward->wait_cast(0, stream);
      kept.push_back(forward->end_kept(stream));
    }
    for (int i = 0; i < 3; ++i) {  // the last free slot, over and over
      EXPECT_EQ(forward->begin(stream), 2);
      const ConstTensorView views[] = {view_of(sources[2], shape)};
      forward->cast(0, views, stream);
      forward->wait_cast(0, stream);
      forward->end(stream);
    }
    for (const int layer : {1, 0}) {
      const int slot = backward->begin_kept(kept[static_cast<size_t>(layer)], stream);
      stream.synchronize();
      const HostTensor got = to_host(backward->landing(0, slot));
      for (int64_t row = 0; row < kRows; ++row) {
        ASSERT_EQ(got.at(row, 1, 3), element_value(1 - comm.rank(), layer, row, 1, 3)) << "layer " << layer;
      }
      backward->end(stream);
    }
    EXPECT_THROW(backward->begin_kept(kept[0], stream), InvalidArgument);
    stream.synchronize();
    comm.check();
    comm.control().barrier("done");
  });
}

TEST_P(DeviceTransports, EpochsCanBeCapturedAndReplayed) {
  if (!can_run(GetParam(), 2)) GTEST_SKIP() << "needs a GPU for each rank";
  constexpr int kSize = 2, kReplays = 5;
  constexpr int64_t kRows = 4096;
  run(kSize, [&](DeviceCommunicator& comm) {
    const auto pass = comm.prepare_pass(ring_spec(comm.rank(), kSize, kRows, "ring"));
    const Stream stream;
    const HostTensor shape(DType::kFloat32, kRows, kHeads, kDim);
    const DeviceBuffer source(static_cast<size_t>(shape.bytes())), landed(static_cast<size_t>(shape.bytes()));
    std::vector<HostTensor> hosts;
    for (int i = 0; i < kReplays; ++i) {
      hosts.push_back(make_filled(DType::kFloat32, kRows, kHeads, kDim, comm.rank(), i));
    }
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin capture");
    const int slot = pass->begin(stream);
    const ConstTensorView sources[] = {view_of(source, shape)};
    pass->cast(0, sources, stream);
    pass->wait_cast(0, stream);
    check(cudaMemcpyAsync(landed.as<void>(), pass->landing(0, slot).data, landed.bytes(), cudaMemcpyDeviceToDevice,
                          stream),
          "copy");
    pass->end(stream);
    check(cudaStreamEndCapture(stream, &graph), "end capture");
    check(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
    check(cudaGraphUpload(executable, stream), "upload");
    stream.synchronize();
    comm.control().barrier("captured");
    for (int i = 0; i < kReplays; ++i) {
      check(cudaMemcpyAsync(source.as<void>(), hosts[static_cast<size_t>(i)].view().data, source.bytes(),
                            cudaMemcpyHostToDevice, stream),
            "copy");
      check(cudaGraphLaunch(executable, stream), "launch");
      stream.synchronize();
      const HostTensor got = to_host(view_of(landed, shape));
      for (int64_t row = 0; row < kRows; row += 17) {
        ASSERT_EQ(got.at(row, 1, 3), element_value(1 - comm.rank(), i, row, 1, 3)) << "replay " << i;
      }
      // An eager epoch between replays takes part in the same sequence.
      pass->begin(stream);
      pass->cast(0, sources, stream);
      pass->end(stream);
    }
    stream.synchronize();
    comm.check();
    comm.control().barrier("done");
    check(cudaGraphExecDestroy(executable), "destroy");
    check(cudaGraphDestroy(graph), "destroy");
  });
}

TEST_P(DeviceTransports, SumsAndMaximaOverRanks) {
  for (const int size : {1, 2, 4}) {
    if (!can_run(GetParam(), size)) continue;
    run(size, [&](DeviceCommunicator& comm) {
      constexpr int kCount = 1000;
      const Stream stream;
      const DeviceBuffer values(kCount * sizeof(float));
      std::vector<float> host(kCount);
      comm.control().barrier("allocated");
      for (int round = 0; round < 5; ++round) {
        const ReduceOp op = round % 2 == 0 ? ReduceOp::kSum : ReduceOp::kMax;
        const auto value = [&](int rank, int i) { return static_cast<float>((rank * 7 + i * (round + 1)) % 23 - 11); };
        for (int i = 0; i < kCount; ++i) host[static_cast<size_t>(i)] = value(comm.rank(), i);
        check(cudaMemcpyAsync(values.as<void>(), host.data(), values.bytes(), cudaMemcpyHostToDevice, stream), "copy");
        // Ranks on one GPU share its copy engines, where a copy that waits for a kernel would hold up the others'.
        stream.synchronize();
        comm.control().barrier("copied");
        comm.all_reduce(values.as<float>(), kCount, op, stream);
        stream.synchronize();
        check(cudaMemcpyAsync(host.data(), values.as<void>(), values.bytes(), cudaMemcpyDeviceToHost, stream), "copy");
        stream.synchronize();
        for (int i = 0; i < kCount; ++i) {
          float expected = value(0, i);
          for (int rank = 1; rank < size; ++rank) {
            expected = op == ReduceOp::kSum ? expected + value(rank, i) : std::max(expected, value(rank, i));
          }
          ASSERT_EQ(host[static_cast<size_t>(i)], expected) << "round " << round << ", value " << i;
        }
      }
      comm.check();
      comm.control().barrier("done");
    });
  }
}

/// The error of `comm.check()`, empty when it passes.
template <class Error>
std::string check_error(DeviceCommunicator& comm) {
  try {
    comm.check();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST_P(DeviceTransports, RankThatDoesNotCastIsNamedAndTheContextStaysUsable) {
  if (!can_run(GetParam(), 3)) GTEST_SKIP() << "needs a GPU for each rank";
  constexpr int kSize = 3;
  constexpr int64_t kRows = 64;
  run(
      kSize,
      [&](DeviceCommunicator& comm) {
        const auto pass = comm.prepare_pass(ring_spec(comm.rank(), kSize, kRows, "forward"));
        const Stream stream;
        const HostTensor shape(DType::kFloat32, kRows, kHeads, kDim);
        const DeviceBuffer source = DeviceBuffer::zeros(static_cast<size_t>(shape.bytes()));
        comm.control().barrier("allocated");
        if (comm.rank() != 1) {
          pass->begin(stream);
          const ConstTensorView sources[] = {view_of(source, shape)};
          pass->cast(0, sources, stream);
          pass->wait_cast(0, stream);
          pass->end(stream);
          stream.synchronize();
        }
        comm.control().barrier("waited");
        if (comm.rank() != 1) {
          const std::string text = check_error<Timeout>(comm);
          EXPECT_THAT(text, HasSubstr("group_cast 'forward' stage 0: rank 1 did not take part within 0.5 s"));
          EXPECT_THROW(pass->begin(stream), Timeout);
        }
        // No sticky error: the device still works.
        check(cudaMemset(source.as<void>(), 1, source.bytes()), "memset");
        check(cudaDeviceSynchronize(), "synchronize");
        comm.control().barrier("done");
      },
      0.5);
}

TEST_P(DeviceTransports, RanksThatBeginDifferentPassesAreToldSo) {
  if (!can_run(GetParam(), 2)) GTEST_SKIP() << "needs a GPU for each rank";
  constexpr int kSize = 2;
  run(
      kSize,
      [&](DeviceCommunicator& comm) {
        const auto forward = comm.prepare_pass(ring_spec(comm.rank(), kSize, 64, "forward"));
        const auto backward = comm.prepare_pass(ring_spec(comm.rank(), kSize, 64, "backward"));
        const Stream stream;
        const HostTensor shape(DType::kFloat32, 64, kHeads, kDim);
        const DeviceBuffer source = DeviceBuffer::zeros(static_cast<size_t>(shape.bytes()));
        comm.control().barrier("allocated");
        DevicePass& pass = comm.rank() == 0 ? *forward : *backward;
        pass.begin(stream);
        const ConstTensorView sources[] = {view_of(source, shape)};
        pass.cast(0, sources, stream);
        pass.wait_cast(0, stream);
        pass.end(stream);
        stream.synchronize();
        comm.control().barrier("waited");
        EXPECT_THAT(check_error<CommError>(comm), HasSubstr("all ranks must begin the same passes in the same order"));
        comm.control().barrier("done");
      },
      5);
}

TEST_P(DeviceTransports, HostThatGivesUpEndsTheWaitsOfItsPeers) {
  if (!can_run(GetParam(), 2)) GTEST_SKIP() << "needs a GPU for each rank";
  constexpr int kSize = 2;
  run(
      kSize,
      [&](DeviceCommunicator& comm) {
        const auto pass = comm.prepare_pass(ring_spec(comm.rank(), kSize, 64, "forward"));
        const Stream stream;
        const HostTensor shape(DType::kFloat32, 64, kHeads, kDim);
        const DeviceBuffer source = DeviceBuffer::zeros(static_cast<size_t>(shape.bytes()));
        comm.control().barrier("allocated");
        if (comm.rank() == 0) {
          pass->begin(stream);
          const ConstTensorView sources[] = {view_of(source, shape)};
          pass->cast(0, sources, stream);
          pass->wait_cast(0, stream);
          pass->end(stream);
          comm.abort("no luck");
          stream.synchronize();  // long before the deadline
        }
        comm.control().barrier("given up");
        EXPECT_THAT(check_error<CommError>(comm), HasSubstr("rank 0 gave up: no luck"));
        comm.control().barrier("done");
      },
      600);
}

TEST_P(DeviceTransports, WrongTensorsAreRefusedBeforeAnythingIsEnqueued) {
  if (!can_run(GetParam(), 2)) GTEST_SKIP() << "needs a GPU for each rank";
  run(2, [&](DeviceCommunicator& comm) {
    const auto pass = comm.prepare_pass(ring_spec(comm.rank(), 2, 64, "forward"));
    const Stream stream;
    const HostTensor small(DType::kFloat32, 63, kHeads, kDim), half(DType::kBFloat16, 64, kHeads, kDim);
    const HostTensor good(DType::kFloat32, 64, kHeads, kDim);
    const DeviceBuffer buffer = DeviceBuffer::zeros(static_cast<size_t>(good.bytes()));
    const ConstTensorView views[] = {view_of(buffer, good)};
    EXPECT_THROW(pass->cast(0, views, stream), InvalidArgument);
    EXPECT_THROW(pass->landing(1, 0), InvalidArgument);
    pass->begin(stream);
    EXPECT_THROW(pass->begin(stream), InvalidArgument);
    const ConstTensorView too_small[] = {view_of(buffer, small)}, wrong_dtype[] = {view_of(buffer, half)};
    EXPECT_THROW(pass->cast(0, too_small, stream), InvalidArgument);
    EXPECT_THROW(pass->cast(0, wrong_dtype, stream), InvalidArgument);
    EXPECT_THROW(pass->cast(0, {}, stream), InvalidArgument);
    EXPECT_THROW(pass->wait_cast(0, stream), InvalidArgument);
    EXPECT_THROW(pass->end(stream), InvalidArgument);
    pass->cast(0, views, stream);
    pass->wait_cast(0, stream);
    pass->end(stream);
    stream.synchronize();
    comm.check();
    comm.control().barrier("done");
  });
}

}  // namespace
}  // namespace tangram
