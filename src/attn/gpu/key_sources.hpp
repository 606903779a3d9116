// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Awaited keys and local K/V of the calls of a mask part, in host memory and on the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "attn/gpu/ready_flags.hpp"
#include "cuda/packed_arrays.hpp"
#include "schedule/awaited_keys.hpp"
#include "schedule/local_kv_table.hpp"
#include "tangram/attention.hpp"

namespace tangram::gpu {

struct KeySources {
  schedule::AwaitedKeys awaited;
  std::vector<GranuleRange> local;  ///< local_ranges_of_granules(); empty: all keys are read from k and v
  int64_t num_local_rows = 0;       ///< that the other tensors must have

  KeySources() = default;
  /// Throws InvalidArgument for ranges that overlap or lie outside, and for too many flags.
  explicit KeySources(const MaskRequest& request);
};

/// Key sources of a mask part, uploaded once.
class DeviceKeySources {
 public:
  DeviceKeySources() = default;
  /// Throws CudaError.
  explicit DeviceKeySources(const KeySources& sources);

  bool awaits_keys() const { return all_flags_ != 0; }
  /// Before each call is put on `stream`.
  void before_call(cudaStream_t stream) const { arrays_.before_call(stream); }
  /// Parameters of a call; `ready_flags` may be null.
  ReadyFlagParams flag_params(const KvReadyFlags* ready_flags) const;
  /// Parameters of a call that gives these other tensors or, empty ones, none, with ranges of its `table` or, null, of
  /// the part. Throws InvalidArgument, naming `function`, unless they are like k and v and have the rows of the ranges.
  LocalKvParams local_params(const char* function, const AttnShape& shape, const ConstTensorView& k,
                             const ConstTensorView& v, const void* table) const;
  size_t device_bytes() const { return arrays_.device_bytes(); }

 private:
  cuda::PackedArrays arrays_;
  cuda::PackedArray needed_, flags_, of_granule_;
  uint64_t all_flags_ = 0;
  int64_t num_local_rows_ = 0;
};

}  // namespace tangram::gpu
