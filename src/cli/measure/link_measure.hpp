// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Times of exchanges between ranks, and the constants that explain them.
#pragma once

#include "cli/machine_file.hpp"
#include "machine/fit.hpp"
#include "tangram/communicator.hpp"

namespace tangram::cli {

struct LinkMeasurement {
  LinkFit fit;
  std::vector<LinkSample> samples;
};

/// How far on the rank is to which each sends: over several nodes that in its place of the next one, else the next.
/// Collective. Throws InvalidArgument unless ranks are numbered node by node.
int ring_distance(Communicator& communicator);

/// Every rank sends to the one ring_distance on while it receives from the other side, in messages of unlike size and
/// number. Called on all ranks of a group of at least two; times are this rank's.
LinkMeasurement measure_link(Communicator& communicator, int num_repeats);

/// Bytes per second, read plus written, of copies in memory on the calling thread.
double measure_memory_bytes_per_s(int num_repeats);

}  // namespace tangram::cli
