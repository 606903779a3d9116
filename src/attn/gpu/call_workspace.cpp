// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/gpu/call_workspace.hpp"

#include "core/require.hpp"
#include "cuda/scratch_layout.hpp"

namespace tangram::gpu {

CallWorkspace::CallWorkspace(const char* function, const AttnWorkspace& given, int64_t needed, cudaStream_t stream) {
  if (needed == 0) return;
  if (given.data == nullptr) {
    lease_.emplace(cuda::workspace_of_current_device().acquire(static_cast<size_t>(needed), stream));
    data_ = lease_->data();
    return;
  }
  require(given.bytes >= needed && reinterpret_cast<uintptr_t>(given.data) % cuda::kScratchAlignment == 0,
          "{}: the workspace must have at least {} bytes, aligned to {} (got {} bytes at {})", function, needed,
          cuda::kScratchAlignment, given.bytes, given.data);
  data_ = given.data;
}

}  // namespace tangram::gpu
