// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Which keys of a mask are awaited, in device memory. Apart from arrivals.hpp, so that kernels do not depend on how a
// mask keeps its memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "attn/sm90/ready_flags.hpp"
#include "cuda/packed_arrays.hpp"
#include "schedule/awaited_keys.hpp"

namespace tangram::sm90 {

/// Those of a mask, uploaded once.
class DeviceAwaitedKeys {
 public:
  DeviceAwaitedKeys() = default;
  explicit DeviceAwaitedKeys(const schedule::AwaitedKeys& awaited_keys);

  /// Before each call is put on `stream`.
  void before_call(cudaStream_t stream) const { arrays_.before_call(stream); }
  /// Parameters of a call; `arrivals` may be null.
  ReadyFlagParams params(const KvReadyFlags* ready_flags) const;
  bool empty() const { return all_ == 0; }
  size_t device_bytes() const { return arrays_.device_bytes(); }

 private:
  cuda::PackedArrays arrays_;
  cuda::PackedArray needed_, flags_;
  uint64_t all_ = 0;
};

}  // namespace tangram::sm90
