// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/nodes/node_stages.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/require.hpp"

namespace tangram {

namespace {

// A part of the crossing rows ends at a multiple of this many global rows, the height of a kernel tile, if one is near.
constexpr int64_t kGroupAlignment = 128;

int stage_of(const KvSegment& segment, AttnPass pass) {
  return pass == AttnPass::kForward ? segment.stage_fwd : segment.stage_bwd;
}

int& stage_of(KvSegment& segment, AttnPass pass) {
  return pass == AttnPass::kForward ? segment.stage_fwd : segment.stage_bwd;
}

// Global rows at which parts of about equally many of a node's rows before `end` end, the last of them at `end`.
std::vector<int64_t> ends_of_parts(const std::vector<NodePiece>& pieces, int64_t end, int num_parts) {
  int64_t total = 0;
  for (const NodePiece& piece : pieces) total += std::max<int64_t>(0, std::min(piece.rows.end, end) - piece.rows.begin);
  std::vector<int64_t> ends;
  int64_t done = 0;
  for (const NodePiece& piece : pieces) {
    if (piece.rows.begin >= end) break;
    const int64_t size = std::min(piece.rows.end, end) - piece.rows.begin;
    while (static_cast<int>(ends.size()) < num_parts - 1) {
      const int64_t goal = total * (std::ssize(ends) + 1) / num_parts;
      if (goal > done + size) break;
      const int64_t slack = total / (8 * num_parts);
      int64_t cut = piece.rows.begin + (goal - done);
      const int64_t aligned = (cut + kGroupAlignment / 2) / kGroupAlignment * kGroupAlignment;
      if (done + size - goal <= slack) {
        cut = piece.rows.begin + size;
      } else if (std::abs(aligned - cut) <= slack) {
        cut = aligned;
      }
      ends.push_back(cut);
    }
    done += size;
  }
  ends.resize(static_cast<size_t>(num_parts), end);
  return ends;
}

// Names the stages of one pass of rank `r`, whose node's parts end at `ends`, cutting segments where parts end.
// Segments that `takes` refuses keep theirs.
template <class Takes>
void name_stages(std::span<const KvSegment> segments, int r, const NodeShape& nodes, const std::vector<int64_t>& ends,
                 int first_stage, AttnPass pass, const Takes& takes, std::vector<KvSegment>& result) {
  result.clear();
  size_t part = 0;
  for (KvSegment rest : segments) {
    if (rest.owner == r || !takes(rest)) {
      result.push_back(rest);
      continue;
    }
    if (nodes.same_node(rest.owner, r) || ends.empty()) {
      stage_of(rest, pass) = 1;
      result.push_back(rest);
      continue;
    }
    while (part + 1 < ends.size() && ends[part] <= rest.global.begin) ++part;
    for (; part + 1 < ends.size() && ends[part] < rest.global.end; ++part) {
      KvSegment head = rest;
      head.global.end = ends[part];
      stage_of(head, pass) = first_stage + static_cast<int>(part);
      const int64_t num_rows = head.global.size();
      rest.global.begin += num_rows;
      rest.row += num_rows;
      rest.owner_row += num_rows;
      result.push_back(head);
    }
    stage_of(rest, pass) = first_stage + static_cast<int>(part);
    result.push_back(rest);
  }
}

template <class Takes>
void assign_parts(std::vector<RankPlan>& ranks, const NodeShape& nodes, const std::vector<std::vector<int64_t>>& ends,
                  int first_stage, AttnPass pass, const Takes& takes) {
  std::vector<KvSegment> result;
  for (int r = 0; r < nodes.cp_size; ++r) {
    std::vector<KvSegment>& segments = ranks[static_cast<size_t>(r)].segments;
    name_stages(segments, r, nodes, ends[static_cast<size_t>(nodes.node_of(r))], first_stage, pass, takes, result);
    segments = result;
  }
}

// Sorts what several sorted lists make up one after the other, which end at `ends`.
template <class T>
void merge_lists(std::vector<T>& list, std::vector<size_t> ends) {
  const auto before = [](const T& a, const T& b) { return a.rows < b.rows; };
  const auto at = [&](size_t index) { return list.begin() + static_cast<std::ptrdiff_t>(index); };
  while (ends.size() > 1) {
    std::vector<size_t> merged;
    size_t begin = 0;
    for (size_t i = 0; i < ends.size(); i += 2) {
      const size_t end = ends[std::min(i + 1, ends.size() - 1)];
      std::inplace_merge(at(begin), at(ends[i]), at(end), before);
      merged.push_back(end);
      begin = end;
    }
    ends = std::move(merged);
  }
}

// Pieces of one owner joined where they meet.
void join_pieces(std::vector<NodePiece>& pieces) {
  size_t num_kept = 0;
  for (const NodePiece& piece : pieces) {
    if (num_kept > 0 && piece.rows.begin <= pieces[num_kept - 1].rows.end &&
        piece.owner == pieces[num_kept - 1].owner) {
      pieces[num_kept - 1].rows.end = std::max(pieces[num_kept - 1].rows.end, piece.rows.end);
    } else {
      pieces[num_kept++] = piece;
    }
  }
  pieces.resize(num_kept);
}

}  // namespace

std::vector<std::vector<int64_t>> part_ends(const NodeRows& rows, int num_stages) {
  std::vector<std::vector<int64_t>> ends(rows.size());
  for (size_t n = 0; num_stages > 1 && n < rows.size(); ++n) {
    ends[n] = ends_of_parts(rows[n], std::numeric_limits<int64_t>::max(), num_stages - 1);
  }
  return ends;
}

void forward_stages_in_parts(std::span<const KvSegment> segments, int self, const NodeShape& nodes,
                             const std::vector<int64_t>& ends, std::vector<KvSegment>& result) {
  const auto any = [](const KvSegment&) { return true; };
  name_stages(segments, self, nodes, ends, 2, AttnPass::kForward, any, result);
}

StagedNodeRows by_parts(const NodeRows& rows, const std::vector<std::vector<int64_t>>& ends, int num_stages) {
  StagedNodeRows staged(static_cast<size_t>(num_stages), NodeRows(rows.size()));
  for (size_t n = 0; n < rows.size(); ++n) {
    size_t part = 0;
    for (NodePiece rest : rows[n]) {
      for (; part + 1 < ends[n].size() && ends[n][part] < rest.rows.end; ++part) {
        NodePiece head = rest;
        head.rows.end = std::max(rest.rows.begin, ends[n][part]);
        rest.rows.begin = head.rows.end;
        if (!head.rows.empty()) staged[part + 1][n].push_back(head);
      }
      staged[ends[n].empty() ? 0 : part + 1][n].push_back(rest);
    }
  }
  return staged;
}

NodeRows node_rows(const std::vector<RankPlan>& ranks, const NodeShape& nodes) {
  NodeRows rows(static_cast<size_t>(nodes.num_nodes()));
  std::vector<std::vector<size_t>> ends(rows.size());
  for (int r = 0; r < nodes.cp_size; ++r) {
    const auto node = static_cast<size_t>(nodes.node_of(r));
    std::vector<NodePiece>& pieces = rows[node];
    const size_t first = pieces.size();
    for (const KvSegment& segment : ranks[static_cast<size_t>(r)].segments) {
      if (nodes.same_node(segment.owner, r)) continue;
      const bool continues = pieces.size() > first && pieces.back().rows.end == segment.global.begin &&
                             pieces.back().owner == segment.owner;
      if (continues) {
        pieces.back().rows.end = segment.global.end;
      } else {
        pieces.push_back({segment.global, segment.owner, nodes.rail_of(segment.owner)});
      }
    }
    ends[node].push_back(pieces.size());
  }
  for (size_t n = 0; n < rows.size(); ++n) {
    merge_lists(rows[n], ends[n]);
    join_pieces(rows[n]);
  }
  return rows;
}

void assign_stages(std::vector<RankPlan>& ranks, const NodeShape& nodes, const NodeRows& rows,
                   const StageCounts& counts, bool keep_remote_kv) {
  if (nodes.num_nodes() == 1) {
    for (int r = 0; r < nodes.cp_size; ++r) assign_stages(ranks[static_cast<size_t>(r)], r, counts, keep_remote_kv);
    return;
  }
  const std::vector<std::vector<int64_t>> forward = part_ends(rows, counts.forward);
  const auto any = [](const KvSegment&) { return true; };
  if (counts.forward > 0) assign_parts(ranks, nodes, forward, 2, AttnPass::kForward, any);
  if (counts.backward == 0) return;
  if (!keep_remote_kv) {
    assign_parts(ranks, nodes, part_ends(rows, counts.backward), 2, AttnPass::kBackward, any);
    return;
  }
  const auto kept = [&](const KvSegment& segment) { return segment.stage_fwd == counts.forward; };
  for (int r = 0; r < nodes.cp_size; ++r) {
    for (KvSegment& segment : ranks[static_cast<size_t>(r)].segments) {
      if (segment.owner != r && kept(segment)) segment.stage_bwd = counts.backward;
    }
  }
  if (counts.backward == 1) return;
  std::vector<std::vector<int64_t>> backward(rows.size());
  for (size_t n = 0; counts.backward > 2 && n < rows.size(); ++n) {
    // Where the kept rows of the node begin.
    const int64_t last = counts.forward > 2 ? forward[n][static_cast<size_t>(counts.forward) - 3] : 0;
    backward[n] = ends_of_parts(rows[n], last, counts.backward - 2);
  }
  assign_parts(ranks, nodes, backward, 2, AttnPass::kBackward,
               [&](const KvSegment& segment) { return !kept(segment); });
}

StagedNodeRows by_stage(const NodeRows& rows, const std::vector<RankPlan>& ranks, const NodeShape& nodes, AttnPass pass,
                        int num_stages) {
  struct Part {
    Range rows;
    int stage;
  };
  StagedNodeRows staged(static_cast<size_t>(num_stages), NodeRows(rows.size()));
  std::vector<Part> parts;
  std::vector<size_t> ends;
  for (int node = 0; node < nodes.num_nodes(); ++node) {
    const auto n = static_cast<size_t>(node);
    parts.clear();
    ends.clear();
    for (int rail = 0; rail < nodes.ranks_per_node; ++rail) {
      const int r = nodes.rank(node, rail);
      for (const KvSegment& segment : ranks[static_cast<size_t>(r)].segments) {
        if (nodes.same_node(segment.owner, r)) continue;
        const int stage = stage_of(segment, pass);
        const size_t first = ends.empty() ? 0 : ends.back();
        if (parts.size() > first && parts.back().rows.end == segment.global.begin && parts.back().stage == stage) {
          parts.back().rows.end = segment.global.end;
        } else {
          parts.push_back({segment.global, stage});
        }
      }
      ends.push_back(parts.size());
    }
    merge_lists(parts, ends);
    size_t num_kept = 0;
    for (const Part& part : parts) {
      if (num_kept > 0 && part.rows.begin < parts[num_kept - 1].rows.end) {
        require(part.stage == parts[num_kept - 1].stage,
                "plan: a row must have one stage on all ranks of a node (got {} and {} for row {} on node {})",
                parts[num_kept - 1].stage, part.stage, part.rows.begin, node);
      }
      if (num_kept > 0 && part.rows.begin <= parts[num_kept - 1].rows.end && part.stage == parts[num_kept - 1].stage) {
        parts[num_kept - 1].rows.end = std::max(parts[num_kept - 1].rows.end, part.rows.end);
      } else {
        parts[num_kept++] = part;
      }
    }
    parts.resize(num_kept);
    auto part = parts.begin();
    for (const NodePiece& piece : rows[n]) {
      while (part->rows.end <= piece.rows.begin) ++part;
      for (auto at = part; at != parts.end() && at->rows.begin < piece.rows.end; ++at) {
        NodePiece cut = piece;
        cut.rows = intersect(piece.rows, at->rows);
        staged[static_cast<size_t>(at->stage) - 1][n].push_back(cut);
      }
    }
  }
  return staged;
}

}  // namespace tangram
