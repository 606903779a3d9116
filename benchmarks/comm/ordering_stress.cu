// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Whether a kernel that sees the flag of a copy engine sees the data too: every rank pushes ranges of random size to
// the next one with copy engines, followed by 8-byte copies of their epochs to flags; thread blocks of the receiver
// poll the flags, load the data by TMA, and compare every word. See docs/design/transports.md.
//
//     ordering_stress RANKS EPOCHS [API] [TRAFFIC] [ORDER]
//
// API: memcpy (a call for each copy) | batch (up to four ranges in one call, their flags in a second).
// TRAFFIC beside it: none | ends (kernels on the peer's memory and copies of 32 MiB) | nccl (these and transfers of
// NCCL) | endless (copies, and a kernel that runs until all is over).
// ORDER: behind (consumers are enqueued behind the pushes of their epochs, as DevicePass does) | ahead (one consumer
// for all epochs before the first push). When nothing arrives any more, each rank says where it stands and ends with 3.
#include <cuda_runtime.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "comm/heap/symmetric_heap.hpp"
#include "comm/socket/forked_ranks.hpp"
#include "cuda/check.hpp"
#include "cuda/device_buffer.hpp"
#include "ordering_kernels.cuh"
#include "tangram/device_communicator.hpp"

namespace {

using namespace tangram;
using namespace tangram::stress;
using cuda::check;

constexpr size_t kLargeCopyBytes = size_t{32} << 20;

struct Options {
  uint64_t num_epochs = 0;
  bool batch = false;
  bool ahead = false;
  std::string traffic = "none";
};

cudaStream_t make_stream() {
  cudaStream_t stream;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  return stream;
}

/// Words that host and device share.
template <class T>
T* shared_words(size_t count) {
  void* words = nullptr;
  check(cudaHostAlloc(&words, count * sizeof(T), cudaHostAllocMapped), "cudaHostAlloc");
  return std::fill_n(static_cast<T*>(words), count, T{}), static_cast<T*>(words);
}

/// Copies that go to a copy engine in one call, or one call each.
class Copies {
 public:
  void add(void* target, const void* source, size_t num_bytes) {
    targets_.push_back(target), sources_.push_back(source), sizes_.push_back(num_bytes);
  }
  void enqueue(bool batch, cudaStream_t stream) {
    if (batch) {
      cudaMemcpyAttributes attributes = {};
      attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
      attributes.flags = cudaMemcpyFlagPreferOverlapWithCompute;
      size_t first = 0;
      check(cudaMemcpyBatchAsync(targets_.data(), sources_.data(), sizes_.data(), targets_.size(), &attributes, &first,
                                 1, stream),
            "cudaMemcpyBatchAsync");
    } else {
      for (size_t i = 0; i < targets_.size(); ++i) {
        check(cudaMemcpyAsync(targets_[i], sources_[i], sizes_[i], cudaMemcpyDeviceToDevice, stream),
              "cudaMemcpyAsync");
      }
    }
    targets_.clear(), sources_.clear(), sizes_.clear();
  }

 private:
  std::vector<void*> targets_;
  std::vector<const void*> sources_;
  std::vector<size_t> sizes_;
};

/// Ends the process when no consumer has got on for a while.
class Watch {
 public:
  Watch(int rank, const volatile uint64_t* checked, std::vector<std::pair<const char*, cudaStream_t>> streams)
      : rank_(rank), checked_(checked), streams_(std::move(streams)), thread_([this] { run(); }) {}
  ~Watch() {
    stopped_ = true;
    thread_.join();
  }
  std::atomic<uint64_t> num_enqueued = 0;
  std::atomic<const char*> call = "";

 private:
  void run() {
    constexpr int kStalled_ms = 4000, kStep_ms = 50;
    uint64_t last = 0;
    for (int still_ms = 0; !stopped_; still_ms += kStep_ms) {
      std::this_thread::sleep_for(std::chrono::milliseconds(kStep_ms));
      const uint64_t now = std::accumulate(checked_, checked_ + kNumSlots, uint64_t{0});
      if (now != last) still_ms = 0;
      last = now;
      if (still_ms >= kStalled_ms) give_up();
    }
  }
  [[noreturn]] void give_up() const {
    const auto [least, most] = std::minmax_element(checked_, checked_ + kNumSlots);
    std::fprintf(stderr, "rank %d stalled: enqueued %llu epochs, last call '%s', slots checked up to %llu to %llu\n",
                 rank_, static_cast<unsigned long long>(num_enqueued.load()), call.load(),
                 static_cast<unsigned long long>(*least), static_cast<unsigned long long>(*most));
    for (const auto& [name, stream] : streams_) {
      std::fprintf(stderr, "rank %d stream %s: %s\n", rank_, name, cudaGetErrorName(cudaStreamQuery(stream)));
    }
    _exit(3);
  }

  const int rank_;
  const volatile uint64_t* const checked_;
  const std::vector<std::pair<const char*, cudaStream_t>> streams_;
  std::atomic<bool> stopped_ = false;
  std::thread thread_;
};

/// What else the links and the device have to do.
class Traffic {
 public:
  Traffic(Communicator& control, const std::string& kind, char* peer, const char* source)
      : kind_(kind), peer_(peer), source_(source), kernels(make_stream()), copies(make_stream()) {
    if (kind_ != "nccl") return;
    const int rank = control.rank(), size = control.size(), next = (rank + 1) % size,
              previous = (rank + size - 1) % size;
    constexpr int64_t kRows = kLargeCopyBytes / 4096;
    nccl_ = make_device_communicator(control, {.transport = DeviceTransport::kNccl, .timeout_s = 20});
    DevicePassSpec spec;
    spec.label = "traffic";
    spec.casts = {{{{next, {0, kRows}, 0}}, {{previous, {0, kRows}, 0}}}};
    spec.recv_buffers = {{kRows, 8, 128, DType::kFloat32}};
    pass_ = nccl_->prepare_pass(spec);
    transfers_ = make_stream();
    enqueue_transfer();
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  void start() {
    if (kind_ == "endless") make_traffic<<<8, 512, 0, kernels>>>(words(), kWords, 0, stop_);
  }
  void stop() { *stop_ = 1; }
  /// What belongs beside epoch `e`.
  void enqueue(uint64_t e) {
    if (kind_ == "none") return;
    if (e % 512 == 0) {
      check(cudaMemcpyAsync(peer_ + kLargeCopyBytes, source_, kLargeCopyBytes, cudaMemcpyDeviceToDevice, copies),
            "cudaMemcpyAsync");
    }
    if (kind_ != "endless" && e % 256 == 0) make_traffic<<<8, 512, 0, kernels>>>(words(), kWords, 4, nullptr);
    if (kind_ == "nccl" && e % 1024 == 0) enqueue_transfer();
  }
  void check_errors() const {
    if (nccl_ != nullptr) nccl_->check();
  }

 private:
  static constexpr uint64_t kWords = (size_t{16} << 20) / 16;
  uint4* words() const { return reinterpret_cast<uint4*>(peer_); }
  void enqueue_transfer() {
    const ConstTensorView sources[] = {
        {source_, DType::kFloat32, kLargeCopyBytes / 4096, 8, 128, int64_t{8} * 128, 128}};
    pass_->begin(transfers_);
    pass_->cast(0, sources, transfers_);
    pass_->wait_group_cast(0, transfers_);
    pass_->end(transfers_);
  }

  const std::string kind_;
  char* const peer_;
  const char* const source_;
  volatile int* const stop_ = shared_words<int>(1);
  std::unique_ptr<DeviceCommunicator> nccl_;
  std::shared_ptr<DevicePass> pass_;
  cudaStream_t transfers_ = nullptr;

 public:
  const cudaStream_t kernels, copies;
};

class Rank {
 public:
  Rank(Communicator& control, const Options& options)
      : control_(control),
        options_(options),
        heap_(control, 30),
        recv_buffers_(heap_.allocate(size_t{kNumSlots} * kMaxBytes, "recv_buffers")),
        flags_(heap_.allocate(4096, "flags")),
        spare_(heap_.allocate(2 * kLargeCopyBytes, "traffic")),
        source_(kSourceBytes),
        cells_(options.num_epochs * 8),
        findings_(cuda::DeviceBuffer::zeros(sizeof(Findings))),
        next_((control.rank() + 1) % control.size()),
        previous_((control.rank() + control.size() - 1) % control.size()),
        traffic_(control, options.traffic, spare_->peer(next_), source_.as<char>()) {
    fill_source<<<256, 256>>>(source_.as<uint64_t>(), kSourceBytes / 8, control.rank());
    fill_epochs<<<256, 256>>>(cells_.as<uint64_t>(), options.num_epochs);
    for (cudaStream_t& caller : callers_) caller = make_stream();
    for (cudaEvent_t& fork : forks_) check(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming), "cudaEventCreate");
    // What the first call of a kind sets up would wait for the consumer.
    for (const bool batch : {false, true}) {
      Copies copies;
      for (int i = 0; i < 8; ++i) copies.add(spare_->peer(next_) + i * 4096, source_.as<char>() + i * 4096, 4096);
      copies.enqueue(batch, sender_);
    }
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    control.barrier("start");
  }

  /// Seconds until all has been checked.
  double run() {
    Watch watch(control_.rank(), checked_,
                {{"callers[0]", callers_[0]},
                 {"callers[1]", callers_[1]},
                 {"sender", sender_},
                 {"traffic", traffic_.kernels},
                 {"copies", traffic_.copies}});
    const auto begin = std::chrono::steady_clock::now();
    if (options_.ahead) launch_consumer(0, options_.num_epochs, callers_[0]);
    traffic_.start();
    for (uint64_t first = 0; first < options_.num_epochs; first += kCreditEpochs) {
      const uint64_t end = std::min(first + kCreditEpochs, options_.num_epochs);
      watch.call = "pushes";
      push(first, end);
      watch.num_enqueued = end;
      watch.call = "traffic";
      for (uint64_t e = first; e < end; ++e) traffic_.enqueue(e);
    }
    check(cudaGetLastError(), "launch");
    watch.call = "synchronize";
    for (const cudaStream_t stream : {sender_, callers_[0], callers_[1]})
      check(cudaStreamSynchronize(stream), "stream");
    traffic_.stop();
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    traffic_.check_errors();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  int report(double seconds) const {
    Findings found;
    check(cudaMemcpy(&found, findings_.as<void>(), sizeof(found), cudaMemcpyDeviceToHost), "cudaMemcpy");
    uint64_t moved = 0, expected = 0;
    for (uint64_t e = 0; e < options_.num_epochs; ++e) {
      moved += push_of(e, control_.rank()).bytes;
      expected += push_of(e, previous_).bytes;
    }
    const bool complete = found.num_words * 8 == expected;
    std::printf("%d,%d,%s,%s,%s,%llu,%.3f,%.1f,%.2f,%llu,%llu,%llu,%d,%llu,%llu\n", control_.size(), control_.rank(),
                options_.batch ? "batch" : "memcpy", options_.traffic.c_str(), options_.ahead ? "ahead" : "behind",
                static_cast<unsigned long long>(options_.num_epochs), static_cast<double>(moved) / 1e9,
                static_cast<double>(moved) / 1e9 / seconds, seconds, found.num_bad_epochs, found.num_bad_words,
                found.num_timeouts, complete ? 1 : 0, found.first_epoch, found.first_word);
    std::fflush(stdout);
    return found.num_bad_epochs == 0 && found.num_timeouts == 0 && complete ? 0 : 1;
  }

 private:
  void launch_consumer(uint64_t first, uint64_t end, cudaStream_t stream) {
    const Inbox inbox{recv_buffers_->local(), arrivals(),
                      reinterpret_cast<uint64_t*>(flags_->peer(previous_)) + kNumSlots, checked_, previous_};
    const int num_blocks = options_.ahead ? kNumSlots : kCreditEpochs;
    consume<<<static_cast<unsigned>(num_blocks), 256, 0, stream>>>(inbox, first, end, findings_.as<Findings>());
  }

  /// Waits for credit, pushes and, unless a consumer is there already, consumes epochs [first, end).
  void push(uint64_t first, uint64_t end) {
    const uint64_t window = first / kCreditEpochs;
    const cudaStream_t caller = options_.ahead ? sender_ : callers_[window % 2];
    wait_credit<<<1, kCreditEpochs, 0, caller>>>(arrivals() + kNumSlots, first);
    if (caller != sender_) {
      check(cudaEventRecord(forks_[window % 2], caller), "cudaEventRecord");
      check(cudaStreamWaitEvent(sender_, forks_[window % 2], 0), "cudaStreamWaitEvent");
    }
    for (uint64_t e = first; e < end;) {
      const uint64_t group_end = options_.batch ? std::min(end, e + 1 + mix(e) % 4) : e + 1;
      for (uint64_t i = e; i < group_end; ++i) add_rows(i);
      rows_.enqueue(options_.batch, sender_);
      for (; e < group_end; ++e) {
        flag_copies_.add(flags_->peer(next_) + e % kNumSlots * 8, cells_.as<char>() + e * 8, 8);
      }
      flag_copies_.enqueue(options_.batch, sender_);
    }
    if (!options_.ahead) launch_consumer(first, end, caller);
  }

  /// A batch of two pieces, whose order is not guaranteed.
  void add_rows(uint64_t e) {
    const Push push = push_of(e, control_.rank());
    char* const to = recv_buffers_->peer(next_) + e % kNumSlots * kMaxBytes;
    const char* const from = source_.as<char>() + push.offset;
    const size_t half = options_.batch ? push.bytes / 32 * 16 : 0, rest = push.bytes - half;
    rows_.add(to, from, rest);
    if (half > 0) rows_.add(to + rest, from + rest, half);
  }

  /// The first kNumSlots of the local flags; acknowledgements come behind them.
  uint64_t* arrivals() const { return reinterpret_cast<uint64_t*>(flags_->local()); }

  Communicator& control_;
  const Options& options_;
  comm::SymmetricHeap heap_;
  const std::unique_ptr<comm::SymmetricBlock> recv_buffers_, flags_, spare_;
  const cuda::DeviceBuffer source_, cells_, findings_;
  const int next_, previous_;
  Traffic traffic_;
  volatile uint64_t* const checked_ = shared_words<uint64_t>(kNumSlots);
  cudaStream_t callers_[2] = {};
  const cudaStream_t sender_ = make_stream();
  cudaEvent_t forks_[2] = {};
  Copies rows_, flag_copies_;
};

int run_rank(Communicator& control, const Options& options) {
  int num_devices = 0;
  check(cudaGetDeviceCount(&num_devices), "cudaGetDeviceCount");
  check(cudaSetDevice(control.rank() % num_devices), "cudaSetDevice");
  Rank rank(control, options);
  const int result = rank.report(rank.run());
  control.barrier("end");
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr,
                 "usage: ordering_stress RANKS EPOCHS [memcpy|batch] [none|ends|nccl|endless] [behind|ahead]\n");
    return 2;
  }
  // Loading a kernel while another one waits for its work would wait for that one.
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  Options options;
  options.num_epochs = std::strtoull(argv[2], nullptr, 10);
  options.batch = argc > 3 && std::string(argv[3]) == "batch";
  if (argc > 4) options.traffic = argv[4];
  options.ahead = argc > 5 && std::string(argv[5]) == "ahead";
  std::printf(
      "ranks,rank,api,traffic,order,epochs,gb,gb_per_s,seconds,bad_epochs,bad_words,timeouts,complete,first_bad_epoch,"
      "first_bad_word\n");
  std::fflush(stdout);
  return tangram::comm::run_forked_ranks(
      std::atoi(argv[1]), [&](tangram::Communicator& control) { return run_rank(control, options); },
      [](const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
      },
      60);
}
