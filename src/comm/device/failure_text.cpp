// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/device/failure_text.hpp"

#include <fmt/format.h>

#include "tangram/error.hpp"

namespace tangram::comm {

using cuda::WaitFailure;
using cuda::WaitKind;

namespace {

std::string label_of(int pass, const std::vector<std::string>& passes) {
  return pass >= 0 && pass < std::ssize(passes) ? passes[static_cast<size_t>(pass)] : fmt::format("pass {}", pass);
}

/// Why the wait ended, kNone: by its deadline.
WaitKind cause_of(const WaitFailure& failure) {
  switch (failure.kind) {
    case WaitKind::kReadyFlag:
    case WaitKind::kReturn:
    case WaitKind::kCredit:
    case WaitKind::kAllReduce: return static_cast<WaitKind>(failure.detail);
    default: return failure.kind;
  }
}

}  // namespace

std::string operation_text(const WaitFailure& failure, const std::vector<std::string>& passes) {
  const std::string label = label_of(failure.pass, passes);
  switch (failure.kind) {
    case WaitKind::kReadyFlag: return fmt::format("group_cast '{}' stage {}", label, failure.stage);
    case WaitKind::kReturn: return fmt::format("group_reduce '{}' stage {}", label, failure.stage);
    case WaitKind::kCredit:  // of a slot, or of the memory that a stage but the first one reuses
      if (failure.stage > 0)
        return fmt::format("group_cast '{}' stage {} (memory that it reuses)", label, failure.stage);
      return fmt::format("begin '{}' (end of an earlier pass)", label);
    case WaitKind::kOrder: return fmt::format("begin '{}'", label);
    case WaitKind::kAllReduce: return "all_reduce";
    default: return "";
  }
}

std::string failure_text(const WaitFailure& failure, const std::vector<std::string>& passes, double timeout_s,
                         std::string_view reason) {
  if (failure.kind == WaitKind::kCall) return fmt::format("attention: every rank must make the same call: {}", reason);
  const std::string operation = operation_text(failure, passes);
  const std::string noticed = fmt::format(" (noticed by rank {})", failure.reporter);
  if (failure.kind == WaitKind::kOrder) {
    return fmt::format("{}: all ranks must begin the same passes in the same order (rank {} began '{}', rank {} '{}')",
                       operation, failure.reporter, label_of(failure.pass, passes), failure.peer,
                       label_of(failure.detail, passes));
  }
  const std::string prefix = operation.empty() ? "" : operation + ": ";
  switch (cause_of(failure)) {
    case WaitKind::kHost: return fmt::format("{}rank {} gave up: {}", prefix, failure.peer, reason);
    case WaitKind::kEnded: return fmt::format("{}rank {} has ended{}", prefix, failure.peer, noticed);
    case WaitKind::kSilent: return fmt::format("{}rank {} does not run{}", prefix, failure.peer, noticed);
    default:
      return fmt::format("{}rank {} did not take part within {:g} s{}", prefix, failure.peer, timeout_s, noticed);
  }
}

void throw_failure(const WaitFailure& failure, const std::string& text) {
  switch (cause_of(failure)) {
    case WaitKind::kNone:
    case WaitKind::kSilent: throw Timeout(text);
    case WaitKind::kCall: throw InvalidArgument(text);
    default: throw CommError(text);
  }
}

}  // namespace tangram::comm
