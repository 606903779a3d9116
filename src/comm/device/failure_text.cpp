// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/device/failure_text.hpp"

#include <fmt/format.h>

#include "tangram/error.hpp"

namespace tangram::comm {

using cuda::WaitFailure;
using cuda::WaitKind;

std::string failure_text(const WaitFailure& failure, const std::vector<std::string>& passes, double timeout_s) {
  const auto label = [&](int pass) {
    return pass >= 0 && pass < std::ssize(passes) ? passes[static_cast<size_t>(pass)] : fmt::format("pass {}", pass);
  };
  const std::string noticed = fmt::format(" within {:g} s (noticed by rank {})", timeout_s, failure.reporter);
  switch (failure.kind) {
    case WaitKind::kArrival:
      return fmt::format("group_cast '{}' stage {}: no rows came from rank {}{}", label(failure.pass), failure.stage,
                         failure.peer, noticed);
    case WaitKind::kCredit:
      return fmt::format("begin '{}': rank {} did not end an earlier pass{}", label(failure.pass), failure.peer,
                         noticed);
    case WaitKind::kReturn:
      return fmt::format("group_reduce '{}' stage {}: no rows came from rank {}{}", label(failure.pass), failure.stage,
                         failure.peer, noticed);
    case WaitKind::kAllReduce: return fmt::format("all_reduce: rank {} did not take part{}", failure.peer, noticed);
    case WaitKind::kOrder:
      return fmt::format(
          "begin '{}': all ranks must begin the same passes in the same order (rank {} began '{}', rank "
          "{} began '{}')",
          label(failure.pass), failure.reporter, label(failure.pass), failure.peer, label(failure.other_pass));
    case WaitKind::kHost: return fmt::format("rank {} gave up", failure.reporter);
    case WaitKind::kNone: break;
  }
  return fmt::format("rank {} reported an unknown failure", failure.reporter);
}

void throw_failure(const WaitFailure& failure, const std::string& text) {
  switch (failure.kind) {
    case WaitKind::kArrival:
    case WaitKind::kCredit:
    case WaitKind::kReturn:
    case WaitKind::kAllReduce: throw Timeout(text);
    default: throw CommError(text);
  }
}

}  // namespace tangram::comm
