// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Code that GPU threads and the host run alike: functions take the team of threads that runs them. Members of a team
// share loops by their rank, and meet. On the host one thread is the team; src/attn/gpu/builder has those of a GPU.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define TANGRAM_HOST_DEVICE __host__ __device__
#else
#define TANGRAM_HOST_DEVICE
#endif

namespace tangram::schedule::builder {

/// Team of one thread.
struct SerialTeam {
  static constexpr int rank() { return 0; }
  static constexpr int size() { return 1; }
  void sync() const {}
  /// Sum and greatest of the values of all members.
  int64_t sum(int64_t value) const { return value; }
  int64_t greatest(int64_t value) const { return value; }
  uint64_t any_bits(uint64_t bits) const { return bits; }
  bool all(bool value) const { return value; }
  /// Value of the first member.
  int64_t first(int64_t value) const { return value; }
  /// Sum of what members of smaller rank bring; `total` of all.
  int32_t sum_before(int32_t value, int32_t& total) const {
    total = value;
    return 0;
  }
  /// Greatest of what members of smaller rank bring, of 0 and up; `total` of all.
  int32_t greatest_before(int32_t value, int32_t& total) const {
    total = value;
    return 0;
  }
  /// How many members of smaller rank bring true; `total` of all.
  int32_t count_before(bool value, int32_t& total) const {
    total = value ? 1 : 0;
    return 0;
  }
  // Changes of memory that several teams make at once. If they return something, it is the previous value.
  static int32_t add(int32_t* at, int32_t value) {
    const int32_t old = *at;
    *at += value;
    return old;
  }
  static uint64_t add(uint64_t* at, uint64_t value) {
    const uint64_t old = *at;
    *at += value;
    return old;
  }
  static void raise(int32_t* at, int32_t value) { *at = *at < value ? value : *at; }
  static void lower(uint32_t* at, uint32_t value) { *at = *at > value ? value : *at; }
  static uint32_t set_bits(uint32_t* at, uint32_t bits) {
    const uint32_t old = *at;
    *at |= bits;
    return old;
  }
};

/// Calls body(i) for all i of [0, count), shared among the team.
template <class Team, class Body>
TANGRAM_HOST_DEVICE void for_each(const Team& team, int32_t count, const Body& body) {
  for (int32_t i = team.rank(); i < count; i += team.size()) body(i);
}

/// Calls take(i, place) for those i of [0, count), in order, for which is_taken(i); places are 0, 1, and so on. Returns
/// how many there are. Members look at a few neighbours at a time, so that the team meets less often.
template <class Team, class IsTaken, class Take>
TANGRAM_HOST_DEVICE int32_t take_some(const Team& team, int32_t count, const IsTaken& is_taken, const Take& take) {
  constexpr int32_t kNeighbours = 8;
  int32_t num_taken = 0;
  for (int32_t begin = 0; begin < count; begin += kNeighbours * team.size()) {
    const int32_t first = begin + kNeighbours * team.rank();
    uint32_t taken = 0;
    int32_t own = 0, total;
    for (int32_t i = 0; i < kNeighbours; ++i) {
      if (first + i >= count || !is_taken(first + i)) continue;
      taken |= 1u << i;
      ++own;
    }
    int32_t place = num_taken + team.sum_before(own, total);
    for (int32_t i = 0; i < kNeighbours; ++i) {
      if ((taken >> i & 1) != 0) take(first + i, place++);
    }
    num_taken += total;
  }
  return num_taken;
}

/// Replaces values[0, count) by the sums of those before them, and values[count] by the sum of all, which it returns.
/// The team has met before and has met afterwards.
template <class Team>
TANGRAM_HOST_DEVICE int32_t sums_before(const Team& team, int32_t* values, int32_t count) {
  int32_t sum = 0;
  for (int32_t begin = 0; begin < count; begin += team.size()) {
    const int32_t i = begin + team.rank();
    int32_t total;
    const int32_t before = team.sum_before(i < count ? values[i] : 0, total);
    if (i < count) values[i] = sum + before;
    sum += total;
  }
  if (team.rank() == 0) values[count] = sum;
  team.sync();
  return sum;
}

/// Replaces values[0, count), of 0 and up, by the greatest of those before them. The team has met before and has met
/// afterwards.
template <class Team>
TANGRAM_HOST_DEVICE void greatest_before(const Team& team, int32_t* values, int32_t count) {
  int32_t greatest = 0;
  for (int32_t begin = 0; begin < count; begin += team.size()) {
    const int32_t i = begin + team.rank();
    int32_t total;
    const int32_t before = team.greatest_before(i < count ? values[i] : 0, total);
    if (i < count) values[i] = greatest < before ? before : greatest;
    greatest = greatest < total ? total : greatest;
  }
  team.sync();
}

/// The first i of [0, count) for which `is_behind`, which then holds for all that follow; count if there is none.
template <class IsBehind>
TANGRAM_HOST_DEVICE int32_t first_of(int32_t count, const IsBehind& is_behind) {
  int32_t begin = 0;
  while (count > 0) {
    const int32_t half = count / 2;
    if (is_behind(begin + half)) {
      count = half;
    } else {
      begin += half + 1;
      count -= half + 1;
    }
  }
  return begin;
}

}  // namespace tangram::schedule::builder
