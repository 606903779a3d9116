// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Random exchange tables, made alike on every rank from a seed, and a value for each element from which every rank
// knows what it must receive.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "tangram/communicator.hpp"
#include "tangram/exchange.hpp"
#include "tangram/tensor.hpp"

namespace tangram::testing {

struct RandomExchange {
  int64_t shard_rows = 0;
  std::vector<int64_t> buffer_rows;  // by rank
  std::vector<Exchange> ranks;
};

/// Every rank needs random runs of random peers' shards and lays them out in its buffer with gaps, the pieces of a peer
/// in ascending order but those of different peers interleaved.
inline RandomExchange make_random_exchange(int size, uint64_t seed) {
  std::mt19937_64 rng(seed);
  const auto below = [&](int64_t bound) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(bound)); };
  RandomExchange result;
  result.shard_rows = 1 + below(40);
  result.ranks.resize(static_cast<size_t>(size));
  for (int dst = 0; dst < size; ++dst) {
    struct Piece {
      int src;
      Range rows;
    };
    std::vector<std::vector<Piece>> of_peer(static_cast<size_t>(size));
    for (int src = 0; src < size; ++src) {
      if (src == dst || below(4) == 0) continue;
      for (int64_t row = below(5); row < result.shard_rows;) {
        const int64_t end = std::min(result.shard_rows, row + 1 + below(9));
        of_peer[static_cast<size_t>(src)].push_back({src, {row, end}});
        row = end + below(4);
      }
    }
    int64_t buffer_row = below(3);
    std::vector<size_t> taken(static_cast<size_t>(size), 0);
    while (true) {
      std::vector<size_t> open;
      for (size_t src = 0; src < of_peer.size(); ++src) {
        if (taken[src] < of_peer[src].size()) open.push_back(src);
      }
      if (open.empty()) break;
      const size_t src = open[static_cast<size_t>(below(std::ssize(open)))];
      const Piece piece = of_peer[src][taken[src]++];
      const Range buffer{buffer_row, buffer_row + piece.rows.size()};
      result.ranks[static_cast<size_t>(dst)].recvs.push_back({piece.src, buffer, piece.rows.begin});
      result.ranks[src].sends.push_back({dst, piece.rows, buffer.begin});
      buffer_row = buffer.end + below(3);
    }
    result.buffer_rows.push_back(buffer_row + below(3));
  }
  for (Exchange& exchange : result.ranks) {
    std::sort(exchange.sends.begin(), exchange.sends.end());
    std::sort(exchange.recvs.begin(), exchange.recvs.end());
  }
  return result;
}

/// Every rank owns a row, to which all others add one of theirs. The sum of the numbers in float32 depends on its
/// order.
class SumOfAllRanks {
 public:
  SumOfAllRanks(int rank, int size) : partial_(DType::kFloat32, size, 1, 1), owned_(DType::kFloat32, 1, 1, 1) {
    for (int peer = 0; peer < size; ++peer) {
      partial_.set(peer, 0, 0, value(rank, peer));
      if (peer == rank) continue;
      exchange_.sends.push_back({peer, {0, 1}, rank});
      exchange_.recvs.push_back({peer, {peer, peer + 1}, 0});
    }
    owned_.set(0, 0, 0, value(rank, rank));
  }

  /// What `rank` adds to the row of `owner`.
  static float value(int rank, int owner) {
    return (rank % 2 == 0 ? 1.0f : -1.0f) * std::pow(3.7f, static_cast<float>(rank + owner));
  }
  /// This rank's row, summed up.
  float sum(Communicator& comm) {
    const ReduceTensor tensors[] = {{partial_, owned_}};
    comm.group_reduce(exchange_, tensors, ReduceOp::kSum, "order")->wait();
    return owned_.at(0, 0, 0);
  }

 private:
  HostTensor partial_, owned_;
  Exchange exchange_;
};

/// A small integer, exact in every dtype, that tells rank, tensor, row, head and column apart well enough.
inline float element_value(int rank, int tensor, int64_t row, int head, int d) {
  return static_cast<float>((rank * 31 + tensor * 17 + row * 7 + head * 3 + d) % 61 - 30);
}

inline HostTensor make_filled(DType dtype, int64_t rows, int heads, int dim, int rank, int tensor) {
  HostTensor result(dtype, rows, heads, dim);
  for (int64_t row = 0; row < rows; ++row) {
    for (int head = 0; head < heads; ++head) {
      for (int d = 0; d < dim; ++d) result.set(row, head, d, element_value(rank, tensor, row, head, d));
    }
  }
  return result;
}

}  // namespace tangram::testing
