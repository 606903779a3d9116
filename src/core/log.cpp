// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "core/log.hpp"

#include <fmt/format.h>

#include <atomic>

namespace tangram {

namespace {

std::atomic<LogSink> log_sink = nullptr;

}  // namespace

void set_log_sink(LogSink sink) { log_sink = sink; }

void log_line(const std::string& line) {
  if (const LogSink sink = log_sink; sink != nullptr) sink(line);
}

void WaitNotes::note(const std::string& operation, const std::string& ranks, int rank, double waited_s) {
  while (next_s_ <= waited_s) next_s_ += timeout_s_ / 8;
  log_line(fmt::format("{}: rank {} has waited {:.3g} s for {}, and gives up after {:g} s (TANGRAM_TIMEOUT_S)",
                       operation, rank, waited_s, ranks, timeout_s_));
}

}  // namespace tangram
