// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/nodes/even_nodes.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include "plan/row_areas.hpp"
#include "plan/runs.hpp"

namespace tangram {

namespace {

struct NodeRun {
  Range rows;
  int node = 0;
};

// Rows of one document that a node sends to others and receives.
struct NodeLoad {
  int node = 0;
  int64_t sent = 0;
  int64_t received = 0;
};

struct Document {
  AttnSlice slice;  // empty for rows that see nothing
  std::vector<NodeRun> runs;
  std::vector<NodeLoad> loads;  // none where one node has all rows
};

class EvenNodes {
 public:
  EvenNodes(const Mask& mask, const Dispatch& dispatch, const EvenNodesOptions& options)
      : num_nodes_(static_cast<size_t>(dispatch.cp_size)),
        areas_(mask.slices(), mask.seqlen_q()),
        limit_((1 + options.tolerance) * static_cast<double>(mask.area()) / dispatch.cp_size),
        sent_(num_nodes_),
        received_(num_nodes_),
        price_of_(num_nodes_),
        area_of_(num_nodes_),
        runs_of_(num_nodes_),
        load_of_(num_nodes_, -1) {
    collect(mask, owned_runs(dispatch));
    for (size_t d = 0; d < documents_.size(); ++d) {
      Document& document = documents_[d];
      find_loads(document);
      count(document.loads, 1);
      for (const NodeRun& run : document.runs) area_of_[static_cast<size_t>(run.node)] += area(run.rows);
      if (!document.loads.empty()) shared_.push_back(d);
      list_runs(d);
    }
  }

  void run(int num_trials) {
    for (int n = 0; n < num_trials; ++n) {
      if (propose()) try_moves();
    }
  }

  Dispatch result(const Dispatch& dispatch) const {
    std::vector<NodeRun> all;
    for (const Document& document : documents_) all.insert(all.end(), document.runs.begin(), document.runs.end());
    int64_t chunk_size = dispatch.seqlen() / dispatch.cp_size;
    for (const NodeRun& run : all) chunk_size = std::gcd(chunk_size, run.rows.end);
    Dispatch evened{dispatch.cp_size, chunk_size, {}};
    for (const NodeRun& run : all) evened.rank_of_chunk.append(run.rows.size() / chunk_size, run.node);
    return evened;
  }

 private:
  struct Move {
    size_t document = 0;
    Range rows;
    int to = 0;
  };
  struct Place {
    size_t document = 0;
    size_t run = 0;
  };

  int64_t area(const Range& rows) const { return areas_.before(rows.end) - areas_.before(rows.begin); }

  // Rows between documents become documents that see nothing.
  void collect(const Mask& mask, const std::vector<OwnedRun>& runs) {
    int64_t next = 0;
    const auto add = [&](const AttnSlice& slice, const Range& rows) {
      if (!rows.empty()) documents_.push_back({slice, {{rows, 0}}, {}});
      next = rows.end;
    };
    for (const AttnSlice& slice : mask.slices()) {
      add({}, {next, slice.q_range.begin});
      add(slice, slice.q_range);
    }
    add({}, {next, mask.seqlen_q()});
    auto run = runs.begin();
    for (Document& document : documents_) {
      const Range rows = document.runs.front().rows;
      document.runs.clear();
      while (run->global.end <= rows.begin) ++run;
      for (auto at = run; at != runs.end() && at->global.begin < rows.end; ++at) {
        document.runs.push_back({intersect(rows, at->global), at->owner});
      }
    }
  }

  void list_runs(size_t document) {
    const std::vector<NodeRun>& runs = documents_[document].runs;
    for (size_t i = 0; i < runs.size(); ++i) runs_of_[static_cast<size_t>(runs[i].node)].push_back({document, i});
  }

  // Lists anew what has changed of a document: before, it had `old` runs.
  void relist(size_t document, const std::vector<NodeRun>& old) {
    for (const NodeRun& run : old) {
      std::vector<Place>& places = runs_of_[static_cast<size_t>(run.node)];
      std::erase_if(places, [&](const Place& place) { return place.document == document; });
    }
    list_runs(document);
    const auto at = std::lower_bound(shared_.begin(), shared_.end(), document);
    const bool was_shared = at != shared_.end() && *at == document;
    const bool is_shared = !documents_[document].loads.empty();
    if (is_shared && !was_shared) shared_.insert(at, document);
    if (was_shared && !is_shared) shared_.erase(at);
  }

  // What nodes send and receive of a document, in the order in which they first have rows of it.
  void find_loads(Document& document) {
    document.loads.clear();
    const std::vector<NodeRun>& runs = document.runs;
    if (runs.size() < 2) return;
    for (const NodeRun& run : runs) {
      int& load = load_of_[static_cast<size_t>(run.node)];
      if (load >= 0) continue;
      load = static_cast<int>(document.loads.size());
      document.loads.push_back({run.node, 0, 0});
    }
    for (NodeLoad& load : document.loads) {
      keys_.clear();
      for (const NodeRun& run : runs) {
        if (run.node != load.node) continue;
        const AttnSlice part = cut_rows(document.slice, run.rows);
        if (!part.k_range.empty()) append_range(keys_, part.k_range);
      }
      join_ranges(keys_);
      for (const Range& range : keys_) {
        for (const NodeRun& run : runs) {
          if (run.rows.begin >= range.end) break;
          const int64_t num_rows = intersect(range, run.rows).size();
          if (num_rows <= 0 || run.node == load.node) continue;
          load.received += num_rows;
          document.loads[static_cast<size_t>(load_of_[static_cast<size_t>(run.node)])].sent += num_rows;
        }
      }
    }
    for (const NodeLoad& load : document.loads) load_of_[static_cast<size_t>(load.node)] = -1;
    std::erase_if(document.loads, [](const NodeLoad& load) { return load.sent == 0 && load.received == 0; });
  }

  void count(const std::vector<NodeLoad>& loads, int sign) {
    for (const NodeLoad& load : loads) {
      const auto node = static_cast<size_t>(load.node);
      sent_[node] += sign * load.sent;
      received_[node] += sign * load.received;
      price_of_[node] = price(sent_[node]) + price(received_[node]);
    }
  }

  // Grows faster than the loads, so that the largest come down.
  static double price(int64_t load) {
    const double thousands = static_cast<double>(load) * 1e-3;
    return thousands * thousands * thousands * thousands;
  }
  double total() const { return std::accumulate(price_of_.begin(), price_of_.end(), 0.0); }

  // Rows of the node with the largest load, of a document that has part in it, to another node; and others back.
  bool propose() {
    moves_.clear();
    size_t from = 0;
    for (size_t node = 1; node < num_nodes_; ++node) {
      if (price_of_[node] > price_of_[from]) from = node;
    }
    if (random_below(4) == 0) from = random_below(num_nodes_);
    const bool sends = sent_[from] > received_[from];
    int64_t all = sends ? sent_[from] : received_[from];
    if (all == 0) return false;
    // A document as likely as it has part in the load.
    int64_t at = static_cast<int64_t>(static_cast<double>(random() >> 11) * 0x1p-53 * static_cast<double>(all));
    size_t found = documents_.size();
    for (size_t i = 0; i < shared_.size() && found == documents_.size(); ++i) {
      for (const NodeLoad& load : documents_[shared_[i]].loads) {
        if (load.node != static_cast<int>(from)) continue;
        at -= sends ? load.sent : load.received;
        if (at < 0) found = shared_[i];
      }
    }
    if (found == documents_.size()) return false;
    const std::vector<NodeRun>& runs = documents_[found].runs;
    size_t to = random_below(num_nodes_);
    if (random_below(2) == 0) to = static_cast<size_t>(runs[random_below(runs.size())].node);
    if (to == from) return false;
    size_t given = random_below(runs.size());
    for (size_t n = 0; n < runs.size() && runs[given].node != static_cast<int>(from); ++n) {
      given = (given + 1) % runs.size();
    }
    Range rows = runs[given].rows;
    const int64_t size = std::max<int64_t>(1, rows.size() >> random_below(5));
    if (random_below(2) == 0) {
      rows.end = rows.begin + size;
    } else {
      rows.begin = rows.end - size;
    }
    moves_.push_back({found, rows, static_cast<int>(to)});
    return take_back(to, from);
  }

  // Returns as many rows of `giver` to `taker`: those whose area comes nearest.
  bool take_back(size_t giver, size_t taker) {
    constexpr int kMostPieces = 6, kNumSamples = 8;
    int64_t missing = moves_[0].rows.size(), missing_area = area(moves_[0].rows);
    for (int n = 0; n < kMostPieces && missing > 0; ++n) {
      Move best;
      double best_off = 0;
      for (int sample = 0; sample < kNumSamples; ++sample) {
        const Place place = runs_of_[giver][random_below(runs_of_[giver].size())];
        const Range run = documents_[place.document].runs[place.run].rows;
        if (is_taken(place.document, run)) continue;
        const Range rows = nearest_part(run, std::min(missing, run.size()), missing_area);
        // Too much for the rows that are taken, per row.
        const double off = std::abs(static_cast<double>(area(rows)) / static_cast<double>(rows.size()) -
                                    static_cast<double>(missing_area) / static_cast<double>(missing)) *
                           static_cast<double>(rows.size());
        if (best.rows.empty() || off / static_cast<double>(rows.size()) < best_off) {
          best = {place.document, rows, static_cast<int>(taker)};
          best_off = off / static_cast<double>(rows.size());
        }
      }
      if (best.rows.empty()) return false;
      moves_.push_back(best);
      missing -= best.rows.size();
      missing_area -= area(best.rows);
    }
    if (missing > 0) return false;
    // missing_area is what the giver gains.
    return within_limit(giver, missing_area) && within_limit(taker, -missing_area);
  }

  bool within_limit(size_t node, int64_t gained) const {
    return gained <= 0 || static_cast<double>(area_of_[node] + gained) <= limit_;
  }
  bool is_taken(size_t document, const Range& run) const {
    return std::any_of(moves_.begin(), moves_.end(), [&](const Move& move) {
      return move.document == document && !intersect(move.rows, run).empty();
    });
  }

  // `size` rows of a run, at one of its ends or between them where areas grow from row to row.
  Range nearest_part(const Range& run, int64_t size, int64_t wanted) const {
    int64_t low = run.begin, high = run.end - size;
    const bool grows = area({high, high + size}) >= area({low, low + size});
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      if ((area({middle, middle + size}) < wanted) == grows) {
        low = middle;
      } else {
        high = middle;
      }
    }
    const auto off = [&](int64_t begin) { return std::abs(area({begin, begin + size}) - wanted); };
    const int64_t begin = off(low) <= off(high) ? low : high;
    return {begin, begin + size};
  }

  // Makes moves_, and takes them back unless they are better.
  void try_moves() {
    const double before = total();
    num_old_ = 0;
    for (const Move& move : moves_) {
      const auto last = old_.begin() + static_cast<std::ptrdiff_t>(num_old_);
      const auto is_kept = [&](const auto& entry) { return entry.first == move.document; };
      if (std::none_of(old_.begin(), last, is_kept)) {
        if (num_old_ == old_.size()) old_.emplace_back();
        old_[num_old_++] = {move.document, documents_[move.document]};
      }
      give(documents_[move.document].runs, move.rows, move.to);
    }
    const std::span<std::pair<size_t, Document>> old(old_.data(), num_old_);
    for (const auto& [index, document] : old) {
      count(document.loads, -1);
      find_loads(documents_[index]);
      count(documents_[index].loads, 1);
    }
    if (total() >= before) {
      for (auto& [index, document] : old) {
        count(documents_[index].loads, -1);
        count(document.loads, 1);
        std::swap(documents_[index], document);
      }
      return;
    }
    int64_t gained = 0;
    for (const Move& move : moves_) gained += move.to == moves_[0].to ? area(move.rows) : -area(move.rows);
    area_of_[static_cast<size_t>(moves_[0].to)] += gained;
    area_of_[static_cast<size_t>(moves_[1].to)] -= gained;
    for (const auto& [index, document] : old) relist(index, document.runs);
  }

  void give(std::vector<NodeRun>& runs, const Range& rows, int node) {
    std::vector<NodeRun>& result = given_;
    result.clear();
    const auto add = [&](const Range& part, int owner) {
      if (part.empty()) return;
      if (!result.empty() && result.back().node == owner) {
        result.back().rows.end = part.end;
      } else {
        result.push_back({part, owner});
      }
    };
    for (const NodeRun& run : runs) {
      add({run.rows.begin, std::min(run.rows.end, rows.begin)}, run.node);
      add(intersect(run.rows, rows), node);
      add({std::max(run.rows.begin, rows.end), run.rows.end}, run.node);
    }
    std::swap(runs, result);
  }

  uint64_t random() {
    // splitmix64 (Steele, Lea, Flood, 2014)
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  size_t random_below(size_t limit) { return static_cast<size_t>((random() >> 32) * limit >> 32); }

  const size_t num_nodes_;
  const RowAreas areas_;
  const double limit_;
  std::vector<Document> documents_;
  std::vector<int64_t> sent_, received_;
  std::vector<double> price_of_;  // of both
  std::vector<int64_t> area_of_;
  std::vector<std::vector<Place>> runs_of_;
  std::vector<size_t> shared_;  // documents on several nodes, in order
  std::vector<Move> moves_;
  uint64_t state_ = 1;
  // Kept from trial to trial, for their memory.
  std::vector<std::pair<size_t, Document>> old_;  // documents before moves_
  size_t num_old_ = 0;
  std::vector<NodeRun> given_;
  std::vector<Range> keys_;
  std::vector<int> load_of_;  // of nodes in a document; -1 between
};

}  // namespace

bool is_pack(std::span<const AttnSlice> slices) {
  const auto meet = [](const AttnSlice& a, const AttnSlice& b) {
    return b.q_range.begin < a.q_range.end || b.k_range.begin < a.k_range.end;
  };
  return slices.size() > 1 && std::adjacent_find(slices.begin(), slices.end(), meet) == slices.end();
}

Dispatch even_nodes(const Mask& mask, const Dispatch& dispatch, const EvenNodesOptions& options) {
  EvenNodes search(mask, dispatch, options);
  search.run(options.num_trials);
  return search.result(dispatch);
}

}  // namespace tangram
