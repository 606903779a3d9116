// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/gpu/builder/error_report_buffer.hpp"

#include <atomic>

#include "cuda/check.hpp"
#include "cuda/graph_lifetime.hpp"
#include "schedule/builder/report_text.hpp"
#include "tangram/error.hpp"

namespace tangram::gpu::builder {

ErrorReportBuffer::ErrorReportBuffer() {
  void* control_block = nullptr;
  cuda::check(cudaHostAlloc(&control_block, sizeof(Report), cudaHostAllocDefault), "cudaHostAlloc");
  control_block_.reset(new (control_block) Report());
}

void ErrorReportBuffer::FreeHost::operator()(Report* control_block) const {
  const cuda::AllowAllocationDuringCapture allow;  // to free
  static_cast<void>(cudaFreeHost(control_block));
}

void ErrorReportBuffer::copy(const Report* report, cudaStream_t stream) {
  cuda::check(cudaMemcpyAsync(control_block_.get(), report, sizeof(Report), cudaMemcpyDeviceToHost, stream),
              "cudaMemcpyAsync");
}

void ErrorReportBuffer::check() {
  const int32_t num_refused = std::atomic_ref(control_block_->num_refused).load(std::memory_order_acquire);
  if (num_refused == num_known_) return;
  num_known_ = num_refused;
  throw InvalidArgument(schedule::builder::report_text(*control_block_));
}

}  // namespace tangram::gpu::builder
