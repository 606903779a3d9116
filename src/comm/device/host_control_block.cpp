// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/device/host_control_block.hpp"

#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>
#include <optional>

#include "comm/all_gather.hpp"
#include "comm/heap/fd_exchange.hpp"
#include "comm/heap/process_identity.hpp"
#include "comm/nodes/node_map.hpp"
#include "tangram/error.hpp"

namespace tangram::comm {

namespace {

constexpr std::chrono::milliseconds kLookInterval{20};

/// Nanoseconds of a clock that all processes of a host share.
uint64_t now_ns() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

/// 1 to 2^19 - 1.
uint32_t tag_of(const CallFingerprint& fingerprint) {
  uint64_t hash = fingerprint.given;
  for (const uint64_t word : fingerprint.words) hash = (hash ^ word) * 0x9e3779b97f4a7c15 ^ (hash >> 29);
  return std::max(static_cast<uint32_t>(hash >> 45), 1u);
}

/// Copies of what its rank may be writing over while others read it. Readers compare a number or a tag before and
/// after, and so notice a torn value. Words are released and acquired one by one; none moves past that number.
template <class T>
using Words = std::array<uint64_t, sizeof(T) / sizeof(uint64_t)>;

template <class T>
void store_words(T& shared, const T& value) {
  static_assert(alignof(T) == alignof(uint64_t));
  auto* to = reinterpret_cast<uint64_t*>(&shared);
  for (const uint64_t word : std::bit_cast<Words<T>>(value)) HostControlBlock::store(*to++, word);
}

template <class T>
T load_words(const T& shared) {
  Words<T> words;
  auto* from = reinterpret_cast<const uint64_t*>(&shared);
  for (uint64_t& word : words) word = HostControlBlock::load(*from++);
  return std::bit_cast<T>(words);
}

}  // namespace

HostControlBlock::Memory::Memory(int fd, size_t num_bytes) : bytes(num_bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) throw CommError("HostControlBlock: must be able to map shared memory");
  rows = static_cast<cuda::ControlBlockRow*>(data);
}

HostControlBlock::Memory::~Memory() {
  if (undo) undo(rows);
  ::munmap(rows, bytes);
}

HostControlBlock::HostControlBlock(Communicator& control, double timeout_s) : size_(control.size()) {
  const auto ranks = all_gather(control, ProcessIdentity::own(), "control block: processes");
  is_linked_ = NodeMap(ranks).num_nodes() > 1;
  const bool in_process = !is_linked_ && are_one_process(ranks);
  const UniqueFd own(::memfd_create("tangram_control_block", MFD_CLOEXEC));
  if (!own || ::ftruncate(own.get(), static_cast<off_t>(bytes())) != 0) {
    throw CommError("HostControlBlock: must be able to make shared memory");
  }
  if (control.rank() == 0 || is_linked_) memory_ = std::make_shared<Memory>(own.get(), bytes());
  if (in_process) {
    const auto addresses = all_gather(control, reinterpret_cast<uintptr_t>(&memory_), "control block: address");
    // Not on rank 0: assigning it to itself would write what the others are reading.
    if (control.rank() != 0) memory_ = *reinterpret_cast<const std::shared_ptr<Memory>*>(addresses[0]);
  } else if (!is_linked_) {
    FdExchange exchange(control, timeout_s);
    const std::vector<UniqueFd> fds = exchange.exchange(own.get());
    if (control.rank() != 0) memory_ = std::make_shared<Memory>(fds[0].get(), bytes());
  }
  cuda::ControlBlockRow& own_row = row(control.rank());
  own_row.process = ::getpid();
  mark_alive(control.rank());
  control.barrier("control block: mapped");
}

void HostControlBlock::mark_alive(int rank) { store(row(rank).heartbeat_ns, now_ns()); }

void HostControlBlock::prepare_once(const std::function<void(void* data, size_t bytes)>& prepare,
                                    const std::function<void(void* data)>& undo) {
  const std::lock_guard lock(memory_->mutex);
  if (memory_->prepared) return;
  prepare(memory_->rows, memory_->bytes);
  memory_->prepared = true;
  memory_->undo = undo;
}

uint64_t HostControlBlock::load(const uint64_t& word) {
  return std::atomic_ref<uint64_t>(const_cast<uint64_t&>(word)).load(std::memory_order_acquire);
}

void HostControlBlock::store(uint64_t& word, uint64_t value) {
  std::atomic_ref<uint64_t>(word).store(value, std::memory_order_release);
}

void HostControlBlock::store_first(uint64_t& word, uint64_t value) {
  uint64_t none = 0;
  std::atomic_ref<uint64_t>(word).compare_exchange_strong(none, value, std::memory_order_acq_rel);
}

void HostControlBlock::give_up(int rank, std::string_view reason) noexcept {
  auto& text = row(rank).text;
  if (text[0] != '\0') return;
  std::memcpy(text, reason.data(), std::min(reason.size(), sizeof(text) - 1));
  for (int peer = 0; peer < size_; ++peer) {
    store_first(row(peer).host_abort, cuda::pack({cuda::WaitKind::kHost, rank, rank, 0, 0, 0}));
  }
}

uint32_t HostControlBlock::show_fingerprint(int rank, const CallFingerprint& fingerprint) {
  if (fingerprint.given == 0) return 0;
  const uint32_t tag = tag_of(fingerprint);
  FingerprintRow& row = fingerprint_row(rank);
  for (const uint64_t& known : row.tags) {
    if (load(known) == tag) return tag;
  }
  const uint64_t number = row.num_shown, place = number % FingerprintRow::kLength;
  store(row.tags[place], 0);
  store_words(row.fingerprint[place], fingerprint);
  store(row.tags[place], tag);
  store(row.num_shown, number + 1);
  return tag;
}

std::optional<CallFingerprint> HostControlBlock::next_fingerprint(int rank, uint64_t& num_seen) const {
  const FingerprintRow& row = fingerprint_row(rank);
  while (true) {
    const uint64_t num_shown = load(row.num_shown);
    if (num_shown > num_seen + FingerprintRow::kLength) num_seen = num_shown - FingerprintRow::kLength;
    if (num_shown == num_seen) return std::nullopt;
    const uint64_t place = num_seen++ % FingerprintRow::kLength;
    const uint64_t tag = load(row.tags[place]);
    const CallFingerprint fingerprint = load_words(row.fingerprint[place]);
    if (tag != 0 && load(row.tags[place]) == tag) return fingerprint;  // else another has taken its place
  }
}

std::optional<CallFingerprint> HostControlBlock::fingerprint(int rank, uint32_t tag) const {
  const FingerprintRow& row = fingerprint_row(rank);
  for (uint64_t i = 0; i < FingerprintRow::kLength; ++i) {
    if (load(row.tags[i]) != tag) continue;
    const CallFingerprint fingerprint = load_words(row.fingerprint[i]);
    // While it was read, the rank may have shown others there.
    if (load(row.tags[i]) == tag) return fingerprint;
  }
  return std::nullopt;
}

void HostControlBlock::make_agreement_record(int rank, const AgreementRecord& statement) {
  StatementsRow& row = statements_row(rank);
  const uint64_t number = row.num_made;
  store_words(row.made[number % kStatements], statement);
  store(row.num_made, number + 1);
}

std::optional<AgreementRecord> HostControlBlock::statement(int rank, uint64_t number) const {
  const StatementsRow& row = statements_row(rank);
  if (num_statements(rank) <= number) return std::nullopt;
  const AgreementRecord statement = load_words(row.made[number % kStatements]);
  // While it was read, the rank may have come round.
  if (num_statements(rank) >= number + kStatements) return std::nullopt;
  return statement;
}

Watchdog::Watchdog(HostControlBlock& control_block, int rank, double timeout_s, StillWaits still_waits)
    : control_block_(control_block),
      rank_(rank),
      timeout_s_(timeout_s),
      still_waits_(std::move(still_waits)),
      processes_(static_cast<size_t>(control_block.size())) {
  for (int peer = 0; peer < control_block.size(); ++peer) {
    const auto process = static_cast<pid_t>(control_block.row(peer).process);
    if (process == ::getpid() || process == 0) continue;  // 0: on another node, and its number means nothing here
    processes_[static_cast<size_t>(peer)] = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, process, 0)));
  }
  thread_ = std::thread([this] { run(); });
}

Watchdog::~Watchdog() {
  stopping_ = true;
  thread_.join();
  HostControlBlock::store(control_block_.row(rank_).has_left, 1);
}

void Watchdog::run() {
  while (!stopping_) {
    HostControlBlock::store(control_block_.row(rank_).heartbeat_ns, now_ns());
    for (int peer = 0; peer < control_block_.size(); ++peer) {
      if (peer != rank_) look(peer);
    }
    look_at_waits();
    std::this_thread::sleep_for(kLookInterval);
  }
}

void Watchdog::look(int peer) {
  const cuda::ControlBlockRow& row = control_block_.row(peer);
  if (HostControlBlock::load(row.has_left) != 0) return;
  const UniqueFd& process = processes_[static_cast<size_t>(peer)];
  pollfd polled{process.get(), POLLIN, 0};
  if (process && ::poll(&polled, 1, 0) > 0) {
    if (HostControlBlock::load(row.has_left) == 0) notice(cuda::WaitKind::kEnded, peer);
    return;
  }
  // Kernels that wait for it say more, so they come first; this is for kernels that wait for nothing yet.
  const double silent_s = static_cast<double>(now_ns() - HostControlBlock::load(row.heartbeat_ns)) * 1e-9;
  if (silent_s < 1.5 * timeout_s_ + 1 || silent_s > 1e9) return;
  notice(cuda::WaitKind::kSilent, peer);
}

void Watchdog::look_at_waits() {
  // Kernels write it again and again while they wait, so that one that does not come back has ended.
  constexpr double kPause_s = 1;
  const uint64_t word =
      std::atomic_ref<uint64_t>(control_block_.row(rank_).waiting).exchange(0, std::memory_order_acq_rel);
  if (word == 0) return;
  const double now_s = static_cast<double>(now_ns()) * 1e-9;
  if (now_s - wait_seen_s_ > kPause_s) waits_since_s_ = now_s - timeout_s_ / 2;
  wait_seen_s_ = now_s;
  still_waits_(cuda::unpack(word), now_s - waits_since_s_);
}

void Watchdog::notice(cuda::WaitKind kind, int peer) {
  HostControlBlock::store_first(control_block_.row(rank_).host_abort, cuda::pack({kind, rank_, peer, 0, 0, 0}));
}

}  // namespace tangram::comm
