// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Device transports: many epochs, kept slots, graphs, and sums over ranks.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "comm/device/device_ranks.hpp"
#include "tangram/error.hpp"

namespace tangram {
namespace {

using testing::can_run;
using testing::check;
using testing::DeviceBuffer;
using testing::DeviceTransports;
using testing::element_value;
using testing::kDim;
using testing::kHeads;
using testing::make_filled;
using testing::name_of;
using testing::num_gpus;
using testing::ring_spec;
using testing::Stream;
using testing::to_device;
using testing::to_host;
using testing::view_of;

INSTANTIATE_TEST_SUITE_P(Device, DeviceTransports,
                         ::testing::Values(DeviceTransport::kCopyEngine, DeviceTransport::kNccl),
                         [](const auto& param_info) { return name_of(param_info.param); });

/// Two ranks.
void expect_large_local_ranges_whole(DeviceCommunicator& comm) {
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
    pass->wait_group_cast(0, stream);
    if (epoch >= kEpochs - 2) {
      check(cudaMemcpyAsync(landed.as<char>() + (epoch % 2) * source.bytes(), pass->recv_buffers(0, slot).data,
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

TEST_P(DeviceTransports, LargeLocalRangesArriveWholeManyEpochsAhead) {
  if (!can_run(GetParam(), 2)) GTEST_SKIP() << "needs a GPU for each rank";
  run(2, expect_large_local_ranges_whole);
}

TEST(CopiesOneByOne, LargeLocalRangesArriveWholeManyEpochsAhead) {
  run_local_ranks(
      2,
      [](Communicator& control) {
        check(cudaSetDevice(control.rank() % num_gpus()), "cudaSetDevice");
        DeviceCommunicatorConfig config;
        config.timeout_s = 20;
        config.batch_copies = false;
        expect_large_local_ranges_whole(*make_device_communicator(control, config));
      },
      60);
}

/// What a program may have under way on streams of its own: copies out of and into the device, and kernels. All of it
/// ends by itself.
class OtherWork {
 public:
  OtherWork() : memory_(2 * kBytes) { check(cudaHostAlloc(&host_, 2 * kBytes, cudaHostAllocDefault), "cudaHostAlloc"); }
  ~OtherWork() { static_cast<void>(cudaFreeHost(host_)); }
  void enqueue() {
    char* const host = static_cast<char*>(host_);
    check(cudaMemcpyAsync(host, memory_.as<char>(), kBytes, cudaMemcpyDeviceToHost, out_), "copy");
    check(cudaMemcpyAsync(memory_.as<char>() + kBytes, host + kBytes, kBytes, cudaMemcpyHostToDevice, in_), "copy");
    check(cudaMemsetAsync(memory_.as<char>(), 1, kBytes, kernels_), "memset");
  }
  void synchronize() const {
    for (const Stream* stream : {&out_, &in_, &kernels_}) stream->synchronize();
  }

 private:
  static constexpr size_t kBytes = size_t{16} << 20;
  DeviceBuffer memory_;
  void* host_ = nullptr;
  Stream out_, in_, kernels_;
};

TEST_P(DeviceTransports, RowsArriveBesideOtherWork) {
  if (num_gpus() < 2) GTEST_SKIP() << "needs a GPU for each rank, whose queues other ranks do not fill";
  constexpr int kSize = 2, kEpochs = 80, kPieces = 4;
  constexpr int64_t kPieceRows = 1 << 14, kGap = 16;  // 1 MiB, apart where they land, so that nothing merges them
  run(kSize, [&](DeviceCommunicator& comm) {
    const int peer = 1 - comm.rank();
    DevicePassSpec spec = ring_spec(comm.rank(), kSize, kPieces * (kPieceRows + kGap), "pieces");
    spec.casts = {{}};
    for (int64_t piece = 0; piece < kPieces; ++piece) {
      const int64_t from = piece * kPieceRows, to = piece * (kPieceRows + kGap);
      spec.casts[0].sends.push_back({peer, {from, from + kPieceRows}, to});
      spec.casts[0].recvs.push_back({peer, {to, to + kPieceRows}, from});
    }
    const auto pass = comm.prepare_pass(spec);
    const Stream stream;
    const HostTensor shape(DType::kFloat32, kPieces * kPieceRows, kHeads, kDim);
    const auto bytes = static_cast<size_t>(shape.bytes()), piece_bytes = bytes / kPieces;
    const size_t row_bytes = kHeads * kDim * sizeof(float);
    const DeviceBuffer source(bytes), landed(kEpochs * bytes);
    OtherWork other;
    const auto value_of = [](int epoch, size_t piece, int rank) {
      return static_cast<unsigned char>(2 * epoch + 13 * static_cast<int>(piece) + rank);
    };
    comm.control().barrier("allocated");
    for (int epoch = 0; epoch < kEpochs; ++epoch) {
      for (size_t piece = 0; piece < kPieces; ++piece) {
        check(cudaMemsetAsync(source.as<char>() + piece * piece_bytes, value_of(epoch, piece, comm.rank()), piece_bytes,
                              stream),
              "memset");
      }
      const int slot = pass->begin(stream);
      const ConstTensorView sources[] = {view_of(source, shape)};
      pass->cast(0, sources, stream);
      other.enqueue();
      pass->wait_group_cast(0, stream);
      const auto* const recv_buffers = static_cast<const char*>(pass->recv_buffers(0, slot).data);
      check(cudaMemcpy2DAsync(landed.as<char>() + static_cast<size_t>(epoch) * bytes, piece_bytes, recv_buffers,
                              piece_bytes + kGap * row_bytes, piece_bytes, kPieces, cudaMemcpyDeviceToDevice, stream),
            "copy");
      pass->end(stream);
    }
    stream.synchronize();
    comm.check();
    other.synchronize();
    std::vector<unsigned char> got(piece_bytes);
    for (size_t i = 0; i < kEpochs * kPieces; ++i) {
      check(cudaMemcpy(got.data(), landed.as<char>() + i * piece_bytes, piece_bytes, cudaMemcpyDeviceToHost), "copy");
      const int epoch = static_cast<int>(i / kPieces);
      ASSERT_EQ(std::count(got.begin(), got.end(), value_of(epoch, i % kPieces, peer)), std::ssize(got))
          << "epoch " << epoch;
    }
    comm.control().barrier("done");
  });
}

TEST_P(DeviceTransports, BeginCopiesOwnRowsBesideThoseOfPeers) {
  if (!can_run(GetParam(), 2)) GTEST_SKIP() << "needs a GPU for each rank";
  constexpr int kSize = 2;
  constexpr int64_t kRows = 64;
  run(kSize, [&](DeviceCommunicator& comm) {
    DevicePassSpec spec = ring_spec(comm.rank(), kSize, kRows, "own");
    spec.recv_buffers[0].rows = kRows + 40;
    spec.own_rows = {{{kRows, kRows + 30}, 5}, {{kRows + 30, kRows + 40}, 50}};
    const auto pass = comm.prepare_pass(spec);
    const Stream stream;
    const HostTensor source = make_filled(DType::kFloat32, kRows, kHeads, kDim, comm.rank(), 0);
    const DeviceBuffer memory = to_device(source);
    const ConstTensorView views[] = {view_of(memory, source)};
    comm.control().barrier("allocated");
    const int slot = pass->begin(views, stream);
    pass->cast(0, views, stream);
    pass->wait_group_cast(0, stream);
    stream.synchronize();
    comm.check();
    const HostTensor got = to_host(pass->recv_buffers(0, slot));
    for (int64_t row = 0; row < kRows + 40; ++row) {
      const int owner = row < kRows ? 1 - comm.rank() : comm.rank();
      const int64_t owner_row = row < kRows ? row : row < kRows + 30 ? row - kRows + 5 : row - kRows - 30 + 50;
      ASSERT_EQ(got.at(row, 1, 3), element_value(owner, 0, owner_row, 1, 3)) << "row " << row;
    }
    pass->end(stream);
    stream.synchronize();
    comm.control().barrier("done");
  });
}

// Over NCCL each pass owned its receive buffers: a gigabyte a mask, which no bound of caches counted.
TEST_P(DeviceTransports, PassesThatShareMemoryTakeTurnsInIt) {
  if (!can_run(GetParam(), 2)) GTEST_SKIP() << "needs a GPU for each rank";
  constexpr int kSize = 2, kPasses = 4, kEpochs = 12;
  constexpr int64_t kMostRows = 4096;
  run(kSize, [&](DeviceCommunicator& comm) {
    const Stream stream;
    const HostTensor shape(DType::kFloat32, kMostRows, kHeads, kDim);
    const DeviceBuffer source(static_cast<size_t>(shape.bytes()));
    std::vector<DeviceBuffer> landed(kEpochs);
    for (DeviceBuffer& rows : landed) rows = DeviceBuffer(static_cast<size_t>(shape.bytes()));
    std::vector<std::shared_ptr<DevicePass>> passes;
    std::vector<int64_t> rows_of;
    int64_t shared_bytes = 0;
    for (int i = 0; i < kPasses; ++i) {  // the largest first: what comes after it finds room
      rows_of.push_back(kMostRows - 512 * i);
      DevicePassSpec spec = ring_spec(comm.rank(), kSize, rows_of.back(), "shared");
      spec.shares_memory = true;
      passes.push_back(comm.prepare_pass(spec));
      EXPECT_EQ(passes.back()->own_bytes(), 0);
      if (i == 0) shared_bytes = comm.shared_bytes();
      EXPECT_EQ(comm.shared_bytes(), shared_bytes);
    }
    EXPECT_GE(shared_bytes, shape.bytes());
    comm.control().barrier("allocated");
    const auto value_of = [](int epoch, int rank) { return 3 * epoch + rank + 1; };
    for (int epoch = 0; epoch < kEpochs; ++epoch) {
      const auto i = static_cast<size_t>(epoch % kPasses);
      HostTensor rows(DType::kFloat32, rows_of[i], kHeads, kDim);
      check(cudaMemsetAsync(source.as<char>(), value_of(epoch, comm.rank()), source.bytes(), stream), "memset");
      const int slot = passes[i]->begin(stream);
      const ConstTensorView sources[] = {view_of(source, rows)};
      passes[i]->cast(0, sources, stream);
      passes[i]->wait_group_cast(0, stream);
      check(cudaMemcpyAsync(landed[static_cast<size_t>(epoch)].as<char>(), passes[i]->recv_buffers(0, slot).data,
                            static_cast<size_t>(rows.bytes()), cudaMemcpyDeviceToDevice, stream),
            "copy");
      passes[i]->end(stream);
    }
    stream.synchronize();
    comm.check();
    for (int epoch = 0; epoch < kEpochs; ++epoch) {
      const size_t count = static_cast<size_t>(rows_of[static_cast<size_t>(epoch % kPasses)]) * kHeads * kDim * 4;
      std::vector<unsigned char> got(count);
      check(cudaMemcpy(got.data(), landed[static_cast<size_t>(epoch)].as<char>(), count, cudaMemcpyDeviceToHost),
            "copy");
      const auto expected = static_cast<unsigned char>(value_of(epoch, 1 - comm.rank()));
      EXPECT_EQ(std::ranges::count(got, expected), static_cast<std::ptrdiff_t>(count)) << "epoch " << epoch;
    }
    comm.control().barrier("done");
  });
}

TEST_P(DeviceTransports, RowsThatAreLeftKeepWhatTheCallerWrote) {
  if (!can_run(GetParam(), 2)) GTEST_SKIP() << "needs a GPU for each rank";
  constexpr int kSize = 2;
  constexpr int64_t kRows = 64, kReturned = 32;
  run(kSize, [&](DeviceCommunicator& comm) {
    DevicePassSpec spec = ring_spec(comm.rank(), kSize, kReturned, "left");
    spec.reduces = spec.casts;
    spec.casts.clear();
    spec.recv_buffers.clear();
    spec.returns = {{kReturned, kRows, kHeads, kDim, DType::kFloat32, DType::kFloat32}};
    const auto pass = comm.prepare_pass(spec);
    const std::vector<Range> unseen = {{kReturned, kRows}}, returned = {{kReturned - 1, kRows}};
    const std::vector<Range> absent = {{3, 5}, {10, 11}};  // without an own part
    const bool leaves = pass->leave_rows(unseen, absent);
    EXPECT_EQ(leaves, GetParam() == DeviceTransport::kCopyEngine);
    if (leaves) {
      EXPECT_THROW(pass->leave_rows(returned), InvalidArgument);
    }
    const Stream stream;
    const auto filled = [](int64_t rows, float value) {
      HostTensor host(DType::kFloat32, rows, kHeads, kDim);
      host.fill(value);
      return host;
    };
    const HostTensor partial = filled(kReturned, 2), before = filled(kRows, 7);
    HostTensor own = filled(kRows, 1);
    const auto is_absent = [&](int64_t row) {
      return leaves && std::ranges::any_of(absent, [&](const Range& r) { return row >= r.begin && row < r.end; });
    };
    const auto row_elements = static_cast<int64_t>(kHeads) * kDim;
    for (int64_t row = 0; row < kRows; ++row) {
      if (is_absent(row)) std::fill_n(own.data<float>() + row * row_elements, row_elements, std::nanf(""));
    }
    const DeviceBuffer partial_memory = to_device(partial), own_memory = to_device(own), sum_memory = to_device(before);
    comm.control().barrier("allocated");
    pass->begin(stream);
    const ConstTensorView partials[] = {view_of(partial_memory, partial)}, owned[] = {view_of(own_memory, own)};
    const TensorView sums[] = {view_of(sum_memory, before)};
    pass->reduce(0, partials, stream);
    pass->finish_reduce_and_end(owned, sums, stream);
    stream.synchronize();
    comm.check();
    const HostTensor got = to_host(sums[0]);
    for (int64_t row = 0; row < kRows; ++row) {
      ASSERT_EQ(got.at(row, 1, 3), is_absent(row) ? 2 : row < kReturned ? 3 : leaves ? 7 : 1) << "row " << row;
    }
    comm.control().barrier("done");
  });
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
    backward_spec.recv_buffers = spec.recv_buffers;
    backward_spec.recv_buffers_of = forward;
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
      forward->wait_group_cast(0, stream);
      kept.push_back(forward->end_kept(stream));
    }
    for (int i = 0; i < 3; ++i) {  // the last free slot, over and over
      EXPECT_EQ(forward->begin(stream), 2);
      const ConstTensorView views[] = {view_of(sources[2], shape)};
      forward->cast(0, views, stream);
      forward->wait_group_cast(0, stream);
      forward->end(stream);
    }
    for (const int layer : {1, 0}) {
      const int slot = backward->begin_kept(kept[static_cast<size_t>(layer)], stream);
      stream.synchronize();
      const HostTensor got = to_host(backward->recv_buffers(0, slot));
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

/// Two ranks: rank 0 is epochs ahead if nothing keeps it back. CTest runs this with a single hardware queue, where the
/// casts of rank 1 come behind work of rank 0 that waits for them.
void expect_epochs_of_slow_casts(DeviceCommunicator& comm) {
  constexpr int kEpochs = 3, kStages = 40;
  constexpr int64_t kRows = 2 * kStages;  // every other one is sent
  const int peer = 1 - comm.rank();
  DevicePassSpec spec = ring_spec(comm.rank(), 2, kRows, "slow casts");
  spec.casts.assign(kStages, {});
  for (int64_t row = 0; row < kRows; row += 2) {
    Exchange& stage = spec.casts[static_cast<size_t>(row / 2)];
    stage.sends.push_back({peer, {row, row + 1}, row});
    stage.recvs.push_back({peer, {row, row + 1}, row});
  }
  const auto pass = comm.prepare_pass(spec);
  const Stream stream;
  const HostTensor own = make_filled(DType::kFloat32, kRows, kHeads, kDim, comm.rank(), 0);
  const DeviceBuffer source = to_device(own), landed(kEpochs * source.bytes());
  comm.control().barrier("allocated");
  const auto rest = [&](std::chrono::microseconds time) {
    if (comm.rank() == 1) std::this_thread::sleep_for(time);
  };
  rest(std::chrono::milliseconds(20));
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    const int slot = pass->begin(stream);
    const ConstTensorView sources[] = {view_of(source, own)};
    for (int stage = 0; stage < kStages; ++stage) {
      rest(std::chrono::microseconds(300));
      pass->cast(stage, sources, stream);
    }
    for (int stage = 0; stage < kStages; ++stage) pass->wait_group_cast(stage, stream);
    check(cudaMemcpyAsync(landed.as<char>() + static_cast<size_t>(epoch) * source.bytes(),
                          pass->recv_buffers(0, slot).data, source.bytes(), cudaMemcpyDeviceToDevice, stream),
          "copy");
    pass->end(stream);
  }
  stream.synchronize();
  comm.check();
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    TensorView view = view_of(landed, own);
    view.data = landed.as<char>() + static_cast<size_t>(epoch) * source.bytes();
    const HostTensor got = to_host(view);
    for (int64_t row = 0; row < kRows; row += 2) {
      ASSERT_EQ(got.at(row, 1, 3), element_value(peer, 0, row, 1, 3)) << "epoch " << epoch;
    }
  }
  comm.control().barrier("done");
}

TEST(Lockstep, RanksThatShareAGpuDoNotHoldEachOtherUp) {
  run_local_ranks(
      2,
      [](Communicator& control) {
        check(cudaSetDevice(0), "cudaSetDevice");
        expect_epochs_of_slow_casts(
            *make_device_communicator(control, {.timeout_s = 5, .batch_copies = false, .lockstep = true}));
      },
      60);
}

TEST_P(DeviceTransports, EpochsCanBeCapturedAndReplayed) {
  if (num_gpus() < 2) GTEST_SKIP() << "needs a GPU for each rank";
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
    pass->wait_group_cast(0, stream);
    check(cudaMemcpyAsync(landed.as<void>(), pass->recv_buffers(0, slot).data, landed.bytes(), cudaMemcpyDeviceToDevice,
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

}  // namespace
}  // namespace tangram
