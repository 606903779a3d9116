// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The functions of NCCL that the transport needs, loaded at run time, so that nothing needs NCCL to build or to start.
// Declared after NCCL's public documentation; the ABI of these has not changed since 2.18.
#pragma once

#include <climits>
#include <cstddef>
#include <string>

struct CUstream_st;  // CUDA's, as cudaStream_t points to it

namespace tangram::comm {

struct NcclApi {
  static constexpr int kMinVersion = 21800;  // major * 10000 + minor * 100 + patch

  using Comm = struct NcclComm*;  // opaque
  using Stream = CUstream_st*;
  struct UniqueId {
    char bytes[128] = {};
  };
  enum Result : int { kSuccess = 0, kRemoteError = 6, kInProgress = 7 };
  static constexpr int kUint8 = 1;  // ncclDataType_t
  /// ncclConfig_t of NCCL 2.18; newer libraries use defaults for missing fields, by `size` and version.
  struct Config {
    size_t size = sizeof(Config);
    unsigned int magic = 0xcafebeef;
    unsigned int version = kMinVersion;
    int blocking = INT_MIN;  // INT_MIN: not set
    int cga_cluster_size = INT_MIN;
    int min_ctas = INT_MIN;
    int max_ctas = INT_MIN;
    const char* net_name = nullptr;
    int split_share = INT_MIN;
  };

  int (*get_version)(int* version) = nullptr;
  int (*get_unique_id)(UniqueId* id) = nullptr;
  int (*comm_init_rank_config)(Comm* comm, int size, UniqueId id, int rank, Config* config) = nullptr;
  int (*comm_finalize)(Comm comm) = nullptr;
  int (*comm_destroy)(Comm comm) = nullptr;
  int (*comm_abort)(Comm comm) = nullptr;
  int (*comm_get_async_error)(Comm comm, int* result) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*send)(const void* data, size_t count, int type, int peer, Comm comm, Stream stream) = nullptr;
  int (*recv)(void* data, size_t count, int type, int peer, Comm comm, Stream stream) = nullptr;
  const char* (*get_error_string)(int result) = nullptr;
  /// Ends the operations under way without freeing what peers may read; since 2.28, else null.
  int (*comm_revoke)(Comm comm, int flags) = nullptr;
  int version = 0;

  /// Throws NotAvailable with the reason when `library` is not there, is no NCCL, or is too old.
  static NcclApi load(const std::string& library);
  /// API of Env::nccl_library, loaded once.
  static const NcclApi& get();

  /// Throws CommError with NCCL's own text unless `result` is kSuccess or kInProgress.
  void check(int result, const char* call) const;
};

}  // namespace tangram::comm
