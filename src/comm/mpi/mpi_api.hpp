// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The functions of OpenMPI that the transport needs, loaded at run time. So a program built with them also runs without
// an MPI installation.
#pragma once

#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

namespace tangram::comm {

struct MpiApi {
  decltype(&::MPI_Init_thread) init_thread = nullptr;
  decltype(&::MPI_Initialized) initialized = nullptr;
  decltype(&::MPI_Query_thread) query_thread = nullptr;
  decltype(&::MPI_Finalize) finalize = nullptr;
  decltype(&::MPI_Comm_rank) comm_rank = nullptr;
  decltype(&::MPI_Comm_size) comm_size = nullptr;
  decltype(&::MPI_Comm_set_errhandler) comm_set_errhandler = nullptr;
  decltype(&::MPI_Isend) isend = nullptr;
  decltype(&::MPI_Irecv) irecv = nullptr;
  decltype(&::MPI_Recv) recv = nullptr;
  decltype(&::MPI_Iprobe) iprobe = nullptr;
  decltype(&::MPI_Testsome) testsome = nullptr;
  decltype(&::MPI_Cancel) cancel = nullptr;
  decltype(&::MPI_Error_string) error_string = nullptr;
  MPI_Comm world = nullptr;
  MPI_Datatype byte = nullptr;
  MPI_Errhandler errors_return = nullptr;

  /// Throws NotAvailable with the loader's reason when OpenMPI is not installed.
  static const MpiApi& get();

  /// Throws CommError with MPI's own text unless `code` is MPI_SUCCESS.
  void check(int code, const char* call) const;
};

}  // namespace tangram::comm
