// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/nccl/nccl_group.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <vector>

#include "comm/all_gather.hpp"
#include "comm/nccl/nccl_abort.hpp"
#include "comm/nodes/node_map.hpp"
#include "comm/progress_communicator.hpp"
#include "core/interrupt.hpp"
#include "core/require.hpp"
#include "cuda/check.hpp"
#include "tangram/env.hpp"
#include "tangram/error.hpp"

namespace tangram::comm {

using cuda::WaitFailure;
using cuda::WaitKind;

namespace {

constexpr std::chrono::milliseconds kLookInterval{5};
constexpr double kPeersStop_s = 1;
constexpr double kSetup_s = 60;   // at least, for connecting: NCCL looks at the whole machine
constexpr int kDefaultCtas = 16;  // 230 GB/s at 16 and 118 at 8 thread blocks that copy, as measured on H200
constexpr int kNetworkCtas = 4;   // between nodes, where a link is slower by far

void rest() { std::this_thread::sleep_for(kLookInterval); }

/// Alike on all ranks: throws NotAvailable on every one when one has a `problem`.
void require_all(Communicator& control, const std::string& problem) {
  float has_problem = problem.empty() ? 0 : 1;
  control.all_reduce({&has_problem, 1}, ReduceOp::kMax, "transport nccl");
  if (has_problem == 0) return;
  throw NotAvailable(fmt::format("make_device_communicator: transport nccl: {}",
                                 problem.empty() ? "another rank cannot use it" : problem));
}

const NcclApi& load_on_all(Communicator& control) {
  std::string problem;
  try {
    static_cast<void>(NcclApi::get());
  } catch (const Error& error) {
    problem = error.what();
  }
  require_all(control, problem);
  return NcclApi::get();
}

struct Pci {
  char address[32] = {};
};

/// Whether all ranks are on one node. Throws NotAvailable, alike on all ranks, unless each has a GPU of its own there;
/// the addresses of GPUs repeat from node to node.
bool are_on_one_node(Communicator& control) {
  int device = 0;
  cuda::check(cudaGetDevice(&device), "cudaGetDevice");
  Pci own;
  cuda::check(cudaDeviceGetPCIBusId(own.address, sizeof(own.address), device), "cudaDeviceGetPCIBusId");
  const std::vector<Pci> gpus = all_gather(control, own, "transport nccl: GPUs");
  const NodeMap map = NodeMap::of(control);
  for (int a = 0; a < control.size(); ++a) {
    for (int b = 0; b < a; ++b) {
      const char* const address = gpus[static_cast<size_t>(a)].address;
      if (map.node_of(a) != map.node_of(b) || std::strcmp(address, gpus[static_cast<size_t>(b)].address) != 0) continue;
      throw NotAvailable(
          fmt::format("make_device_communicator: transport nccl: every rank must have a GPU of its own (got {} for "
                      "ranks {} and {})",
                      address, b, a));
    }
  }
  return map.num_nodes() == 1;
}

}  // namespace

NcclGroup::NcclGroup(Communicator& control, const DeviceCommunicatorConfig& config)
    : api_(load_on_all(control)),
      is_one_node_(are_on_one_node(control)),
      max_ctas_(config.max_ctas > 0 ? config.max_ctas
                : is_one_node_      ? kDefaultCtas
                                    : kNetworkCtas),
      state_(control, config),
      watch_({state_.control_block(), state_.rank(), state_.timeout_s(),
              [this](const WaitFailure& wait, double waited_s) { state_.note_wait(wait, waited_s); },
              [this](std::string_view reason) { state_.give_up(reason); },
              [this](int rank) { return state_.name_of(rank); }}),
      shared_(config.exact_memory) {
  cuda::check(cudaGetDevice(&device_), "cudaGetDevice");
  counter_ = cuda::DeviceBuffer::zeros(sizeof(uint64_t));
  inbox_ =
      cuda::DeviceBuffer(static_cast<size_t>(state_.size()) * DeviceCommunicator::kMaxReduceValues * sizeof(float));
  load_kernels();
  try {
    connect();
    warm_up();
    float meets = Env::get().sanity_check ? 1 : 0;
    control.all_reduce({&meets, 1}, ReduceOp::kMax, "transport nccl: ready");
    agrees_later_ = meets == 0;
  } catch (...) {
    abandon();
    throw;
  }
  watcher_ = std::thread([this] { watch(); });
}

NcclGroup::~NcclGroup() {
  // Ends by itself: what waits for peers is given up by the watcher.
  static_cast<void>(cudaStreamSynchronize(stream_.get()));
  stopping_ = true;
  if (watcher_.joinable()) watcher_.join();
  if (comm_ == nullptr) return;
  // Waits for peers that have not come here yet, like every collective end.
  int result = api_.comm_finalize(comm_);
  const double end_s = steady_seconds() + state_.timeout_s();
  while (api_.comm_get_async_error(comm_, &result) == NcclApi::kSuccess && result == NcclApi::kInProgress &&
         steady_seconds() < end_s) {
    rest();
  }
  if (result == NcclApi::kSuccess) {
    static_cast<void>(api_.comm_destroy(comm_));
  } else {
    abort_or_leave(api_, comm_);
  }
}

void NcclGroup::connect() {
  NcclApi::UniqueId id;
  if (state_.rank() == 0) api_.check(api_.get_unique_id(&id), "ncclGetUniqueId");
  id = all_gather(state_.control(), id, "transport nccl: identity")[0];
  NcclApi::Config nccl;
  nccl.blocking = 0;
  nccl.max_ctas = max_ctas_;
  if (!is_one_node_) nccl.cga_cluster_size = 0;  // clusters would take more multiprocessors than it has thread blocks
  api_.check(api_.comm_init_rank_config(&comm_, state_.size(), id, state_.rank(), &nccl), "ncclCommInitRankConfig");
  settle("ncclCommInitRankConfig", setup_timeout_s());
}

double NcclGroup::setup_timeout_s() const { return std::max(state_.timeout_s(), kSetup_s); }

void NcclGroup::check(int result, const char* call) {
  if (result == NcclApi::kRemoteError) {
    const double end_s = steady_seconds() + kNcclNaming_s;
    while (!watch_.has_failed() && steady_seconds() < end_s) rest();
    if (watch_.has_failed()) state_.check();
  }
  api_.check(result, call);
}

void NcclGroup::settle(const char* call, double timeout_s) {
  const double end_s = steady_seconds() + timeout_s;
  int result = NcclApi::kInProgress;
  InterruptClock interrupts;
  while (true) {
    interrupts.check();
    check(api_.comm_get_async_error(comm_, &result), call);
    check(result, call);
    if (result == NcclApi::kSuccess) return;
    if (steady_seconds() > end_s) {
      throw Timeout(fmt::format("{}: the ranks did not come together within {:g} s (noticed by rank {})", call,
                                timeout_s, state_.rank()));
    }
    std::this_thread::yield();
  }
}

void NcclGroup::warm_up() {
  constexpr int64_t kBytes = 16;
  std::vector<Message> sends, recvs;
  for (int peer = 0; peer < state_.size(); ++peer) {
    if (peer == state_.rank()) continue;
    sends.push_back({peer, 0, 0, kBytes});
    recvs.push_back({peer, 1, peer * kBytes, kBytes});
  }
  const auto size = static_cast<size_t>(state_.size());
  const cuda::DeviceBuffer buffer = cuda::DeviceBuffer::zeros((1 + size) * kBytes);
  char* const tensors[] = {buffer.as<char>(), buffer.as<char>() + kBytes};
  exchange(sends, {tensors, nullptr}, recvs, {tensors, nullptr});
  const double timeout_s = setup_timeout_s(), end_s = steady_seconds() + timeout_s;
  cudaError_t status = cudaErrorNotReady;
  InterruptClock interrupts;
  while ((status = cudaStreamQuery(stream_.get())) == cudaErrorNotReady) {
    interrupts.check();
    if (steady_seconds() > end_s) {
      throw Timeout(fmt::format("transport nccl: the first messages did not come within {:g} s (noticed by rank {})",
                                timeout_s, state_.rank()));
    }
    rest();
  }
  cuda::check(status, "cudaStreamQuery");
  is_connected_ = true;
}

void NcclGroup::begin(WaitKind kind, int pass, int stage) {
  const uint64_t word = cuda::pack({kind, state_.rank(), 0, stage, pass, 0});
  launch_operation_begins(state_.device_control_block() + state_.rank(), counter_.as<uint64_t>(), word, stream_.get());
}

void NcclGroup::end() { launch_operation_ends(state_.device_control_block() + state_.rank(), stream_.get()); }

void NcclGroup::exchange(std::span<const Message> sends, const Buffers& from, std::span<const Message> recvs,
                         const Buffers& to) {
  if (sends.empty() && recvs.empty()) return;
  const auto address = [](const Message& message, const Buffers& buffers) {
    char* const begin =
        message.tensor == Message::kStaging ? buffers.staging : buffers.tensors[static_cast<size_t>(message.tensor)];
    return begin + message.offset;
  };
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) {
    state_.check();
    throw CommError("transport nccl: the communicator was given up");
  }
  api_.check(api_.group_start(), "ncclGroupStart");
  int result = NcclApi::kSuccess;
  const auto keep_first = [&](int next) {
    if (result == NcclApi::kSuccess || result == NcclApi::kInProgress) result = next;
  };
  for (const Message& message : sends) {
    keep_first(api_.send(address(message, from), static_cast<size_t>(message.num_bytes), NcclApi::kUint8, message.peer,
                         comm_, stream_.get()));
  }
  for (const Message& message : recvs) {
    keep_first(api_.recv(address(message, to), static_cast<size_t>(message.num_bytes), NcclApi::kUint8, message.peer,
                         comm_, stream_.get()));
  }
  keep_first(api_.group_end());  // in any case, or all later calls of this thread would belong to the group
  check(result, "ncclGroupEnd");
  settle("ncclGroupEnd", is_connected_ ? state_.timeout_s() : setup_timeout_s());
}

void NcclGroup::open(int pass) {
  ++num_epochs_;
  const OpenedPass opened{static_cast<uint32_t>(num_epochs_), state_.fingerprint_tag(), pass};
  HostControlBlock::store(state_.control_block().row(state_.rank()).opened, pack(opened));
  // Each rank writes, then reads: at least one of two sees the other, before it sends anything.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  look_at_peers();
}

void NcclGroup::all_reduce(float* values, int count, bool is_max, cudaStream_t caller) {
  fork_.order(caller, stream_.get());
  const int64_t num_bytes = count * static_cast<int64_t>(sizeof(float));
  std::vector<Message> sends, recvs;
  for (int peer = 0; peer < state_.size(); ++peer) {
    if (peer == state_.rank()) continue;
    sends.push_back({peer, 0, 0, num_bytes});
    recvs.push_back({peer, 1, peer * num_bytes, num_bytes});
  }
  char* const tensors[] = {reinterpret_cast<char*>(values), inbox_.as<char>()};
  begin(WaitKind::kAllReduce, 0, 0);
  exchange(sends, {tensors, nullptr}, recvs, {tensors, nullptr});
  end();
  launch_combine(inbox_.as<float>(), values, count, state_.rank(), state_.size(), is_max, stream_.get());
  join_.order(stream_.get(), caller);
}

void NcclGroup::watch() {
  static_cast<void>(cudaSetDevice(device_));
  while (!stopping_) {
    watch_.look_at_deadline();
    look_at_peers();
    look_at_nccl();
    if (watch_.has_failed()) {
      const std::lock_guard lock(mutex_);
      abandon();
      return;
    }
    rest();
  }
}

void NcclGroup::look_at_peers() {
  const OpenedPass own = unpack_opened(HostControlBlock::load(state_.control_block().row(state_.rank()).opened));
  for (int peer = 0; peer < state_.size(); ++peer) {
    const OpenedPass other = unpack_opened(HostControlBlock::load(state_.control_block().row(peer).opened));
    const WaitFailure failure = disagreement(own, other, state_.rank(), peer);
    if (failure.kind != WaitKind::kNone) watch_.publish(failure);
  }
}

void NcclGroup::look_at_nccl() {
  int result = NcclApi::kSuccess;
  {
    const std::lock_guard lock(mutex_);
    if (comm_ == nullptr || api_.comm_get_async_error(comm_, &result) != NcclApi::kSuccess) return;
  }
  watch_.look_at_result(result, api_.get_error_string(result));
}

void NcclGroup::abandon() noexcept {
  if (comm_ == nullptr) return;
  // Peers' kernels may still read memory that ncclCommAbort frees: end the own first, and wait a little for theirs.
  if (api_.comm_revoke != nullptr) static_cast<void>(api_.comm_revoke(comm_, 0));
  HostControlBlock::store(state_.control_block().row(state_.rank()).stopped, 1);
  const double end_s = steady_seconds() + kPeersStop_s;
  for (int peer = 0; api_.comm_revoke != nullptr && peer < state_.size(); ++peer) {
    while (HostControlBlock::load(state_.control_block().row(peer).stopped) == 0 && steady_seconds() < end_s) rest();
  }
  abort_or_leave(api_, comm_);
  comm_ = nullptr;
}

}  // namespace tangram::comm
