// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/nccl/nccl_watch.hpp"

#include <fmt/format.h>

#include <utility>

#include "comm/nccl/blame.hpp"
#include "comm/nccl/nccl_api.hpp"
#include "comm/progress_communicator.hpp"

namespace tangram::comm {

using cuda::WaitFailure;

NcclWatch::NcclWatch(Group group) : group_(std::move(group)), since_s_(steady_seconds()) {}

void NcclWatch::look_at_deadline() {
  const cuda::ControlBlockRow& row = group_.control_block.row(group_.rank);
  const uint64_t operation = HostControlBlock::load(row.operation);
  if (operation != seen_) {
    seen_ = operation;
    since_s_ = steady_seconds();
  }
  if (operation == 0 || HostControlBlock::load(row.report) != 0) return;
  WaitFailure failure = cuda::unpack(operation);
  failure.detail = 0;
  if (const uint64_t noticed = HostControlBlock::load(row.host_abort); noticed != 0) {
    failure.peer = cuda::unpack(noticed).peer;
    failure.detail = static_cast<int>(cuda::unpack(noticed).kind);
    publish(failure);
    return;
  }
  const double waited_s = steady_seconds() - since_s_;
  if (waited_s <= group_.timeout_s / 2) return;
  failure.peer = slowest_peer(group_.control_block, group_.rank);
  if (waited_s > group_.timeout_s) {
    publish(failure);
  } else {
    group_.note_wait(failure, waited_s);
  }
}

void NcclWatch::look_at_result(int result, const char* text) {
  if (result == NcclApi::kSuccess || result == NcclApi::kInProgress) return;
  if (result == NcclApi::kRemoteError) {
    if (lost_since_s_ == 0) lost_since_s_ = steady_seconds();
    if (steady_seconds() - lost_since_s_ < kNcclNaming_s) return;
  }
  const int peer = slowest_peer(group_.control_block, group_.rank);
  group_.give_up(fmt::format("NCCL: {}{}", text, peer < 0 ? "" : ", waiting for " + group_.name_of(peer)));
}

void NcclWatch::publish(const WaitFailure& failure) {
  for (int rank = 0; rank < group_.control_block.size(); ++rank) {
    HostControlBlock::store_first(group_.control_block.row(rank).report, cuda::pack(failure));
  }
}

bool NcclWatch::has_failed() const {
  const cuda::ControlBlockRow& row = group_.control_block.row(group_.rank);
  return HostControlBlock::load(row.report) != 0 || HostControlBlock::load(row.host_abort) != 0;
}

}  // namespace tangram::comm
