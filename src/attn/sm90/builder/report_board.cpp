// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/builder/report_board.hpp"

#include <atomic>

#include "cuda/check.hpp"
#include "cuda/graph_lifetime.hpp"
#include "schedule/builder/report_text.hpp"
#include "tangram/error.hpp"

namespace tangram::sm90::builder {

ReportBoard::ReportBoard() {
  void* board = nullptr;
  cuda::check(cudaHostAlloc(&board, sizeof(Report), cudaHostAllocDefault), "cudaHostAlloc");
  board_.reset(new (board) Report());
}

void ReportBoard::FreeHost::operator()(Report* board) const {
  const cuda::AllowAllocationDuringCapture allow;  // to free
  static_cast<void>(cudaFreeHost(board));
}

void ReportBoard::copy(const Report* report, cudaStream_t stream) {
  cuda::check(cudaMemcpyAsync(board_.get(), report, sizeof(Report), cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
}

void ReportBoard::check() {
  const int32_t num_refused = std::atomic_ref(board_->num_refused).load(std::memory_order_acquire);
  if (num_refused == num_known_) return;
  num_known_ = num_refused;
  throw InvalidArgument(schedule::builder::report_text(*board_));
}

}  // namespace tangram::sm90::builder
