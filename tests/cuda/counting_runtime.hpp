// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// A CUDA runtime over host memory that counts what it is asked for, in place of NVIDIA's in programs that link
// counting_runtime.cpp: what the host side of a backend allocates, copies and waits for is tested without a GPU.
// Kernels do nothing, unless a test does what they would.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tangram::testing {

struct RuntimeCounts {
  int64_t allocations = 0;
  int64_t host_allocations = 0;  // of page-locked memory
  int64_t frees = 0;
  int64_t live_bytes = 0;
  int64_t mapped_bytes = 0;  // of memory that ranks map, in pages of 4 KiB
  int64_t copies = 0;
  int64_t waits = 0;         // of the host, for a stream or the device
  int64_t stream_waits = 0;  // of streams, for events
  int64_t events = 0;        // made
  int64_t event_calls = 0;   // that record an event, or ask whether it has happened
  int64_t launches = 0;
  int64_t device_queries = 0;    // of what does not change about a device
  int64_t spoiled_captures = 0;  // calls that no thread may make while a graph is captured, unless it asked for that
};

/// Since the program began.
RuntimeCounts runtime_counts();

/// A kernel launch with one parameter, as a graph would record it.
struct Launch {
  const void* kernel = nullptr;
  unsigned ctas = 0;
  std::vector<char> parameter;

  friend bool operator==(const Launch&, const Launch&) = default;
};
/// Keeps the next launches, one for each of `parameter_bytes`, which are the sizes of their parameters.
void record_launches(std::vector<size_t> parameter_bytes);
/// Launches since record_launches().
std::vector<Launch> recorded_launches();
/// What streams were told up to the last of these: l, a launch; d, one that may begin before the kernel in front of it
/// has ended (a programmatic dependent); w, to wait for an event.
std::string recorded_order();

/// A launch as a kernel would see it: its mangled name, its grid, and where each of its parameters lies.
struct KernelCall {
  std::string_view name;
  unsigned blocks_x = 1, blocks_y = 1;
  void** parameters = nullptr;
};
/// From now on each launch calls `execute`, on the thread that launches; null: nothing.
void set_executor(std::function<void(const KernelCall&)> execute);

/// How many devices there are from now on, of which each thread has a current one; all can reach each other.
void set_devices(int devices);
/// Every stream says from now on whether it is being captured; objects that graphs keep, they keep until the end.
void set_captured(bool captured);
/// Streams that callers name from now on are others than those with the same handles before.
void set_stream_generation(uint64_t generation);
/// Copies of events from now on have run, or have not until a thread waits for them.
void set_events_ready(bool ready);

}  // namespace tangram::testing
