// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Passes over two levels, over host memory: what comes where, what is added, and what crosses between nodes.
#include "comm/nodes/node_communicator.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <set>

#include "comm/device/host_memory_device.hpp"
#include "comm/device/pass_check.hpp"
#include "comm/exchange_tables.hpp"
#include "tangram/error.hpp"
#include "tangram/local_group.hpp"

namespace tangram::comm {
namespace {

using testing::element_value;
using ::testing::HasSubstr;
using testing::HostMemoryDevice;
using testing::make_filled;
using testing::make_random_exchange;
using testing::RandomExchange;

constexpr int kHeads = 2;
constexpr int kDim = 4;
constexpr int kTensors = 2;
constexpr double kTimeout_s = 30;

thread_local int64_t testing_free_bytes = int64_t{1} << 40;

/// Everything happens when it is called, so that streams and points on them mean nothing.
class HostNodeWork final : public NodeWork {
 public:
  void* relay_stream() override { return nullptr; }
  std::shared_ptr<void> zeros(size_t num_bytes) override {
    if (num_bytes == 0) return nullptr;  // as memory of a device
    return std::shared_ptr<char[]>(new char[num_bytes]());
  }
  std::shared_ptr<void> shared(size_t which, size_t num_bytes) override {
    auto& [memory, bytes] = shared_.at(which);
    if (bytes < num_bytes) {
      memory = std::shared_ptr<char[]>(new char[num_bytes]);
      std::memset(memory.get(), 0xff, num_bytes);  // NaN: what others left
      bytes = num_bytes;
    }
    return memory;
  }
  int64_t shared_bytes() const override { return 0; }
  int64_t free_bytes() const override { return testing_free_bytes; }
  bool is_captured(void* stream) override { return stream != nullptr; }
  std::unique_ptr<Moves> make_moves(const std::vector<Chunk>& chunks,
                                    const std::vector<std::vector<char*>>& bases) override {
    return std::make_unique<HostMoves>(chunks, bases);
  }
  std::unique_ptr<Mark> make_mark() override { return std::make_unique<HostMark>(); }

 private:
  std::array<std::pair<std::shared_ptr<char[]>, size_t>, kNumShared> shared_;

  class HostMoves final : public Moves {
   public:
    HostMoves(const std::vector<Chunk>& chunks, const std::vector<std::vector<char*>>& bases)
        : chunks_(chunks), bases_(bases) {}
    void run(std::span<const ConstTensorView> sources, size_t set, void*) override {
      for (const Chunk& chunk : chunks_) {
        const char* from = static_cast<const char*>(sources[static_cast<size_t>(chunk.tensor)].data) + chunk.from;
        std::memcpy(bases_.at(set).at(static_cast<size_t>(chunk.peer)) + chunk.to, from,
                    static_cast<size_t>(chunk.num_bytes));
      }
    }

   private:
    const std::vector<Chunk> chunks_;
    const std::vector<std::vector<char*>> bases_;
  };
  class HostMark final : public Mark {
    void set(void*) override {}
    void wait(void*) override {}
  };
};

/// The groups of the levels, alike for all ranks.
struct Groups {
  explicit Groups(const NodeLayout& layout) : nodes(layout) {
    for (int n = 0; n < nodes.num_nodes(); ++n) inside.emplace_back(nodes.ranks_per_node, kTimeout_s);
    for (int p = 0; p < nodes.ranks_per_node; ++p) across.emplace_back(nodes.num_nodes(), kTimeout_s);
  }
  NodeCommunicator::Levels levels(int rank) {
    const int node = nodes.node_of(rank), caller = nodes.place_of(rank);
    NodeCommunicator::Levels levels;
    levels.node = std::make_unique<HostMemoryDevice>(inside[static_cast<size_t>(node)].communicator(caller));
    levels.across = std::make_unique<HostMemoryDevice>(across[static_cast<size_t>(caller)].communicator(node),
                                                       RecvBufferReuse::kInOrder);
    levels.work = std::make_shared<HostNodeWork>();
    return levels;
  }

  const NodeLayout nodes;
  std::vector<LocalGroup> inside, across;
};

void run_ranks(const NodeLayout& nodes, const std::function<void(DeviceCommunicator&)>& rank_main) {
  Groups groups(nodes);
  run_local_ranks(
      nodes.num_ranks,
      [&](Communicator& world) {
        NodeCommunicator communicator(world, nodes, groups.levels(world.rank()));
        rank_main(communicator);
      },
      kTimeout_s);
}

/// A pass over random tables: the rows of a stage land behind those of earlier ones.
struct PassData {
  PassData(int size, uint64_t seed) : buffer_rows_(static_cast<size_t>(size), 0) {
    for (const uint64_t more : {0, 99}) {
      const RandomExchange random = make_random_exchange(size, seed + more);
      shard_rows = std::max(shard_rows, random.shard_rows);
      std::vector<Exchange>& ranks = tables.emplace_back(random.ranks);
      for (Exchange& exchange : ranks) {
        for (RowCopy& copy : exchange.sends) copy.peer_row += buffer_rows_[static_cast<size_t>(copy.peer)];
      }
      for (size_t r = 0; r < ranks.size(); ++r) {
        for (RowCopy& copy : ranks[r].recvs) copy.rows = copy.rows.shifted(buffer_rows_[r]);
        buffer_rows_[r] += random.buffer_rows[r];
      }
    }
    agree();
  }
  /// The pieces of one table, each in one of the stages, as those of a plan: no rank needs a row twice. `by_owner`: nor
  /// does a node.
  static PassData of_a_plan(int size, uint64_t seed, int num_stages = 2, bool by_owner = false) {
    PassData data;
    const RandomExchange whole = make_random_exchange(size, seed);
    data.shard_rows = whole.shard_rows;
    data.buffer_rows_ = whole.buffer_rows;
    const auto is_elsewhere = [&](int stage, int owner, int receiver, int64_t row) {
      return (by_owner ? owner : (receiver * 5 + row * 3) / 4) % num_stages != stage;
    };
    for (int stage = 0; stage < num_stages; ++stage) {
      std::vector<Exchange>& ranks = data.tables.emplace_back(whole.ranks);
      for (int rank = 0; rank < size; ++rank) {
        Exchange& exchange = ranks[static_cast<size_t>(rank)];
        std::erase_if(exchange.sends, [&](const RowCopy& c) { return is_elsewhere(stage, rank, c.peer, c.peer_row); });
        std::erase_if(exchange.recvs,
                      [&](const RowCopy& c) { return is_elsewhere(stage, c.peer, rank, c.rows.begin); });
      }
    }
    data.agree();
    return data;
  }
  /// What all ranks know of each other's tables: of a plan.
  void agree() {
    auto all = std::make_shared<AgreedRows>();
    all->recv_buffers = buffer_rows_;
    for (const std::vector<Exchange>& ranks : tables) {
      std::vector<const Exchange*>& pointers = all->casts.emplace_back();
      for (const Exchange& exchange : ranks) pointers.push_back(&exchange);
    }
    all->reduces = all->casts;
    agreed = std::move(all);
  }
  size_t num_stages() const { return tables.size(); }
  int64_t buffer_rows(int rank) const { return buffer_rows_[static_cast<size_t>(rank)]; }
  const Exchange& exchange(size_t stage, int rank) const { return tables[stage][static_cast<size_t>(rank)]; }

  DevicePassSpec spec(int rank) const {
    DevicePassSpec spec;
    spec.label = "random";
    for (size_t stage = 0; stage < num_stages(); ++stage) {
      spec.casts.push_back(exchange(stage, rank));
      spec.reduces.push_back(exchange(stage, rank));
    }
    spec.recv_buffers.assign(kTensors, {buffer_rows(rank), kHeads, kDim, DType::kFloat32});
    spec.returns.assign(kTensors, {buffer_rows(rank), shard_rows, kHeads, kDim, DType::kFloat32, DType::kBFloat16});
    return spec;
  }

  std::vector<std::vector<Exchange>> tables;  // by stage and rank
  int64_t shard_rows = 0;
  std::shared_ptr<const AgreedRows> agreed;

 private:
  PassData() = default;
  std::vector<int64_t> buffer_rows_;
};

void cast_all(DevicePass& pass, const std::vector<HostTensor>& sources, int num_stages = 2) {
  const std::vector<ConstTensorView> views(sources.begin(), sources.end());
  for (int stage = 0; stage < num_stages; ++stage) pass.cast(stage, views, nullptr);
  for (int stage = 0; stage < num_stages; ++stage) pass.wait_group_cast(stage, nullptr);
}

void expect_landed(const DevicePass& pass, int slot, const PassData& data, int rank, int epoch) {
  for (int t = 0; t < kTensors; ++t) {
    const TensorView recv_buffers = pass.recv_buffers(t, slot);
    const auto* values = static_cast<const float*>(recv_buffers.data);
    for (size_t stage = 0; stage < data.num_stages(); ++stage) {
      for (const RowCopy& copy : data.exchange(stage, rank).recvs) {
        for (int64_t i = 0; i < copy.rows.size(); ++i) {
          ASSERT_EQ(values[(copy.rows.begin + i) * recv_buffers.row_stride + kDim],
                    element_value(copy.peer, t + epoch, copy.peer_row + i, 1, 0))
              << "rank " << rank << ", stage " << stage << ", row " << copy.rows.begin + i;
        }
      }
    }
  }
}

/// Own values plus the partial rows of all ranks. Small integers: every order gives the same, in bfloat16 too.
void expect_sums(const HostTensor& sums, const PassData& data, int rank, int tensor) {
  HostTensor expected = make_filled(DType::kFloat32, data.shard_rows, kHeads, kDim, rank, 7 + tensor);
  for (size_t stage = 0; stage < data.num_stages(); ++stage) {
    for (const RowCopy& copy : data.exchange(stage, rank).sends) {
      for (int64_t i = 0; i < copy.rows.size(); ++i) {
        for (int h = 0; h < kHeads; ++h) {
          for (int d = 0; d < kDim; ++d) {
            const int64_t row = copy.rows.begin + i;
            expected.set(row, h, d,
                         expected.at(row, h, d) + element_value(copy.peer, 3 + tensor, copy.peer_row + i, h, d));
          }
        }
      }
    }
  }
  for (int64_t row = 0; row < data.shard_rows; ++row) {
    for (int h = 0; h < kHeads; ++h) {
      for (int d = 0; d < kDim; ++d) ASSERT_EQ(sums.at(row, h, d), expected.at(row, h, d)) << "row " << row;
    }
  }
}

std::vector<HostTensor> filled(int64_t rows, int rank, int first) {
  std::vector<HostTensor> tensors;
  for (int t = 0; t < kTensors; ++t) {
    tensors.push_back(make_filled(DType::kFloat32, rows, kHeads, kDim, rank, first + t));
  }
  return tensors;
}

/// What the pass makes of partial rows of all stages and of own values, in place.
std::vector<HostTensor> reduce_all(DevicePass& pass, const PassData& data, int rank) {
  const std::vector<HostTensor> partials = filled(data.buffer_rows(rank), rank, 3);
  std::vector<HostTensor> own = filled(data.shard_rows, rank, 7);
  const std::vector<ConstTensorView> partial_views(partials.begin(), partials.end());
  for (int stage = 0; stage < static_cast<int>(data.num_stages()); ++stage) pass.reduce(stage, partial_views, nullptr);
  const std::vector<ConstTensorView> own_views(own.begin(), own.end());
  pass.finish_reduce(own_views, std::vector<TensorView>(own.begin(), own.end()), nullptr);
  return own;
}

class NodePasses : public ::testing::TestWithParam<NodeLayout> {};
INSTANTIATE_TEST_SUITE_P(Layouts, NodePasses,
                         ::testing::Values(NodeLayout{1, 1}, NodeLayout{4, 4}, NodeLayout{4, 1}, NodeLayout{4, 2},
                                           NodeLayout{6, 2}, NodeLayout{6, 3}, NodeLayout{8, 4}),
                         [](const auto& param_info) {
                           return std::to_string(param_info.param.num_nodes()) + "NodesOf" +
                                  std::to_string(param_info.param.ranks_per_node);
                         });

TEST_P(NodePasses, BringRowsAndSumsEpochAfterEpoch) {
  const NodeLayout nodes = GetParam();
  for (const uint64_t seed : {1, 2, 3, 4, 5, 6}) {
    const PassData data = seed > 4        ? PassData::of_a_plan(nodes.num_ranks, seed, 5, true)
                          : seed % 2 == 0 ? PassData::of_a_plan(nodes.num_ranks, seed)
                                          : PassData(nodes.num_ranks, seed);
    run_ranks(nodes, [&](DeviceCommunicator& comm) {
      const int rank = comm.rank();
      DevicePassSpec spec = data.spec(rank);
      if (seed > 2 && seed % 2 == 0) spec.agreed = data.agreed;
      spec.shares_memory = seed > 3;
      const auto pass = comm.prepare_pass(spec);
      for (int epoch = 0; epoch < 3; ++epoch) {
        const int slot = pass->begin(nullptr);
        const std::vector<HostTensor> sources = filled(data.shard_rows, rank, epoch);
        cast_all(*pass, sources, static_cast<int>(data.num_stages()));
        expect_landed(*pass, slot, data, rank, epoch);
        const std::vector<HostTensor> sums = reduce_all(*pass, data, rank);
        for (int t = 0; t < kTensors; ++t) expect_sums(sums[static_cast<size_t>(t)], data, rank, t);
        pass->end(nullptr);
      }
    });
  }
}

TEST_P(NodePasses, EachRowCrossesToANodeOnce) {
  const NodeLayout nodes = GetParam();
  const PassData data(nodes.num_ranks, 11);
  // By sender: rows that other nodes need, in whichever stages; and what would cross without relays.
  std::vector<int64_t> once(static_cast<size_t>(nodes.num_ranks)), to_each(once);
  for (int rank = 0; rank < nodes.num_ranks; ++rank) {
    std::set<std::pair<int, int64_t>> needed;
    for (size_t stage = 0; stage < data.num_stages(); ++stage) {
      for (const RowCopy& copy : data.exchange(stage, rank).sends) {
        const int node = nodes.node_of(copy.peer);
        if (node == nodes.node_of(rank)) continue;
        to_each[static_cast<size_t>(rank)] += copy.rows.size();
        for (int64_t row = copy.rows.begin; row < copy.rows.end; ++row) needed.emplace(node, row);
      }
    }
    once[static_cast<size_t>(rank)] = std::ssize(needed);
  }
  int64_t total_once = 0, total_to_each = 0;
  for (size_t r = 0; r < once.size(); ++r) total_once += once[r], total_to_each += to_each[r];
  if (nodes.num_nodes() > 1 && nodes.ranks_per_node > 1) {
    ASSERT_LT(total_once, total_to_each);  // else this shows nothing
  }
  run_ranks(nodes, [&](DeviceCommunicator& comm) {
    const int rank = comm.rank();
    DevicePassSpec spec = data.spec(rank);
    spec.reduces.clear();
    spec.returns.clear();
    const auto pass = comm.prepare_pass(spec);
    pass->begin(nullptr);
    const std::vector<HostTensor> sources = filled(data.shard_rows, rank, 0);
    comm.reset_counters();
    cast_all(*pass, sources);
    pass->end(nullptr);
    EXPECT_EQ(comm.across_nodes().rows_sent, kTensors * once[static_cast<size_t>(rank)]);
    int64_t sent = 0;
    for (const Exchange& exchange : spec.casts) sent += exchange.rows_sent();
    EXPECT_EQ(comm.counters().rows_sent, kTensors * sent);
    EXPECT_EQ(comm.counters().bytes_sent, kTensors * sent * kHeads * kDim * 4);
  });
}

TEST_P(NodePasses, SumsCrossOnceToo) {
  const NodeLayout nodes = GetParam();
  const PassData data = PassData::of_a_plan(nodes.num_ranks, 12);
  run_ranks(nodes, [&](DeviceCommunicator& comm) {
    const int rank = comm.rank();
    DevicePassSpec spec = data.spec(rank);
    spec.casts.clear();
    spec.recv_buffers.clear();
    const auto pass = comm.prepare_pass(spec);
    std::set<std::pair<int, int64_t>> needed;  // (node, owned row) that partial rows come from
    for (const Exchange& exchange : spec.reduces) {
      for (const RowCopy& copy : exchange.sends) {
        if (nodes.node_of(copy.peer) == nodes.node_of(rank)) continue;
        for (int64_t row = copy.rows.begin; row < copy.rows.end; ++row) needed.emplace(nodes.node_of(copy.peer), row);
      }
    }
    comm.reset_counters();
    pass->begin(nullptr);
    const std::vector<HostTensor> sums = reduce_all(*pass, data, rank);
    pass->end(nullptr);
    for (int t = 0; t < kTensors; ++t) expect_sums(sums[static_cast<size_t>(t)], data, rank, t);
    EXPECT_EQ(comm.across_nodes().rows_received, kTensors * std::ssize(needed));
    // Float32 sums of a node's own rows, beside what is relayed: what bounds of caches are to count.
    int64_t sums_bytes = 0;
    for (const ReturnTensor& t : spec.returns) sums_bytes += t.owned_rows * t.heads * t.dim * 4;
    const bool crosses = nodes.num_nodes() > 1;
    EXPECT_EQ(pass->own_bytes() >= sums_bytes, crosses || sums_bytes == 0);
    EXPECT_EQ(pass->own_bytes() > 0, crosses);
  });
}

TEST(NodeCommunicator, WhatDoesNotFitIsRefusedByNumber) {
  const NodeLayout nodes{4, 2};
  const PassData data = PassData::of_a_plan(4, 12);
  run_ranks(nodes, [&](DeviceCommunicator& comm) {
    testing_free_bytes = 1000;
    try {
      comm.prepare_pass(data.spec(comm.rank()));
      ADD_FAILURE() << "took memory that is not there";
    } catch (const NotAvailable& error) {
      EXPECT_THAT(error.what(), HasSubstr("rows that rank"));
      EXPECT_THAT(error.what(), HasSubstr("are free); use more stages"));
    }
    testing_free_bytes = int64_t{1} << 40;
  });
}

// As many as words on the device can name is a limit of nodes and of their ranks.
TEST(NodeCommunicator, NodesHoldMoreRanksTogetherThanEachOfThem) {
  const NodeLayout nodes{72, 8};
  const PassData data = PassData::of_a_plan(nodes.num_ranks, 12);
  run_ranks(nodes, [&](DeviceCommunicator& comm) {
    const int rank = comm.rank();
    const auto pass = comm.prepare_pass(data.spec(rank));
    const int slot = pass->begin(nullptr);
    const std::vector<HostTensor> sources = filled(data.shard_rows, rank, 0);
    cast_all(*pass, sources);
    expect_landed(*pass, slot, data, rank, 0);
    const std::vector<HostTensor> sums = reduce_all(*pass, data, rank);
    for (int t = 0; t < kTensors; ++t) expect_sums(sums[static_cast<size_t>(t)], data, rank, t);
    pass->end(nullptr);
  });
}

TEST(NodeCommunicator, GroupsThatAreTooLargeAreRefusedBeforeTheyConnect) {
  for (const auto& [size, ranks_per_node] :
       {std::pair(64, 0), std::pair(64, 64), std::pair(512, 8), std::pair(128, 64), std::pair(4096, 64)}) {
    EXPECT_NO_THROW(require_group_size(size, ranks_per_node)) << size << " by " << ranks_per_node;
  }
  const auto message = [](int size, int ranks_per_node) {
    try {
      require_group_size(size, ranks_per_node);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(message(65, 0), HasSubstr("at most 64 ranks"));
  EXPECT_THAT(message(72, 0), HasSubstr("(got 72 ranks on 1 nodes); use smaller groups, or transport copy_engine"));
  EXPECT_THAT(message(65, 1), HasSubstr("(got 65 ranks on 65 nodes); use smaller groups"));
  EXPECT_THAT(message(144, 72), HasSubstr("(got 144 ranks on 2 nodes)"));
}

TEST(NodeCommunicator, CapturesAreRefusedBeforeAnythingIsSent) {
  const NodeLayout nodes{4, 2};
  const PassData data = PassData::of_a_plan(4, 12);
  run_ranks(nodes, [&](DeviceCommunicator& comm) {
    const auto pass = comm.prepare_pass(data.spec(comm.rank()));
    comm.reset_counters();
    int stream = 0;  // HostNodeWork takes any for one that is being captured
    try {
      pass->begin(&stream);
      ADD_FAILURE() << "was taken";
    } catch (const NotAvailable& error) {
      EXPECT_THAT(error.what(), HasSubstr("begin 'random': CUDA graphs cannot hold passes over several nodes"));
    }
    const int slot = pass->begin(nullptr);  // as if nothing had been
    cast_all(*pass, filled(data.shard_rows, comm.rank(), 0));
    expect_landed(*pass, slot, data, comm.rank(), 0);
    reduce_all(*pass, data, comm.rank());
    pass->end(nullptr);
    comm.check();
  });
}

TEST(NodeCommunicator, NothingHasToCross) {
  const NodeLayout nodes{4, 2};
  PassData data = PassData::of_a_plan(4, 12);
  for (std::vector<Exchange>& stage : data.tables) {
    for (int rank = 0; rank < 4; ++rank) {
      const auto crosses = [&](const RowCopy& copy) { return nodes.node_of(copy.peer) != nodes.node_of(rank); };
      std::erase_if(stage[static_cast<size_t>(rank)].sends, crosses);
      std::erase_if(stage[static_cast<size_t>(rank)].recvs, crosses);
    }
  }
  run_ranks(nodes, [&](DeviceCommunicator& comm) {
    const int rank = comm.rank();
    const auto pass = comm.prepare_pass(data.spec(rank));
    comm.reset_counters();
    const int slot = pass->begin(nullptr);
    cast_all(*pass, filled(data.shard_rows, rank, 0));
    expect_landed(*pass, slot, data, rank, 0);
    const std::vector<HostTensor> sums = reduce_all(*pass, data, rank);
    for (int t = 0; t < kTensors; ++t) expect_sums(sums[static_cast<size_t>(t)], data, rank, t);
    pass->end(nullptr);
    EXPECT_EQ(comm.across_nodes().rows_sent, 0);
  });
}

TEST(NodeCommunicator, KeptRowsAreThereForAnotherPass) {
  const NodeLayout nodes{4, 2};
  const PassData data(4, 5);
  run_ranks(nodes, [&](DeviceCommunicator& comm) {
    const int rank = comm.rank();
    DevicePassSpec forward = data.spec(rank), backward = forward;
    forward.reduces.clear();
    forward.returns.clear();
    forward.num_slots = 3;
    const auto first = comm.prepare_pass(forward);
    backward.casts.clear();
    backward.recv_buffers_of = first;
    const auto second = comm.prepare_pass(backward);
    first->begin(nullptr);
    cast_all(*first, filled(data.shard_rows, rank, 4));
    const KeptSlot kept = first->end_kept(nullptr);
    first->begin(nullptr);
    cast_all(*first, filled(data.shard_rows, rank, 9));
    first->end(nullptr);
    expect_landed(*second, second->begin_kept(kept, nullptr), data, rank, 4);
  });
}

TEST(NodeCommunicator, StagesAreCastInOrder) {
  const PassData data(4, 5);
  run_ranks({4, 2}, [&](DeviceCommunicator& comm) {
    const auto pass = comm.prepare_pass(data.spec(comm.rank()));
    pass->begin(nullptr);
    const std::vector<HostTensor> sources = filled(data.shard_rows, comm.rank(), 0);
    const std::vector<ConstTensorView> views(sources.begin(), sources.end());
    EXPECT_THROW(pass->cast(1, views, nullptr), InvalidArgument);
    EXPECT_THROW(pass->cast(0, {views.data(), 1}, nullptr), InvalidArgument);
    cast_all(*pass, sources);  // nothing was lost
  });
}

TEST(NodeCommunicator, RefusesRecvBuffersOfAnother) {
  const NodeLayout nodes{4, 2};
  const PassData data(4, 5);
  run_ranks(nodes, [&](DeviceCommunicator& comm) {
    DevicePassSpec spec = data.spec(comm.rank());
    const auto pass = comm.prepare_pass(spec);
    spec.recv_buffers_of = pass;
    spec.recv_buffers[0].rows += 1;
    spec.recv_buffers[1].rows += 1;
    EXPECT_THROW(comm.prepare_pass(spec), InvalidArgument);
  });
}

TEST(NodeCommunicator, RefusesToReuseMemoryInAPass) {
  const PassData data(4, 5);
  run_ranks({4, 2}, [&](DeviceCommunicator& comm) {
    EXPECT_EQ(comm.kernel_transfers().recv_buffer_reuse, RecvBufferReuse::kNone);
    DevicePassSpec spec = data.spec(comm.rank());
    spec.credited = {1};
    EXPECT_THROW(comm.prepare_pass(spec), InvalidArgument);
  });
}

TEST(NodeCommunicator, AllReduceIsOverAllRanks) {
  run_ranks({6, 3}, [](DeviceCommunicator& comm) {
    float values[] = {static_cast<float>(comm.rank() + 1), 2};
    comm.all_reduce(values, 2, ReduceOp::kSum, nullptr);
    EXPECT_EQ(values[0], 21);
    EXPECT_EQ(values[1], 12);
  });
}

TEST(NodeCommunicator, WhenALevelFailsTheOtherIsGivenUp) {
  const NodeLayout nodes{4, 2};
  for (const bool in_node : {true, false}) {
    Groups groups(nodes);
    run_local_ranks(
        4,
        [&](Communicator& world) {
          NodeCommunicator::Levels levels = groups.levels(world.rank());
          auto& failing = static_cast<HostMemoryDevice&>(in_node ? *levels.node : *levels.across);
          auto& other = static_cast<HostMemoryDevice&>(in_node ? *levels.across : *levels.node);
          NodeCommunicator comm(world, nodes, std::move(levels));
          comm.check();
          failing.fail("rank 3 has ended");
          if (world.rank() % 2 == 0) {
            EXPECT_THROW(comm.check(), CommError);
          }
          const int num_looks =
              world.rank() % 2 == 0 ? 1 : 3000;  // who has checked has told; the watcher takes a while
          std::string heard;
          for (int i = 0; i < num_looks && heard.empty(); ++i) {
            try {
              other.check();
              std::this_thread::sleep_for(std::chrono::milliseconds(10));
            } catch (const CommError& error) {
              heard = error.what();
            }
          }
          EXPECT_THAT(heard, HasSubstr("gave up: rank 3 has ended"));
          try {
            comm.check();
            ADD_FAILURE() << "the failure was forgotten";
          } catch (const CommError& error) {
            EXPECT_STREQ(error.what(), "rank 3 has ended") << "the level that failed first says it in its own words";
          }
        },
        kTimeout_s);
  }
}

}  // namespace
}  // namespace tangram::comm
