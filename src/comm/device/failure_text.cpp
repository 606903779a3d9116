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

std::string RankNames::text(int rank) const {
  const bool has_node = rank >= 0 && rank < std::ssize(nodes);
  return has_node ? fmt::format("rank {} (node {})", number(rank), nodes[static_cast<size_t>(rank)])
                  : fmt::format("rank {}", number(rank));
}

std::string failure_text(const WaitFailure& failure, const std::vector<std::string>& passes, double timeout_s,
                         std::string_view reason, const RankNames& names) {
  if (failure.kind == WaitKind::kCall) return fmt::format("attention: every rank must make the same call: {}", reason);
  const std::string operation = operation_text(failure, passes);
  const std::string noticed = fmt::format(" (noticed by rank {})", names.number(failure.reporter));
  const std::string blamed = names.text(failure.peer);
  if (failure.kind == WaitKind::kOrder) {
    return fmt::format("{}: all ranks must begin the same passes in the same order ({} began '{}', {} '{}')", operation,
                       names.text(failure.reporter), label_of(failure.pass, passes), blamed,
                       label_of(failure.detail, passes));
  }
  const std::string prefix = operation.empty() ? "" : operation + ": ";
  switch (cause_of(failure)) {
    case WaitKind::kHost: return fmt::format("{}{} gave up: {}", prefix, blamed, reason);
    case WaitKind::kEnded: return fmt::format("{}{} has ended{}", prefix, blamed, noticed);
    case WaitKind::kSilent: return fmt::format("{}{} does not run{}", prefix, blamed, noticed);
    case WaitKind::kUnreachable:
      return fmt::format("{}{} cannot be reached: its node or the network to it is lost{}", prefix, blamed, noticed);
    default: return fmt::format("{}{} did not take part within {:g} s{}", prefix, blamed, timeout_s, noticed);
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
