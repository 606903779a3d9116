// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Counting and the course of the search; what is tried stands in pack_moves.cpp, where it begins and what it returns in
// pack_pieces.cpp.
#include "plan/pack_search.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

namespace tangram {

namespace {

// Prices of area (in multiples of all rows, for an overload by the mean area) and of a row too many or too few. Prices
// grow, so that concessions are made where they are cheap.
constexpr std::array<double, PackSearch::kNumPhases> kPricesOfArea = {1, 2.8, 7.7, 22, 60};
constexpr double kPriceOfRow = 4;
constexpr double kLastPriceOfRow = 30;
constexpr double kShareOfPhases = 0.85;
// Up to a tile, rows that are off are mended by as many first rows, which move, and a cut, which costs as much.
constexpr double kPriceOfNear = 1;
constexpr double kHeat = 0.0007;  // of the rows of a rank: what a change may lose at the start, now and then
// What is still unbalanced is mended at any price.
constexpr int kNumMendings = 16;
constexpr double kShareOfMending = 0.04;
constexpr double kHighestPriceOfArea = 1000;

// Where the rows of a rank end that come before a piece.
int32_t end_before(const AssignedDocument& document, int piece, int rank) {
  for (int k = piece - 1; k >= 0; --k) {
    if (document.rank_of(k) == rank) return document.end_of(k);
  }
  return 0;
}

}  // namespace

PackSearch::PackSearch(const CausalPack& pack)
    : pack_(pack),
      tile_(static_cast<int32_t>(pack.cuts.tile_rows)),
      share_of_row_(static_cast<double>(pack.cp_size) / static_cast<double>(pack.rows_per_rank)),
      of_rank_(static_cast<size_t>(pack.cp_size)),
      near_rows_(static_cast<double>(tile_)) {}

void PackSearch::set_prices(double row, double area) {
  price_of_near_ = kPriceOfNear;
  price_of_far_ = row - kPriceOfNear;
  price_of_area_ = area * static_cast<double>(pack_.num_rows) / static_cast<double>(pack_.mean_area);
  price_ranks();
}

void PackSearch::price_ranks() {
  for (size_t rank = 0; rank < rows_.size(); ++rank) price_of_rank_[rank] = price_of(rows_[rank], area_[rank]);
}

// Each rank of a document needs the rows up to its own last row. So the sum of these ends is the number of rows that
// ranks lack or hold, without cuts (pack_exchange.hpp).
double PackSearch::price_of_document(const AssignedDocument& document) const {
  double price = 0;
  uint32_t seen = uint32_t{1} << document.rank_of(document.count - 1);
  for (int k = document.count - 2; k >= 0; --k) {
    const uint32_t rank = uint32_t{1} << document.rank_of(k);
    if ((seen & rank) == 0) price += document.end_of(k);
    seen |= rank;
    price += price_of_cut(document.end_of(k));
  }
  return price;
}

// What one move alone changes in the price of its document.
double PackSearch::change_of(const Move& move) {
  if (is_padding(move.document)) return 0;
  const AssignedDocument& document = assigned(move.document);
  const int from = document.rank_of(move.piece);
  const int32_t begin = document.begin_of(move.piece);
  const int32_t end = document.end_of(move.piece);
  double change = std::max(0, move.end - last_of(move.document, move.to));
  if (move.end == end && end == last_of(move.document, from)) {
    change += (move.begin > begin ? move.begin : end_before(document, move.piece, from)) - end;
  }
  if (move.begin > begin) {
    change += price_of_cut(move.begin);
  } else if (move.piece > 0 && document.rank_of(move.piece - 1) == move.to) {
    change -= price_of_cut(begin);
  }
  if (move.end < end) {
    change += price_of_cut(move.end);
  } else if (move.piece + 1 < document.count && document.rank_of(move.piece + 1) == move.to) {
    change -= price_of_cut(end);
  }
  return change;
}

// False, and the document as it was, where it would have too many pieces.
bool PackSearch::give(AssignedDocument& document, const Move& move) {
  given_.count = 0;
  bool fits = true;
  for (int k = 0; k < document.count; ++k) {
    const int32_t begin = document.begin_of(k);
    const int32_t end = document.end_of(k);
    if (begin < move.begin) fits &= given_.append(std::min(end, move.begin), document.rank_of(k));
    if (end > move.begin && begin < move.end) fits &= given_.append(std::min(end, move.end), move.to);
    if (end > move.end) fits &= given_.append(end, document.rank_of(k));
  }
  if (!fits) return false;
  document.count = given_.count;
  std::copy_n(given_.pieces.begin(), given_.count, document.pieces.begin());
  return true;
}

// What moves_ change, or at least `limit` where that is seen early.
double PackSearch::change(double limit) {
  int64_t rows = 0;  // that rank b_ gets
  int64_t gained = 0;
  for (const Move& move : moves()) {
    const int sign = move.to == b_ ? 1 : -1;
    rows += sign * move.size();
    gained += sign * area(move);
  }
  const auto a = static_cast<size_t>(a_);
  const auto b = static_cast<size_t>(b_);
  double result = price_of(rows_[a] - rows, area_[a] - gained) + price_of(rows_[b] + rows, area_[b] + gained) -
                  price_of(a_) - price_of(b_);
  for (const Move& move : moves()) {
    const auto is_same = [&](const Move& other) { return other.document == move.document; };
    if (&move != &*std::find_if(moves().begin(), moves().end(), is_same)) continue;
    const AssignedDocument& document = assigned(move.document);
    if (std::count_if(moves().begin(), moves().end(), is_same) == 1) {
      if (document.count + 2 > AssignedDocument::kMostPieces) return limit;
      result += change_of(move);
      continue;
    }
    scratch_.count = document.count;
    std::copy_n(document.pieces.begin(), document.count, scratch_.pieces.begin());
    for (const Move& other : moves()) {
      if (is_same(other) && !give(scratch_, other)) return limit;
    }
    if (!is_padding(move.document)) {
      result += price_of_document(scratch_) - price_[static_cast<size_t>(move.document)];
    }
  }
  return result;
}

void PackSearch::apply() {
  for (const Move& move : moves()) {
    const auto from = static_cast<size_t>(move.to == b_ ? a_ : b_);
    const auto to = static_cast<size_t>(move.to);
    const int64_t moved = area(move);
    rows_[from] -= move.size();
    rows_[to] += move.size();
    area_[from] -= moved;
    area_[to] += moved;
    AssignedDocument& document = assigned_[static_cast<size_t>(move.document)];
    give(document, move);
    if (!is_padding(move.document)) price_[static_cast<size_t>(move.document)] = price_of_document(document);
  }
  list_pieces();
  price_ranks();
}

void PackSearch::search_share(double share) {
  const int last = static_cast<int>(share * num_proposals_);
  for (int n = 0; n < last; ++n) {
    // A worse change is taken the more seldom the worse it is (Metropolis and others, 1953): half as often for each
    // heat_. Without a logarithm, whose last bit depends on the machine.
    const double limit = heat_ == 0 ? 0 : heat_ * std::countr_zero(random() | uint64_t{1} << 32);
    num_moves_ = 0;
    propose();
    if (num_moves_ > 0 && change(limit) < limit) apply();
  }
}

// Gives every rank as many rows as it must have, by the cheapest first or last rows of pieces.
bool PackSearch::equalise() {
  constexpr int kMost = 100;
  for (int n = 0; n < kMost; ++n) {
    const auto most = std::max_element(rows_.begin(), rows_.end());
    const auto least = std::min_element(rows_.begin(), rows_.end());
    if (*most == *least) return true;
    a_ = static_cast<int>(most - rows_.begin());
    b_ = static_cast<int>(least - rows_.begin());
    const auto missing = static_cast<int32_t>(std::min(*most - pack_.rows_per_rank, pack_.rows_per_rank - *least));
    double best_price = std::numeric_limits<double>::max();
    Move best;
    for (const Place& place : of_rank_[static_cast<size_t>(a_)]) {
      const int32_t size = std::min(missing, place.end - place.begin);
      for (const int32_t begin : {place.begin, place.end - size}) {
        num_moves_ = 1;
        moves_[0] = {place.document, place.piece, begin, begin + size, b_};
        const double price = change(best_price) + missing - size;
        if (price >= best_price) continue;
        best_price = price;
        best = moves_[0];
      }
    }
    if (best.size() == 0) return false;
    num_moves_ = 1;
    moves_[0] = best;
    apply();
  }
  return false;
}

void PackSearch::begin(std::span<const int> rank_of_chunk, int64_t chunk_size, uint64_t seed, int num_proposals) {
  state_ = seed;
  num_proposals_ = num_proposals;
  next_phase_ = 0;
  list_documents(rank_of_chunk, chunk_size);
}

void PackSearch::run_phases(int end) {
  for (; next_phase_ < end; ++next_phase_) {
    set_prices(kPriceOfRow, kPricesOfArea[static_cast<size_t>(next_phase_)]);
    heat_ = kHeat * static_cast<double>(pack_.rows_per_rank) * (1 - static_cast<double>(next_phase_) / kNumPhases);
    search_share(kShareOfPhases / kNumPhases);
  }
}

bool PackSearch::finish() {
  run_phases(kNumPhases);
  heat_ = 0;
  double price_of_area = kPricesOfArea.back();
  set_prices(kLastPriceOfRow, price_of_area);
  search_share(1 - kShareOfPhases);
  if (!equalise()) return false;
  for (int i = 0; i < kNumMendings && !is_balanced(); ++i) {
    set_prices(kLastPriceOfRow, price_of_area);
    search_share(kShareOfMending);
    if (!equalise()) return false;
    price_of_area = std::min(1.5 * price_of_area, kHighestPriceOfArea);
  }
  return is_balanced();
}

double PackSearch::price() const { return std::accumulate(price_.begin(), price_.end(), 0.0); }

double PackSearch::total() const { return std::accumulate(price_of_rank_.begin(), price_of_rank_.end(), price()); }

}  // namespace tangram
