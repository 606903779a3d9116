// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A multiprocessor or several, as far as kernels use them, on the CPU: every GPU thread is a fiber, and
// warps run in random order. It finds what a GPU shows seldom or by hanging: waits that never end, stages that are
// given back too early, matmuls whose results are read too early. It knows nothing of speed, registers or fences.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/sample.hpp"

namespace tangram::emulated {

inline constexpr size_t kSharedBytes = 228 * 1024;

/// When matmuls happen between their issue and the wait for them.
enum class MatmulTime { kLate, kEarly, kRandom };

/// What may differ from run to run: the same order makes the same run.
struct Order {
  MatmulTime time;
  unsigned seed;  // of the order of warps, and of how late loads come
};
/// The `index`th of the orders that a test tries.
constexpr Order order(int index) {
  constexpr MatmulTime kTimes[] = {MatmulTime::kLate, MatmulTime::kEarly, MatmulTime::kRandom};
  return {kTimes[index % 3], static_cast<unsigned>(index)};
}
/// Calls expect(case, order) for each case in one order, with matmuls at another time for each test with another
/// `first`; in long runs in several. Of kernels that differ little, whose `first` differ, each takes one case in
/// `one_in` but in long runs: together they take all.
template <class Cases, class Expect>
void in_orders(int first, const Cases& cases, const Expect& expect, int one_in = 1) {
  for (int turn = 0; turn < (support::is_long_run() ? 6 : 1); ++turn) {
    support::Sample sample(one_in, first);
    int index = first + turn;
    for (const auto& c : cases) {
      if (sample.takes_next()) expect(c, order(index));
      ++index;
    }
  }
}

/// One wgmma of a warpgroup, as one of its threads has issued it.
struct Matmul {
  float* sums;
  int columns;
  bool a_in_registers, a_transposed, b_transposed, accumulate, half;
  uint32_t a[4];
  uint64_t a_descriptor, b_descriptor;

  /// Whether another thread of the warpgroup means the same matmul.
  bool agrees(const Matmul& other) const {
    return columns == other.columns && accumulate == other.accumulate && a_descriptor == other.a_descriptor &&
           b_descriptor == other.b_descriptor;
  }
};

/// What the lanes of a warp bring to an instruction of the whole warp: operands A and B of a product.
inline constexpr int kWarpWords = 6;
using WarpWords = std::array<std::array<uint32_t, kWarpWords>, 32>;

/// Threads that meet: a warp, a warpgroup, or those of a named barrier.
struct Meeting {
  uint32_t generation = 0;
  uint32_t count = 0;
  bool any[2] = {false, false};
  uint64_t words[2][32] = {};  // of a warp
  WarpWords many[2] = {};      // likewise
};

struct Block {
  uint32_t index = 0;
  unsigned char* shared = nullptr;
  Meeting named[16];
};

struct Thread {
  uint32_t index = 0;
  Block* block = nullptr;
  Meeting* warp = nullptr;
  Meeting* warpgroup = nullptr;
  std::vector<Thread*>* mates = nullptr;  // of the warpgroup
  const char* waits_for = "";
  std::vector<Matmul> issued;
  std::vector<std::vector<Matmul>> groups;   // committed ones that are not done
  std::vector<std::shared_ptr<int>> copies;  // of each group of cp.async, the last one open: how many are under way
};

/// An mbarrier, in its 64 bits.
struct Barrier {
  uint32_t expected : 12, pending : 12, phase : 1, unused : 7;
  int32_t bytes;
};
static_assert(sizeof(Barrier) == 8);

/// The thread that is running.
Thread& self();
uint32_t num_blocks();
uint32_t num_threads();
size_t shared_bytes();

void yield();
/// Sometimes lets others run for a while: what a thread does behind an arrival may be delayed.
void pause();
void wait_until(const char* what, const std::function<bool()>& condition);
/// Something has happened that others may wait for.
void note_progress();
/// What the async proxy will do some time later.
void do_later(std::function<void()> action);
/// Ends the test program with a message: the emulated program did what it must not do.
[[noreturn]] void fail(const std::string& message);

void initialise(Barrier& barrier, uint32_t ready_flags);
void arrive(Barrier& barrier);
void count_bytes(Barrier& barrier, int32_t bytes);

/// The words that all lanes of the warp bring.
const uint64_t* exchange_in_warp(uint64_t word);
const WarpWords& exchange_in_warp(const std::array<uint32_t, kWarpWords>& words);
/// Arrives at a named barrier, waits for the others if `waits`; returns whether any of them brought `value`.
bool meet_named(uint32_t barrier, uint32_t threads, bool waits, bool value);

void commit_matmuls();
/// Until at most `pending` groups of the warpgroup are in flight.
void wait_matmuls(size_t pending);

/// Runs `kernel` in each thread of `blocks` blocks, all at once. Shared memory begins as NaN.
struct Launch {
  uint32_t blocks;
  uint32_t threads;
  Order order;
  uint32_t first_block = 0;  // of a grid of more blocks
  uint32_t grid = 0;         // 0: of these
  /// What others do meanwhile, one after the other, each some time after the one before.
  std::vector<std::function<void()>> events = {};
  size_t shared_bytes = kSharedBytes;
};
void run(const Launch& launch, const std::function<void()>& kernel);
/// Runs a kernel one block after the other: for kernels with shared variables, which are static here.
inline void run_one_by_one(const Launch& launch, const std::function<void()>& kernel) {
  for (uint32_t block = 0; block < launch.blocks; ++block) {
    run({1, launch.threads, launch.order, block, launch.blocks}, kernel);
  }
}

}  // namespace tangram::emulated
