// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The tables of all ranks, from which two levels are made, gathered from the tables of each rank.
#pragma once

#include <vector>

#include "tangram/communicator.hpp"
#include "tangram/exchange.hpp"

namespace tangram::comm {

/// What each rank sends, by rank. Collective.
std::vector<std::vector<RowCopy>> gather_sends(Communicator& world, std::vector<RowCopy> own);

/// The tables of all ranks from what they send.
std::vector<Exchange> exchanges_of(std::vector<std::vector<RowCopy>> sends);

}  // namespace tangram::comm
