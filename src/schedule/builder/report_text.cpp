// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/builder/report_text.hpp"

#include <fmt/format.h>

#include <string_view>

namespace tangram::schedule::builder {
namespace {

std::string of_documents(const Report& report, std::string_view list, std::string_view requirement) {
  return fmt::format("MaskBuffer::set_cu_seqlens: {} {} (got {}[{}]={}", list, requirement, list, report.index,
                     report.got);
}

std::string of_blocks(const Report& report, const std::string& requirement) {
  std::string text =
      fmt::format("MaskBuffer::set_blocks: {} (got {} in query block {}", requirement, report.got, report.index);
  if (report.head_group > 0) text += fmt::format(" of head group {}", report.head_group);
  return text;
}

std::string of_ranges(const Report& report, std::string_view list, std::string_view length) {
  return fmt::format("MaskBuffer::set_ranges: {}[{}] must lie in [0, {}) (got [{}, {})", list, report.index, length,
                     report.got, report.other);
}

std::string of_room(const Report& report, std::string_view field, std::string_view what) {
  return fmt::format("MaskBuffer: the mask must fit the buffer, a larger {} makes room (got {} {}, room for {}", field,
                     report.got, what, report.other);
}

std::string begin_of(const Report& report) {
  const std::string last = fmt::format("must end with the length of the sequence, {}", report.other);
  switch (report.problem) {
    case Problem::kNone: break;
    case Problem::kQueriesFirst: return of_documents(report, "cu_seqlens_q", "must start with 0");
    case Problem::kKeysFirst: return of_documents(report, "cu_seqlens_k", "must start with 0");
    case Problem::kQueriesDecrease:
      return of_documents(report, "cu_seqlens_q", "must not decrease") + fmt::format(" after {}", report.other);
    case Problem::kKeysDecrease:
      return of_documents(report, "cu_seqlens_k", "must not decrease") + fmt::format(" after {}", report.other);
    case Problem::kQueriesLast: return of_documents(report, "cu_seqlens_q", last);
    case Problem::kKeysLast: return of_documents(report, "cu_seqlens_k", last);
    case Problem::kBlockOutside: return of_blocks(report, fmt::format("indices must lie in [0, {})", report.other));
    case Problem::kBlockRepeats: return of_blocks(report, "indices must not repeat");
    case Problem::kBlockBehindPadding: return of_blocks(report, "padding must stand at the end");
    case Problem::kQueryRange: return of_ranges(report, "q_ranges", "seqlen_q");
    case Problem::kKeyRange: return of_ranges(report, "k_ranges", "seqlen_k");
    case Problem::kMaskType:
      return fmt::format(
          "MaskBuffer::set_ranges: types must be 0 (full), 1 (causal), 2 (inv_causal) or 3 (bi_causal) (got "
          "types[{}]={}",
          report.index, report.got);
    case Problem::kOverlap:
      return fmt::format("MaskBuffer::set_ranges: slices must not cover a cell twice (got slices {} and {}", report.got,
                         report.index);
    case Problem::kQueryTiles: return of_room(report, "max_documents", "tiles of queries");
    case Problem::kKeyTiles: return of_room(report, "max_documents", "tiles of keys");
    case Problem::kForwardRuns: return of_room(report, "max_slices", "runs of keys");
    case Problem::kBackwardRuns: return of_room(report, "max_slices", "runs of queries");
    case Problem::kTurns: return of_room(report, "max_slices", "turns of runs");
  }
  return "MaskBuffer: masks must be known to this version (got another problem";
}

}  // namespace

std::string report_text(const Report& report) {
  return begin_of(report) + "; found on the GPU: calls with this mask see nothing)";
}

}  // namespace tangram::schedule::builder
