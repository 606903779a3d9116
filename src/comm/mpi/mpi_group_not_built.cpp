// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// MpiGroup in a build without OpenMPI's headers.
#include "tangram/env.hpp"
#include "tangram/error.hpp"
#include "tangram/mpi_group.hpp"

namespace tangram {

class MpiGroup::Impl {};

std::string MpiGroup::unavailable_reason() { return "MPI: not part of this build (OpenMPI's headers were not found)"; }

bool MpiGroup::is_launched() { return !Env::mpi_launch().job.empty(); }

MpiGroup::MpiGroup(double) { throw NotAvailable(unavailable_reason()); }
MpiGroup::~MpiGroup() = default;
MpiGroup::MpiGroup(MpiGroup&&) noexcept = default;
MpiGroup& MpiGroup::operator=(MpiGroup&&) noexcept = default;

Communicator& MpiGroup::communicator() { throw NotAvailable(unavailable_reason()); }

}  // namespace tangram
