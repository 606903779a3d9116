// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/mpi/mpi_api.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <string>

#include "tangram/error.hpp"

namespace tangram::comm {

namespace {

// The ABI of OpenMPI 3 to 5.
constexpr const char* kLibrary = "libmpi.so.40";

class Loader {
 public:
  // Global, because OpenMPI's own plugins look for its symbols.
  Loader() : library_(dlopen(kLibrary, RTLD_NOW | RTLD_GLOBAL)) {
    if (library_ == nullptr) throw NotAvailable(fmt::format("MPI: OpenMPI is not installed ({})", dlerror()));
  }
  template <class Pointer>
  void find(Pointer& pointer, const char* name) const {
    pointer = reinterpret_cast<Pointer>(dlsym(library_, name));
    if (pointer == nullptr) throw NotAvailable(fmt::format("MPI: {} lacks {}", kLibrary, name));
  }

 private:
  void* library_;  // never closed: MPI cannot be started twice
};

MpiApi load() {
  const Loader loader;
  MpiApi api;
  loader.find(api.init_thread, "MPI_Init_thread");
  loader.find(api.initialized, "MPI_Initialized");
  loader.find(api.query_thread, "MPI_Query_thread");
  loader.find(api.finalize, "MPI_Finalize");
  loader.find(api.comm_rank, "MPI_Comm_rank");
  loader.find(api.comm_size, "MPI_Comm_size");
  loader.find(api.comm_set_errhandler, "MPI_Comm_set_errhandler");
  loader.find(api.isend, "MPI_Isend");
  loader.find(api.irecv, "MPI_Irecv");
  loader.find(api.recv, "MPI_Recv");
  loader.find(api.iprobe, "MPI_Iprobe");
  loader.find(api.testsome, "MPI_Testsome");
  loader.find(api.cancel, "MPI_Cancel");
  loader.find(api.error_string, "MPI_Error_string");
  // What MPI_COMM_WORLD and its like stand for in OpenMPI.
  loader.find(api.world, "ompi_mpi_comm_world");
  loader.find(api.byte, "ompi_mpi_byte");
  loader.find(api.errors_return, "ompi_mpi_errors_return");
  return api;
}

}  // namespace

const MpiApi& MpiApi::get() {
  static const MpiApi api = load();
  return api;
}

void MpiApi::check(int code, const char* call) const {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  error_string(code, text, &length);
  throw CommError(fmt::format("{} failed: {}", call, std::string(text, static_cast<size_t>(length))));
}

}  // namespace tangram::comm
