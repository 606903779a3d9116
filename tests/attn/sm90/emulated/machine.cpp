// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Jumps between stacks are what the fortified longjmp is there to stop.
#undef _FORTIFY_SOURCE

#include "attn/sm90/emulated/machine.hpp"

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>

#include "attn/sm90/emulated/device.hpp"

namespace tangram::emulated {
namespace {

constexpr size_t kStackBytes = 128 * 1024;
constexpr int kIdlePasses = 2000;    // without progress, in spite of random skips: a deadlock
constexpr int kPassesOfEvent = 100;  // on average, from one of Launch::events to the next

struct Fiber {
  Thread thread;
  ucontext_t first = {};
  jmp_buf resume = {};
  bool started = false, done = false;
};

struct Action {
  uint32_t passes_left;
  std::function<void()> run;
};

struct Machine {
  Launch launch;
  std::mt19937 random;
  std::function<void()> kernel;
  std::vector<Block> blocks;
  std::vector<Fiber> fibers;
  std::vector<Meeting> warps, warpgroups;
  std::vector<std::vector<Thread*>> mates;
  std::vector<Action> actions;
  size_t num_events = 0;  // that have happened
  uint64_t progress = 0;
  Fiber* running = nullptr;
  jmp_buf scheduler = {};
};
Machine* machine = nullptr;

void enter() {
  machine->kernel();
  machine->running->done = true;
  note_progress();
  _longjmp(machine->scheduler, 1);
}

void resume(Fiber& fiber) {
  machine->running = &fiber;
  if (_setjmp(machine->scheduler) != 0) return;
  if (fiber.started) _longjmp(fiber.resume, 1);
  fiber.started = true;
  setcontext(&fiber.first);
}

bool all_events_happened() { return machine->num_events == machine->launch.events.size(); }

void run_event() {
  if (all_events_happened() || machine->random() % kPassesOfEvent != 0) return;
  machine->launch.events[machine->num_events++]();
  note_progress();
}

void run_actions() {
  std::vector<Action> due;
  for (Action& action : machine->actions) {
    if (action.passes_left > 0) --action.passes_left;
  }
  const auto is_due = [](const Action& action) { return action.passes_left == 0; };
  std::copy_if(machine->actions.begin(), machine->actions.end(), std::back_inserter(due), is_due);
  std::erase_if(machine->actions, is_due);
  for (const Action& action : due) {
    action.run();
    note_progress();
  }
}

[[noreturn]] void fail_deadlock() {
  std::string text = "deadlock:";
  for (const Fiber& fiber : machine->fibers) {
    if (fiber.done || fiber.thread.index % 32 != 0) continue;
    text += "\n  block " + std::to_string(fiber.thread.block->index) + ", thread " +
            std::to_string(fiber.thread.index) + " waits for " + fiber.thread.waits_for;
  }
  fail(text);
}

void schedule() {
  std::vector<size_t> order(machine->warps.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // Passes out of sixteen that a warp misses: some warpgroups fall behind by steps, for a while.
  constexpr uint32_t kMissed[] = {0, 4, 15};
  std::vector<uint32_t> missed(machine->warpgroups.size(), 4);
  for (int idle = 0; idle < kIdlePasses;) {
    for (uint32_t& of_warpgroup : missed) {
      if (machine->random() % 32 == 0) of_warpgroup = kMissed[machine->random() % std::size(kMissed)];
    }
    const uint64_t before = machine->progress;
    std::shuffle(order.begin(), order.end(), machine->random);
    for (const size_t warp : order) {
      if (machine->random() % 16 < missed[warp / 4]) continue;
      for (size_t lane = 0; lane < 32; ++lane) {
        Fiber& fiber = machine->fibers[warp * 32 + lane];
        if (!fiber.done) resume(fiber);
      }
    }
    run_actions();
    run_event();
    if (std::ranges::all_of(machine->fibers, &Fiber::done)) return;
    idle = machine->progress == before && machine->actions.empty() && all_events_happened() ? idle + 1 : 0;
  }
  fail_deadlock();
}

/// Offset in shared memory of element (index, k) of an operand: what the descriptor's layout makes of it.
uint32_t element_offset(uint64_t descriptor, bool transposed, uint32_t index, uint32_t k) {
  const auto field = [&](int shift) { return static_cast<uint32_t>(descriptor >> shift & 0x3fff) << 4; };
  const uint32_t start = field(0), leading = field(16), stride = field(32);
  const bool swizzled = descriptor >> 62 & 1;
  if (!swizzled) return start + index / 8 * stride + k / 8 * leading + index % 8 * 16 + k % 8 * 2;
  return swizzle(transposed ? start + k / 8 * stride + k % 8 * 128 + index % 64 * 2 + index / 64 * leading
                            : start + index / 8 * stride + index % 8 * 128 + k * 2);
}

float element(uint16_t bits, bool half) {
  if (half) return __half2float(std::bit_cast<__half>(bits));
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

void multiply(const std::vector<Thread*>& threads, size_t index) {
  constexpr uint32_t kRows = 64, kDepth = 16, kMaxColumns = 256;
  const Matmul& shared = threads[0]->groups[0][index];
  const unsigned char* memory = threads[0]->block->shared;
  const auto load = [&](uint64_t descriptor, bool transposed, uint32_t at, uint32_t k) {
    uint16_t bits;
    std::memcpy(&bits, memory + element_offset(descriptor, transposed, at, k), sizeof(bits));
    return element(bits, shared.half);
  };
  static std::array<std::array<float, kMaxColumns>, kDepth> b;
  static std::array<std::array<float, kMaxColumns>, kRows> sums;
  const auto columns = static_cast<uint32_t>(shared.columns);
  for (uint32_t k = 0; k < kDepth; ++k) {
    for (uint32_t c = 0; c < columns; ++c) b[k][c] = load(shared.b_descriptor, shared.b_transposed, c, k);
  }
  for (uint32_t row = 0; row < kRows; ++row) {
    std::fill_n(sums[row].begin(), columns, 0.0f);
    for (uint32_t k = 0; k < kDepth; ++k) {
      float a;
      if (shared.a_in_registers) {
        const Thread& owner = *threads[row / 16 * 32 + row % 8 * 4 + k % 8 / 2];
        const uint32_t word = owner.groups[0][index].a[k / 8 * 2 + row % 16 / 8];
        a = element(static_cast<uint16_t>(word >> (k % 2 * 16)), shared.half);
      } else {
        a = load(shared.a_descriptor, shared.a_transposed, row, k);
      }
      for (uint32_t c = 0; c < columns; ++c) sums[row][c] += a * b[k][c];
    }
  }
  for (uint32_t t = 0; t < 128; ++t) {
    const Matmul& own = threads[t]->groups[0][index];
    if (!own.agrees(shared)) fail("the threads of a warpgroup must issue the same matmuls");
    for (uint32_t i = 0; i < columns / 2; ++i) {
      const uint32_t row = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + t % 4 * 2 + i % 2;
      own.sums[i] = (own.accumulate ? own.sums[i] : 0.0f) + sums[row][column];
    }
  }
}

void meet(Meeting& meeting, uint32_t threads, const char* what) {
  const uint32_t generation = meeting.generation;
  if (++meeting.count == threads) {
    meeting.count = 0;
    ++meeting.generation;
    note_progress();
  } else {
    wait_until(what, [&] { return meeting.generation != generation; });
  }
}

}  // namespace

Thread& self() { return machine->running->thread; }
uint32_t num_blocks() { return std::max(machine->launch.grid, machine->launch.blocks); }
uint32_t num_threads() { return machine->launch.threads; }
size_t shared_bytes() { return machine->launch.shared_bytes; }
void note_progress() { ++machine->progress; }
void yield() {
  if (_setjmp(machine->running->resume) == 0) _longjmp(machine->scheduler, 1);
}

void pause() {
  if (machine->random() % 4 != 0) return;
  for (uint32_t left = machine->random() % 16; left > 0; --left) {
    note_progress();
    yield();
  }
}

void wait_until(const char* what, const std::function<bool()>& condition) {
  self().waits_for = what;
  while (!condition()) yield();
  note_progress();
}

void do_later(std::function<void()> action) {
  machine->actions.push_back({static_cast<uint32_t>(machine->random() % 12), std::move(action)});
}

void fail(const std::string& message) {
  std::fprintf(stderr, "emulated GPU: %s\n", message.c_str());
  std::_Exit(1);
}

void initialise(Barrier& barrier, uint32_t ready_flags) {
  barrier = {};
  barrier.expected = barrier.pending = ready_flags & 0xfff;
}

void count_bytes(Barrier& barrier, int32_t bytes) {
  barrier.bytes += bytes;
  if (barrier.pending != 0 || barrier.bytes != 0) return;
  barrier.phase ^= 1;
  barrier.pending = barrier.expected;
  note_progress();
}

void arrive(Barrier& barrier) {
  if (barrier.pending == 0) fail("more arrivals at an mbarrier than it expects");
  barrier.pending -= 1;
  count_bytes(barrier, 0);
  pause();
}

const uint64_t* exchange_in_warp(uint64_t word) {
  Meeting& warp = *self().warp;
  uint64_t* words = warp.words[warp.generation % 2];
  words[self().index % 32] = word;
  meet(warp, 32, "its warp");
  return words;
}

const WarpWords& exchange_in_warp(const std::array<uint32_t, kWarpWords>& words) {
  Meeting& warp = *self().warp;
  WarpWords& many = warp.many[warp.generation % 2];
  many[self().index % 32] = words;
  meet(warp, 32, "its warp");
  return many;
}

bool meet_named(uint32_t barrier, uint32_t threads, bool waits, bool value) {
  if (barrier >= 16) fail("there are 16 named barriers");
  Meeting& meeting = self().block->named[barrier];
  const uint32_t generation = meeting.generation;
  meeting.any[generation % 2] |= value;
  if (++meeting.count == threads) {
    meeting.count = 0;
    ++meeting.generation;
    meeting.any[meeting.generation % 2] = false;
    note_progress();
  } else if (waits) {
    wait_until("a named barrier", [&] { return meeting.generation != generation; });
  }
  return meeting.any[generation % 2];
}

void wait_matmuls(size_t pending) {
  std::vector<Thread*>& threads = *self().mates;
  meet(*self().warpgroup, 128, "its warpgroup");
  if (self().index % 128 == 0) {
    while (self().groups.size() > pending) {
      for (size_t i = 0; i < self().groups[0].size(); ++i) multiply(threads, i);
      for (Thread* thread : threads) thread->groups.erase(thread->groups.begin());
    }
  }
  meet(*self().warpgroup, 128, "its warpgroup");
}

void commit_matmuls() {
  self().groups.push_back(std::move(self().issued));
  self().issued.clear();
  if (machine->launch.order.time == MatmulTime::kLate) return;
  if (machine->launch.order.time == MatmulTime::kEarly) return wait_matmuls(0);
  // The number of meetings is the same in all threads of the warpgroup.
  const size_t in_flight = self().groups.size();
  wait_matmuls(in_flight - (self().warpgroup->generation * 2654435761u >> 16) % (in_flight + 1));
}

void run(const Launch& launch, const std::function<void()>& kernel) {
  const auto owned = std::make_unique<Machine>();
  machine = owned.get();
  machine->launch = launch;
  machine->random.seed(launch.order.seed);
  machine->kernel = kernel;
  const size_t threads = size_t{launch.blocks} * launch.threads;
  machine->blocks.resize(launch.blocks);
  machine->fibers.resize(threads);
  machine->warps.resize(threads / 32);
  machine->warpgroups.resize(threads / 128);
  machine->mates.resize(threads / 128);
  const size_t stack_bytes = threads * kStackBytes;
  void* memory = mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail("no memory for stacks");
  char* stacks = static_cast<char*>(memory);
  for (uint32_t i = 0; i < launch.blocks; ++i) {
    Block& block = machine->blocks[i];
    block.index = launch.first_block + i;
    const size_t shared_bytes = (launch.shared_bytes + 1023) / 1024 * 1024;
    block.shared = static_cast<unsigned char*>(std::aligned_alloc(1024, shared_bytes));
    std::memset(block.shared, 0xff, shared_bytes);
  }
  for (size_t i = 0; i < threads; ++i) {
    Fiber& fiber = machine->fibers[i];
    fiber.thread.index = static_cast<uint32_t>(i % launch.threads);
    fiber.thread.block = &machine->blocks[i / launch.threads];
    fiber.thread.warp = &machine->warps[i / 32];
    fiber.thread.warpgroup = &machine->warpgroups[i / 128];
    fiber.thread.mates = &machine->mates[i / 128];
    machine->mates[i / 128].push_back(&fiber.thread);
    getcontext(&fiber.first);
    fiber.first.uc_stack.ss_sp = stacks + i * kStackBytes;
    fiber.first.uc_stack.ss_size = kStackBytes;
    makecontext(&fiber.first, enter, 0);
  }
  schedule();
  if (!machine->actions.empty()) fail("loads are in flight when the kernel ends");
  for (const Block& block : machine->blocks) std::free(block.shared);
  munmap(stacks, stack_bytes);
  machine = nullptr;
}

}  // namespace tangram::emulated
