// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/communicator_suite.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "comm/exchange_tables.hpp"
#include "tangram/error.hpp"

namespace tangram::testing {
namespace {

using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr uint64_t kNumSeeds = 6;
constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

/// Runs `call` and returns the text of the InvalidArgument that it must throw.
template <class Call>
std::string invalid_argument_text(Call call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "expected InvalidArgument, got: " << error.what();
    return {};
  }
  ADD_FAILURE() << "expected InvalidArgument, nothing was thrown";
  return {};
}

void expect_equal(const HostTensor& actual, const HostTensor& expected) {
  for (int64_t row = 0; row < expected.rows(); ++row) {
    for (int head = 0; head < expected.heads(); ++head) {
      for (int d = 0; d < expected.dim(); ++d) {
        const float want = expected.at(row, head, d), got = actual.at(row, head, d);
        ASSERT_TRUE(got == want || (std::isnan(got) && std::isnan(want)))
            << "row " << row << " head " << head << " d " << d << ": " << got << " is not " << want;
      }
    }
  }
}

void casts_rows_to_where_the_tables_say(Communicator& comm) {
  const int rank = comm.rank();
  for (uint64_t seed = 0; seed < kNumSeeds; ++seed) {
    const RandomExchange tables = make_random_exchange(comm.size(), seed);
    const Exchange& exchange = tables.ranks[static_cast<size_t>(rank)];
    const int64_t buffer_rows = tables.buffer_rows[static_cast<size_t>(rank)];
    const DType dtype = kDTypes[seed % 3];
    const HostTensor k = make_filled(dtype, tables.shard_rows, 2, 5, rank, 0);
    const HostTensor v = make_filled(dtype, tables.shard_rows, 2, 3, rank, 1);
    HostTensor k_buffer(dtype, buffer_rows, 2, 5), v_buffer(dtype, buffer_rows, 2, 3);
    HostTensor k_expected(dtype, buffer_rows, 2, 5), v_expected(dtype, buffer_rows, 2, 3);
    for (HostTensor* tensor : {&k_buffer, &v_buffer, &k_expected, &v_expected}) tensor->fill(std::nanf(""));
    for (const RowCopy& copy : exchange.recvs) {
      for (int64_t i = 0; i < copy.rows.size(); ++i) {
        for (int head = 0; head < 2; ++head) {
          for (int d = 0; d < 5; ++d) {
            k_expected.set(copy.rows.begin + i, head, d, element_value(copy.peer, 0, copy.peer_row + i, head, d));
            if (d < 3)
              v_expected.set(copy.rows.begin + i, head, d, element_value(copy.peer, 1, copy.peer_row + i, head, d));
          }
        }
      }
    }
    comm.reset_counters();
    const CastTensor tensors[] = {{k, k_buffer}, {v, v_buffer}};
    const auto handle = comm.group_cast(exchange, tensors, "kv");
    handle->wait();
    expect_equal(k_buffer, k_expected);
    expect_equal(v_buffer, v_expected);

    const TrafficCounters counters = comm.counters();
    EXPECT_EQ(counters.rows_received, 2 * exchange.rows_received());
    EXPECT_EQ(counters.rows_sent, 2 * exchange.rows_sent());
    EXPECT_EQ(counters.bytes_received, exchange.rows_received() * (k.view().row_bytes() + v.view().row_bytes()));
    EXPECT_EQ(counters.bytes_sent, exchange.rows_sent() * (k.view().row_bytes() + v.view().row_bytes()));
    EXPECT_EQ(counters.operations, 1);
    const CommTimes times = handle->times();
    EXPECT_LE(times.posted_s, times.started_s);
    EXPECT_LE(times.started_s, times.finished_s);
  }
}

void casts_strided_rows(Communicator& comm) {
  // Each rank sends its row 1 to the next rank, out of and into tensors whose rows and heads are wider than the view.
  const int rank = comm.rank(), size = comm.size();
  if (size == 1) return;
  const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
  const HostTensor wide = make_filled(DType::kFloat32, 4, 3, 8, rank, 0);
  HostTensor target(DType::kFloat32, 4, 3, 8);
  target.fill(-100);
  ConstTensorView source_view = wide;
  TensorView target_view = target;
  source_view.heads = target_view.heads = 2;
  source_view.dim = target_view.dim = 5;
  const Exchange exchange{{{next, {1, 3}, 0}}, {{previous, {0, 2}, 1}}};
  const CastTensor tensors[] = {{source_view, target_view}};
  comm.group_cast(exchange, tensors, "strided")->wait();
  for (int64_t row = 0; row < 4; ++row) {
    for (int head = 0; head < 3; ++head) {
      for (int d = 0; d < 8; ++d) {
        const bool inside = row < 2 && head < 2 && d < 5;
        EXPECT_EQ(target.at(row, head, d), inside ? element_value(previous, 0, row + 1, head, d) : -100);
      }
    }
  }
}

void reduces_rows_into_their_owners(Communicator& comm) {
  const int rank = comm.rank();
  for (uint64_t seed = 0; seed < 2 * kNumSeeds; ++seed) {
    const RandomExchange tables = make_random_exchange(comm.size(), seed + 100);
    const Exchange& exchange = tables.ranks[static_cast<size_t>(rank)];
    const DType dtype = kDTypes[seed % 3];
    const ReduceOp op = seed % 2 == 0 ? ReduceOp::kSum : ReduceOp::kAvg;
    const HostTensor partial = make_filled(dtype, tables.buffer_rows[static_cast<size_t>(rank)], 2, 5, rank, 0);
    HostTensor owned = make_filled(dtype, tables.shard_rows, 2, 5, rank, 1);
    HostTensor expected(dtype, tables.shard_rows, 2, 5);
    for (int64_t row = 0; row < tables.shard_rows; ++row) {
      for (int head = 0; head < 2; ++head) {
        for (int d = 0; d < 5; ++d) {
          double sum = element_value(rank, 1, row, head, d);
          int count = 1;
          for (const RowCopy& copy : exchange.sends) {
            if (!copy.rows.contains(row)) continue;
            sum += element_value(copy.peer, 0, copy.peer_row + row - copy.rows.begin, head, d);
            ++count;
          }
          // Integers below 2^8 add exactly in float32; the quotient is rounded to float32 and then to the dtype.
          const float scale = op == ReduceOp::kAvg ? 1.0f / static_cast<float>(count) : 1.0f;
          expected.set(row, head, d, static_cast<float>(sum) * scale);
        }
      }
    }
    const ReduceTensor tensors[] = {{partial, owned}};
    comm.group_reduce(exchange, tensors, op, "dkv")->wait();
    expect_equal(owned, expected);
  }
}

void reduces_in_rank_order(Communicator& comm) {
  const int rank = comm.rank(), size = comm.size();
  const float sum = SumOfAllRanks(rank, size).sum(comm);
  float expected = SumOfAllRanks::value(0, rank);
  for (int peer = 1; peer < size; ++peer) expected += SumOfAllRanks::value(peer, rank);
  EXPECT_EQ(sum, expected);
}

void reduces_under_way_share_owned_rows(Communicator& comm) {
  const int rank = comm.rank(), size = comm.size();
  if (size == 1) return;
  const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
  const Exchange exchange{{{previous, {0, 1}, 0}}, {{next, {0, 1}, 0}}};
  HostTensor owned(DType::kFloat32, 1, 1, 1);
  owned.fill(0);
  std::vector<HostTensor> partials;
  for (int i = 0; i < 8; ++i) {
    partials.emplace_back(DType::kFloat32, 1, 1, 1);
    partials.back().fill(static_cast<float>(1 << i));
  }
  std::vector<std::unique_ptr<CommHandle>> handles;
  for (const HostTensor& partial : partials) {
    const ReduceTensor tensors[] = {{partial, owned}};
    handles.push_back(comm.group_reduce(exchange, tensors, ReduceOp::kSum, "shared"));
  }
  for (const auto& handle : handles) handle->wait();
  EXPECT_EQ(owned.at(0, 0, 0), 255);
}

void merges_partial_results_by_lse(Communicator& comm) {
  const int rank = comm.rank(), size = comm.size();
  constexpr int kHeads = 2, kDim = 3;
  constexpr int64_t kRows = 6;
  // No rank sees row 3; row 4 only odd ranks see, whose even peers hold NaN there; row 5 only the last rank, for which
  // it is NaN.
  const auto lse_of = [size](int r, int64_t row, int head) {
    if (row == 3 || (row == 4 && r % 2 == 0) || (row == 5 && r != size - 1)) return -kInfinity;
    if (row == 5) return std::nanf("");
    return static_cast<float>(10 * std::sin(double(r * 5 + row * 3 + head)));
  };
  const auto out_of = [&](int r, int64_t row, int head, int d) {
    return lse_of(r, row, head) == -kInfinity ? std::nanf("") : element_value(r, 0, row, head, d);
  };
  // Everybody holds a partial result for everybody's rows, in rank order.
  HostTensor partial(DType::kFloat32, size * kRows, kHeads, kDim),
      partial_lse(DType::kFloat32, size * kRows, kHeads, 1);
  HostTensor out(DType::kFloat32, kRows, kHeads, kDim), lse(DType::kFloat32, kRows, kHeads, 1);
  Exchange exchange;
  for (int peer = 0; peer < size; ++peer) {
    for (int64_t row = 0; row < kRows; ++row) {
      for (int head = 0; head < kHeads; ++head) {
        HostTensor& to = peer == rank ? out : partial;
        HostTensor& to_lse = peer == rank ? lse : partial_lse;
        const int64_t to_row = peer == rank ? row : peer * kRows + row;
        to_lse.set(to_row, head, 0, lse_of(rank, row, head));
        for (int d = 0; d < kDim; ++d) to.set(to_row, head, d, out_of(rank, row, head, d));
      }
    }
    if (peer == rank) continue;
    exchange.sends.push_back({peer, {0, kRows}, rank * kRows});
    exchange.recvs.push_back({peer, {peer * kRows, (peer + 1) * kRows}, 0});
  }
  comm.group_reduce_lse(exchange, {partial, partial_lse.data<float>(), out, lse.data<float>()}, "merge")->wait();
  const int num_contributors = size;
  for (int64_t row = 0; row < kRows; ++row) {
    for (int head = 0; head < kHeads; ++head) {
      if (row == 5) {
        EXPECT_TRUE(std::isnan(lse.at(row, head, 0))) << "a NaN was lost";
        for (int d = 0; size > 1 && d < kDim; ++d) EXPECT_TRUE(std::isnan(out.at(row, head, d)));
        continue;
      }
      double total = 0, sums[kDim] = {};
      for (int r = 0; r < num_contributors; ++r) {
        const double weight = std::exp(static_cast<double>(lse_of(r, row, head)));
        if (weight == 0) continue;
        total += weight;
        for (int d = 0; d < kDim; ++d) sums[d] += weight * out_of(r, row, head, d);
      }
      if (total == 0) {
        // A rank alone keeps what it has; merged rows that no rank saw are zero.
        EXPECT_EQ(lse.at(row, head, 0), -kInfinity);
        if (size > 1) {
          for (int d = 0; d < kDim; ++d) EXPECT_EQ(out.at(row, head, d), 0);
        }
        continue;
      }
      // float32 arithmetic on values below 31: a few ulp of the largest.
      EXPECT_NEAR(lse.at(row, head, 0), std::log(total), 1e-5);
      for (int d = 0; d < kDim; ++d) EXPECT_NEAR(out.at(row, head, d), sums[d] / total, 2e-5);
    }
  }
}

void exchanges_all_to_all_with_own_rows(Communicator& comm) {
  const int rank = comm.rank(), size = comm.size();
  const auto count = [](int from, int to) { return static_cast<int64_t>((from * 3 + to * 2) % 4); };
  std::vector<int64_t> send_rows, recv_rows;
  int64_t num_send = 0, num_recv = 0;
  for (int peer = 0; peer < size; ++peer) {
    send_rows.push_back(count(rank, peer));
    recv_rows.push_back(count(peer, rank));
    num_send += send_rows.back();
    num_recv += recv_rows.back();
  }
  const HostTensor send = make_filled(DType::kBFloat16, num_send, 2, 3, rank, 0);
  HostTensor recv(DType::kBFloat16, num_recv, 2, 3);
  comm.all_to_all_v(send, send_rows, recv, recv_rows, "a2a")->wait();
  int64_t row = 0;
  for (int peer = 0; peer < size; ++peer) {
    int64_t first = 0;
    for (int to = 0; to < rank; ++to) first += count(peer, to);
    for (int64_t i = 0; i < count(peer, rank); ++i, ++row) {
      EXPECT_EQ(recv.at(row, 1, 2), element_value(peer, 0, first + i, 1, 2)) << "row " << i << " from " << peer;
    }
  }
}

void all_reduces_in_place(Communicator& comm) {
  const int size = comm.size();
  const float r = static_cast<float>(comm.rank());
  const float sum = static_cast<float>(size * (size - 1)) / 2;
  float values[] = {r, -kInfinity, -r};
  comm.all_reduce(values, ReduceOp::kMax, "max");
  EXPECT_EQ(values[0], static_cast<float>(size - 1));
  EXPECT_EQ(values[1], -kInfinity);
  EXPECT_EQ(values[2], 0);
  float sums[] = {r, 1};
  comm.all_reduce(sums, ReduceOp::kSum, "sum");
  EXPECT_EQ(sums[0], sum);
  EXPECT_EQ(sums[1], static_cast<float>(size));
  float average[] = {r};
  comm.all_reduce(average, ReduceOp::kAvg, "avg");
  EXPECT_FLOAT_EQ(average[0], sum / static_cast<float>(size));
}

void agrees_or_names_who_differs(Communicator& comm) {
  comm.require_agreement(42, "mask");
  if (comm.size() == 1) return;
  const int last = comm.size() - 1;
  const std::string text =
      invalid_argument_text([&] { comm.require_agreement(comm.rank() == last ? 7u : 42u, "mask and config"); });
  EXPECT_THAT(text, HasSubstr("mask and config: must be equal on every rank"));
  EXPECT_THAT(text, HasSubstr("rank " + std::to_string(last) + ": 0000000000000007"));
  comm.barrier("still usable");
}

void detects_unlike_calls_on_every_rank(Communicator& comm) {
  if (comm.size() == 1) return;
  float value = 1;
  const std::string text = invalid_argument_text([&] {
    if (comm.rank() == 0) {
      comm.barrier("end");
    } else {
      comm.all_reduce({&value, 1}, ReduceOp::kSum, "loss");
    }
  });
  EXPECT_THAT(text, HasSubstr("every rank must make the same call"));
  EXPECT_THAT(text, HasSubstr("rank 0: barrier 'end'"));
  EXPECT_THAT(text, HasSubstr("all_reduce 'loss'"));
  EXPECT_EQ(value, 1);
  const std::string labels = invalid_argument_text([&] { comm.barrier(comm.rank() == 0 ? "layer 1" : "layer 2"); });
  EXPECT_THAT(labels, HasSubstr("rank 0: barrier 'layer 1'"));
  const std::string ops = invalid_argument_text(
      [&] { comm.all_reduce({&value, 1}, comm.rank() == 0 ? ReduceOp::kMax : ReduceOp::kSum, "loss"); });
  EXPECT_THAT(ops, HasSubstr("all_reduce 'loss': every rank must pass the same op"));
  comm.barrier("still usable");
}

CallFingerprint fingerprint_of(uint64_t mask, float softcap) {
  CallFingerprint fingerprint;
  fingerprint.set(CallFingerprint::kMask, mask);
  fingerprint.set(CallFingerprint::kSoftcap, softcap);
  return fingerprint;
}

void names_which_fields_of_calls_differ(Communicator& comm) {
  const bool is_last = comm.rank() == comm.size() - 1;
  comm.set_call_fingerprint(fingerprint_of(5, 0.5f));
  comm.barrier("alike");
  if (comm.size() == 1) return;
  comm.set_call_fingerprint(fingerprint_of(5, is_last ? 2.0f : 0.5f));
  const std::string last = "rank " + std::to_string(comm.size() - 1);
  const std::string softcaps = invalid_argument_text([&] { comm.barrier("pass"); });
  EXPECT_THAT(softcaps, HasSubstr("softcaps differ (rank"));
  EXPECT_THAT(softcaps, HasSubstr(": 0.5; " + last));
  EXPECT_THAT(softcaps, HasSubstr(last + ": 2)"));
  EXPECT_THAT(softcaps, ::testing::Not(HasSubstr("masks")));
  // What differs is said although the calls themselves differ as well.
  comm.set_call_fingerprint(fingerprint_of(is_last ? 7 : 5, 0.5f));
  const std::string masks = invalid_argument_text([&] { comm.barrier(is_last ? "kv stage 2" : "kv stage 1"); });
  EXPECT_THAT(masks, HasSubstr("masks differ (rank"));
  EXPECT_THAT(masks, HasSubstr(last + ": 0000000000000007)"));
  // Facts that one rank does not give are not compared.
  CallFingerprint only_mask;
  only_mask.set(CallFingerprint::kMask, uint64_t{5});
  comm.set_call_fingerprint(is_last ? only_mask : fingerprint_of(5, 2.0f));
  comm.barrier("said less");
  comm.set_call_fingerprint({});
  comm.barrier("still usable");
}

void detects_unlike_tensors_and_tables_on_every_rank(Communicator& comm) {
  const int rank = comm.rank(), size = comm.size();
  if (size == 1) return;
  const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
  const Exchange exchange{{{next, {0, 2}, 1}}, {{previous, {1, 3}, 0}}};
  const auto cast = [&](const Exchange& table, int heads) {
    const HostTensor src = make_filled(DType::kFloat32, 4, heads, 2, rank, 0);
    HostTensor dst(DType::kFloat32, 4, heads, 2);
    dst.fill(-100);
    const CastTensor tensors[] = {{src, dst}};
    const std::string text = invalid_argument_text([&] { comm.group_cast(table, tensors, "kv")->wait(); });
    EXPECT_EQ(dst.at(1, 0, 0), -100) << "nothing may be sent";
    return text;
  };
  EXPECT_THAT(cast(exchange, rank == 0 ? 1 : 2), HasSubstr("rank 0: float32[*, 1, 2]"));

  Exchange fewer = exchange;
  if (rank == 0) fewer.sends[0].rows.end = 1;
  EXPECT_THAT(cast(fewer, 1), HasSubstr("rank 0 sends 1 rows, rank 1 expects 2"));

  Exchange shifted = exchange;
  if (rank == 0) shifted.sends[0].peer_row = 0;
  EXPECT_THAT(cast(shifted, 1), HasSubstr("2 rows from rank 0 to rank 1 at different places"));

  // A rank that cannot accept its own arguments throws its own text, and its peers hear of it.
  Exchange outside = exchange;
  if (rank == 0) outside.sends[0].rows = {3, 5};
  EXPECT_THAT(cast(outside, 1), HasSubstr("sends must be non-empty rows in [0, 4) (got [3, 5), peer_row=1, peer=1)"));

  if (rank == 0) {
    comm.refuse("q has the wrong shape");
  } else {
    const std::string text = invalid_argument_text([&] { comm.barrier("start"); });
    EXPECT_THAT(text, HasSubstr("barrier 'start': rank 0 refused its part: q has the wrong shape"));
  }
  comm.barrier("still usable");
}

void overlaps_many_operations(Communicator& comm) {
  // Many casts under way at once, waited for in reverse.
  const int rank = comm.rank(), size = comm.size();
  std::vector<HostTensor> sources, targets;
  std::vector<RandomExchange> tables;
  std::vector<std::unique_ptr<CommHandle>> handles;
  for (uint64_t i = 0; i < 20; ++i) {
    tables.push_back(make_random_exchange(size, 1000 + i));
    sources.push_back(make_filled(DType::kFloat32, tables[i].shard_rows, 1, 4, rank, static_cast<int>(i)));
    targets.emplace_back(DType::kFloat32, tables[i].buffer_rows[static_cast<size_t>(rank)], 1, 4);
  }
  for (size_t i = 0; i < tables.size(); ++i) {
    const CastTensor tensors[] = {{sources[i], targets[i]}};
    handles.push_back(comm.group_cast(tables[i].ranks[static_cast<size_t>(rank)], tensors, "many"));
  }
  for (size_t i = tables.size(); i-- > 0;) {
    handles[i]->wait();
    for (const RowCopy& copy : tables[i].ranks[static_cast<size_t>(rank)].recvs) {
      EXPECT_EQ(targets[i].at(copy.rows.begin, 0, 3),
                element_value(copy.peer, static_cast<int>(i), copy.peer_row, 0, 3));
    }
  }
}

constexpr CommunicatorCase kCases[] = {
    {"CastsRowsToWhereTheTablesSay", casts_rows_to_where_the_tables_say},
    {"CastsStridedRows", casts_strided_rows},
    {"ReducesRowsIntoTheirOwners", reduces_rows_into_their_owners},
    {"ReducesInRankOrder", reduces_in_rank_order},
    {"ReducesUnderWayShareOwnedRows", reduces_under_way_share_owned_rows},
    {"MergesPartialResultsByLse", merges_partial_results_by_lse},
    {"ExchangesAllToAllWithOwnRows", exchanges_all_to_all_with_own_rows},
    {"AllReducesInPlace", all_reduces_in_place},
    {"AgreesOrNamesWhoDiffers", agrees_or_names_who_differs},
    {"DetectsUnlikeCallsOnEveryRank", detects_unlike_calls_on_every_rank},
    {"NamesWhichFieldsOfCallsDiffer", names_which_fields_of_calls_differ},
    {"DetectsUnlikeTensorsAndTablesOnEveryRank", detects_unlike_tensors_and_tables_on_every_rank},
    {"OverlapsManyOperations", overlaps_many_operations},
};

}  // namespace

std::span<const CommunicatorCase> communicator_cases() { return kCases; }

}  // namespace tangram::testing
