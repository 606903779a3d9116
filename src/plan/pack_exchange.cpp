// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "plan/pack_exchange.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tangram {

ExchangeEstimate estimate_exchange(const PackHalves& halves, const PackBounds& bounds, std::array<int, 2> heads) {
  ExchangeEstimate result;
  result.giver = halves.area[1] > halves.area[0] ? 1 : 0;
  const size_t other = 1 - result.giver;
  const auto surplus = static_cast<double>(halves.area[result.giver] - bounds.area);
  const auto least = static_cast<double>(std::max<int64_t>(0, halves.rows[result.giver] - bounds.rows));
  const auto room = static_cast<double>(bounds.rows - halves.rows[other]);
  const double per_row = 0.5 / std::max(1, heads[other]);
  const auto returned = [&](double given) { return std::max(0.0, given - room); };
  if (surplus + per_row * returned(0) * returned(0) <= 0) {
    result.given = result.last = least;
    result.returned = returned(least);
    return result;
  }
  // Rows [last - given, last) have the area that is too much. The more there are, the sooner they end, until they are
  // the first ones of the document. But rows for which the other rank has no capacity must come back.
  double best = std::numeric_limits<double>::max();
  const auto look = [&](double wanted) {
    const double given = std::max({wanted, least, 1.0});
    const double back = returned(given);
    const double last = std::max(given, (surplus + per_row * back * back) / given + given / 2);
    if (last + back >= best) return;
    best = last + back;
    result.given = given;
    result.last = last;
    result.returned = back;
  };
  if (room >= 1) look(std::min(std::sqrt(2 * std::max(0.0, surplus)), room));
  look(std::max(room, std::sqrt(std::max(0.0, surplus + per_row * room * room) / (1.5 + per_row))));
  return result;
}

// Whole tiles first, and then the rows that are left over.
bool PackExchange::make(PackHalves halves, size_t giver, int64_t given) {
  parts_.clear();
  price_ = price_of_rest_ = 0;
  const int64_t back = given - (bounds_.rows - halves.rows[1 - giver]);
  const int64_t heads = back <= 0 ? 0 : (back + tile_ / 2) / tile_ * tile_;
  if (!give_heads(halves, 1 - giver, heads, given > 0)) return false;
  const bool is_heavy = halves.area[giver] > bounds_.area;
  if (given > 0 && !(is_heavy ? give_middle(halves, giver, given) : give_heads(halves, giver, given, false))) {
    return false;
  }
  for (const size_t rank : {size_t{0}, size_t{1}}) {
    if (halves.rows[rank] > bounds_.rows && !give_rest(halves, rank, halves.rows[rank] - bounds_.rows)) return false;
  }
  return std::max(halves.area[0], halves.area[1]) <= bounds_.area &&
         std::max(halves.rows[0], halves.rows[1]) <= bounds_.rows;
}

void PackExchange::give(PackHalves& halves, size_t from, const Part& part) {
  halves.move(from, part.end - part.begin, area_of_rows(part.begin, part.end));
  parts_.push_back(part);
}

// First rows of documents: of as few as the other rank can take, or of all, so that they have the least area.
bool PackExchange::give_heads(PackHalves& halves, size_t from, int64_t rows, bool evenly) {
  if (rows == 0) return true;
  price_ += static_cast<double>(rows);
  size_t num_cut = 0;
  for (size_t k = 0; k < cut_.size(); ++k) num_cut += owner_of_cut_[k] == from && documents_[cut_[k]].rows > tile_;
  if (num_cut == 0) return false;
  int64_t count = evenly ? static_cast<int64_t>(num_cut) : 1;
  const int64_t room = bounds_.area - halves.area[1 - from];
  while (count < static_cast<int64_t>(num_cut) && area_of_first(rows / count) * count > room) ++count;
  for (size_t k = 0; k < cut_.size() && rows > 0; ++k) {
    const PackedDocument& document = documents_[cut_[k]];
    if (owner_of_cut_[k] != from || document.rows <= tile_) continue;
    const int64_t share = whole_tiles(static_cast<double>(rows) / static_cast<double>(std::max<int64_t>(1, count--)));
    const int64_t part = std::min({share, rows, (document.rows - 1) / tile_ * tile_});
    give(halves, from, {cut_[k], 0, part});
    rows -= part;
  }
  return rows == 0;
}

// Rows out of the shortest document that is long enough for the area that is too much.
bool PackExchange::give_middle(PackHalves& halves, size_t from, int64_t rows) {
  const auto surplus = static_cast<double>(halves.area[from] - bounds_.area);
  const auto given = static_cast<double>(rows);
  const int64_t last = std::max(rows, whole_tiles(surplus / given + (given - 1) / 2));
  for (size_t k = cut_.size(); k-- > 0;) {
    if (owner_of_cut_[k] != from || documents_[cut_[k]].rows <= last) continue;
    price_ += static_cast<double>(last);
    give(halves, from, {cut_[k], last - rows, last});
    return true;
  }
  return false;
}

// Fewer rows than a tile. Before the last cut of a document rows cost nothing more. But if the rows that stay begin
// inside a tile, every tile of their keys meets one more tile of rows on the diagonal. A long document pays much more
// for a few rows than a short one.
bool PackExchange::give_rest(PackHalves& halves, size_t from, int64_t rows) {
  double least = std::numeric_limits<double>::max();
  size_t best = 0;
  for (size_t k = 0; k < cut_.size(); ++k) {
    const PackedDocument& document = documents_[cut_[k]];
    if (owner_of_cut_[k] != from || document.rows <= rows) continue;
    const auto part =
        std::find_if(parts_.begin(), parts_.end(), [&](const Part& other) { return other.document == cut_[k]; });
    if (part != parts_.end() && part->begin <= rows) continue;
    const double moved = part == parts_.end() ? static_cast<double>(rows) : 0;
    const double price = moved + rows_per_key_ * static_cast<double>(document.rows);
    if (price >= least) continue;
    least = price;
    best = cut_[k];
  }
  if (least == std::numeric_limits<double>::max()) return false;
  price_ += least;
  price_of_rest_ += least;
  give(halves, from, {best, 0, rows});
  return true;
}

int64_t PackExchange::whole_tiles(double rows) const {
  return static_cast<int64_t>(std::ceil(rows / static_cast<double>(tile_))) * tile_;
}

}  // namespace tangram
