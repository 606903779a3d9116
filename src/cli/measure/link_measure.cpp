// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/measure/link_measure.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "comm/nodes/node_map.hpp"
#include "core/seconds_since.hpp"

namespace tangram::cli {

namespace {

using Clock = std::chrono::steady_clock;

// The fastest: what disturbs a transfer only makes it longer.
double fastest(const std::vector<double>& times) { return *std::min_element(times.begin(), times.end()); }

// `num_copies` runs of rows to the rank `distance` on, apart from each other on both sides, so that none can be joined.
Exchange ring_exchange(int rank, int size, int distance, int64_t num_copies, int64_t rows) {
  Exchange exchange;
  const int next = (rank + distance) % size, previous = (rank + size - distance) % size;
  for (int64_t c = 0; c < num_copies; ++c) {
    const int64_t begin = c * (rows + 1);
    exchange.sends.push_back({next, {begin, begin + rows}, begin});
    exchange.recvs.push_back({previous, {begin, begin + rows}, begin});
  }
  return exchange;
}

}  // namespace

int ring_distance(Communicator& communicator) {
  const comm::NodeMap nodes = comm::NodeMap::of(communicator);
  return nodes.num_nodes() > 1 ? nodes.ranks_per_node() : 1;
}

LinkMeasurement measure_link(Communicator& communicator, int num_repeats) {
  constexpr int kHeads = 8, kDim = 64;
  constexpr int64_t kRowBytes = kHeads * kDim * 4;
  struct Shape {
    int64_t num_copies;
    int64_t rows;
  };
  // 2 KiB to 32 MiB, in one message and in many.
  constexpr Shape kShapes[] = {{1, 1},  {1, 64},  {1, 1024}, {1, 4096}, {1, 16384},
                               {16, 1}, {16, 64}, {64, 16},  {256, 1},  {256, 32}};
  constexpr int64_t kMaxRows = 16384 + 256;
  HostTensor source(DType::kFloat32, kMaxRows, kHeads, kDim), target = source.clone();
  source.fill(1);
  target.fill(0);
  LinkMeasurement result;
  const int rank = communicator.rank(), size = communicator.size(), distance = ring_distance(communicator);
  for (const Shape& shape : kShapes) {
    const Exchange exchange = ring_exchange(rank, size, distance, shape.num_copies, shape.rows);
    std::vector<double> times;
    for (int i = 0; i <= num_repeats; ++i) {
      communicator.barrier("measure");
      const auto begin = Clock::now();
      const CastTensor tensor{source, target};
      communicator.group_cast(exchange, {&tensor, 1}, "measure")->wait();
      if (i > 0) times.push_back(seconds_since(begin));
    }
    result.samples.push_back({static_cast<double>(shape.num_copies * shape.rows * kRowBytes),
                              static_cast<double>(shape.num_copies), fastest(times)});
  }
  result.fit = fit_link(result.samples);
  return result;
}

double measure_memory_bytes_per_s(int num_repeats) {
  constexpr size_t kBytes = size_t{64} << 20;
  std::vector<char> from(kBytes, 1), to(kBytes, 2);
  std::vector<double> times;
  for (int i = 0; i <= num_repeats; ++i) {
    const auto begin = Clock::now();
    std::memcpy(to.data(), from.data(), kBytes);
    from[0] = to[kBytes / 2];  // keeps the copy
    if (i > 0) times.push_back(seconds_since(begin));
  }
  return 2 * static_cast<double>(kBytes) / fastest(times);
}

}  // namespace tangram::cli
