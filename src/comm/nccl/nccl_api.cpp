// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/nccl/nccl_api.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include "tangram/env.hpp"
#include "tangram/error.hpp"

namespace tangram::comm {

namespace {

template <class Function>
void find(void* library, const std::string& name_of_library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) throw NotAvailable(fmt::format("NCCL: {} lacks {}", name_of_library, name));
}

std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace

NcclApi NcclApi::load(const std::string& library) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);  // never closed: it has threads
  if (handle == nullptr) {
    throw NotAvailable(fmt::format("NCCL: must be installed, or named by TANGRAM_NCCL_LIBRARY ({})", dlerror()));
  }
  NcclApi api;
  find(handle, library, "ncclGetVersion", api.get_version);
  if (api.get_version(&api.version) != kSuccess || api.version < kMinVersion) {
    throw NotAvailable(fmt::format("NCCL: must be {} or newer (got {} from {})", version_text(kMinVersion),
                                   version_text(api.version), library));
  }
  find(handle, library, "ncclGetUniqueId", api.get_unique_id);
  find(handle, library, "ncclCommInitRankConfig", api.comm_init_rank_config);
  find(handle, library, "ncclCommFinalize", api.comm_finalize);
  find(handle, library, "ncclCommDestroy", api.comm_destroy);
  find(handle, library, "ncclCommAbort", api.comm_abort);
  find(handle, library, "ncclCommGetAsyncError", api.comm_get_async_error);
  find(handle, library, "ncclGroupStart", api.group_start);
  find(handle, library, "ncclGroupEnd", api.group_end);
  find(handle, library, "ncclSend", api.send);
  find(handle, library, "ncclRecv", api.recv);
  find(handle, library, "ncclGetErrorString", api.get_error_string);
  api.comm_revoke = reinterpret_cast<decltype(api.comm_revoke)>(dlsym(handle, "ncclCommRevoke"));
  return api;
}

const NcclApi& NcclApi::get() {
  static const NcclApi api = load(Env::get().nccl_library);
  return api;
}

void NcclApi::check(int result, const char* call) const {
  if (result == kSuccess || result == kInProgress) return;
  throw CommError(fmt::format("{}: must succeed (got: {})", call, get_error_string(result)));
}

}  // namespace tangram::comm
