// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What the search tries: a gift from one rank to another, and mostly something in return.
#include <algorithm>
#include <bit>
#include <limits>

#include "plan/pack_search.hpp"

namespace tangram {

namespace {

constexpr int kNumReturns = 8;  // pieces that are compared before one goes back
constexpr int kMostGivenBack = 2;

}  // namespace

// From 1 to `limit`, small ones as often as large ones.
int32_t PackSearch::random_size(int32_t limit) {
  const uint64_t dice = random();
  const auto bits = static_cast<uint64_t>(std::bit_width(static_cast<uint32_t>(limit)));
  const int32_t top = 1 << static_cast<int>((dice & 0xffffffff) * bits >> 32);
  return std::min(limit, top + static_cast<int32_t>((dice >> 32) * static_cast<uint64_t>(top) >> 32));
}

// Cuts go to whole tiles, but for one in eight, or rows would not come out even.
void PackSearch::add_move(const Place& place, int32_t begin, int32_t end, int to) {
  const bool is_free = is_padding(place.document);
  const auto cut = [&](int32_t row) { return is_free || random() % 8 == 0 ? row : whole_tiles(row); };
  if (begin > place.begin) begin = std::max(place.begin, cut(begin));
  if (end < place.end) end = std::min(place.end, cut(end));
  if (begin < end && num_moves_ < moves_.size()) moves_[num_moves_++] = {place.document, place.piece, begin, end, to};
}

// The whole piece, or some rows of an end of it.
void PackSearch::give_part(const Place& place, int to) {
  const uint64_t dice = random();
  const int32_t size = dice % 2 == 0 ? place.end - place.begin : random_size(place.end - place.begin);
  if ((dice >> 1) % 2 == 0) {
    add_move(place, place.begin, place.begin + size, to);
  } else {
    add_move(place, place.end - size, place.end, to);
  }
}

// All that a rank has of a document.
void PackSearch::give_all(int document, int from, int to) {
  const AssignedDocument& pieces = assigned(document);
  for (int k = 0; k < pieces.count; ++k) {
    if (pieces.rank_of(k) != from) continue;
    add_move({document, k, pieces.begin_of(k), pieces.end_of(k)}, pieces.begin_of(k), pieces.end_of(k), to);
  }
}

// Moves the border behind a piece.
void PackSearch::shift_cut(int document, int piece) {
  const AssignedDocument& pieces = assigned(document);
  if (piece + 1 == pieces.count) return;
  const bool gives_last = random() % 2 == 0;
  const int giver = gives_last ? piece : piece + 1;
  a_ = pieces.rank_of(giver);
  b_ = pieces.rank_of(gives_last ? piece + 1 : piece);
  const Place place{document, giver, pieces.begin_of(giver), pieces.end_of(giver)};
  const int32_t size = random_size(place.end - place.begin);
  if (gives_last) {
    add_move(place, place.end - size, place.end, b_);
  } else {
    add_move(place, place.begin, place.begin + size, b_);
  }
}

// Where the gift alone costs more than all that both ranks are off: hardly anything given back makes it worth while.
bool PackSearch::is_hopeless() {
  constexpr uint64_t kLookedAt = 16;  // of 256 all the same
  return num_moves_ == 1 && random() % 256 >= kLookedAt && change_of(moves_[0]) >= price_of(a_) + price_of(b_);
}

// What rank b_ gives for what it has got, so that rows and areas of both fit best.
void PackSearch::release() {
  const auto a = static_cast<size_t>(a_);
  const auto b = static_cast<size_t>(b_);
  const std::vector<Place>& pieces = of_rank_[b];
  if (num_moves_ == 0 || pieces.empty()) return;
  if (is_hopeless()) {
    num_moves_ = 0;
    return;
  }
  int64_t rows = 0;
  int64_t gained = 0;
  for (const Move& move : moves()) {
    rows += move.size();
    gained += area(move);
  }
  // Chooses as many rows of a piece as are too many: its first, its last, or those before row `last`.
  const auto choose_rows = [&](Move& move, uint64_t dice, int32_t wanted, int32_t last) {
    const auto cut = [&](int32_t row) { return (dice >> 8 & 7) != 0 ? whole_tiles(row) : row; };
    const int32_t begin = move.begin;
    const int32_t end = move.end;
    if ((dice & 4) == 0) {
      move.end = std::min(end, cut(begin + wanted));
      return;
    }
    if ((dice & 8) != 0) move.end = std::min(end, cut(std::max(last, begin + wanted)));
    move.begin = std::max(begin, cut(move.end - wanted));
  };
  for (int n = 0; n < kMostGivenBack && num_moves_ < moves_.size(); ++n) {
    // Taken out of the loop, and computed at once: half of the whole search are these samples.
    using Two = double __attribute__((vector_size(16)));  // of ranks a_ and b_
    using Bits = int64_t __attribute__((vector_size(16)));
    const Two off{static_cast<double>(rows_[a] - rows - pack_.rows_per_rank),
                  static_cast<double>(rows_[b] + rows - pack_.rows_per_rank)};
    const double over_b = static_cast<double>(area_[b] + gained - pack_.most_area);
    const Two over{static_cast<double>(area_[a] - gained - pack_.most_area), over_b};
    const Two near_rows = near_rows_ + Two{}, share_of_row = share_of_row_ + Two{};
    const Two price_of_near = price_of_near_ + Two{}, price_of_far = price_of_far_ + Two{};
    const Two price_of_area = price_of_area_ + Two{};
    const auto price_with = [&](const Move& move) {
      const double count = move.size();
      const auto size = static_cast<double>(area(move));
      const Two sum = off + Two{count, -count};
      const Two above = over + Two{size, -size};
      const Two missed = reinterpret_cast<Two>(reinterpret_cast<Bits>(sum) & std::numeric_limits<int64_t>::max());
      const Two beyond = missed - near_rows;
      const Two far = beyond > 0.0 ? beyond : Two{};
      const Two result = missed * price_of_near + far * (1 + far * share_of_row) * price_of_far +
                         (above > 0.0 ? above : Two{}) * price_of_area;
      return result[0] + result[1];
    };
    // `rows` rows that end here have the area that is too much.
    const auto wanted = static_cast<double>(std::max<int64_t>(rows, 1));
    const double last = std::max(0.0, over_b) / wanted + wanted / 2;
    const auto last_row = static_cast<int32_t>(std::min(last, static_cast<double>(pack_.num_rows)));
    double best_price = price_with({});
    Move best;
    const Place* const first = pieces.data();
    const uint64_t num_pieces = pieces.size();
    for (int sample = 0; sample < kNumReturns; ++sample) {
      const uint64_t dice = random();
      const Place& place = first[(dice >> 32) * num_pieces >> 32];
      Move move{place.document, place.piece, place.begin, place.end, a_};
      if (rows > 0 && place.end - place.begin > rows && dice % 4 != 0) {
        choose_rows(move, dice, static_cast<int32_t>(rows), last_row);
        if (move.begin >= move.end) continue;
      }
      double price = price_with(move);
      if (price >= best_price) continue;
      price += change_of(move);
      if (price >= best_price) continue;
      best_price = price;
      best = move;
    }
    const auto is_same = [&](const Move& move) { return move.document == best.document && move.piece == best.piece; };
    if (best.size() == 0 || std::any_of(moves().begin(), moves().end(), is_same)) return;
    moves_[num_moves_++] = best;
    rows -= best.size();
    gained -= area(best);
  }
}

// Where a document is split there is something to gain.
void PackSearch::propose_in_split() {
  int document = split_[static_cast<size_t>(random_below(split_.size()))];
  const int other = split_[static_cast<size_t>(random_below(split_.size()))];
  if (price_[static_cast<size_t>(other)] > price_[static_cast<size_t>(document)]) document = other;
  const AssignedDocument& pieces = assigned(document);
  const uint64_t dice = random();
  const int piece = random_below(static_cast<size_t>(pieces.count));
  a_ = pieces.rank_of(piece);
  b_ = pieces.rank_of(random_below(static_cast<size_t>(pieces.count)));
  switch (dice % 4) {
    case 0: shift_cut(document, piece); break;
    case 1:
      if ((dice >> 8) % 2 == 0) b_ = random_below(static_cast<size_t>(pack_.cp_size));
      if (a_ != b_) give_all(document, a_, b_);
      break;
    default:
      if ((dice >> 8) % 4 == 0) b_ = random_below(static_cast<size_t>(pack_.cp_size));
      if (a_ != b_) give_part({document, piece, pieces.begin_of(piece), pieces.end_of(piece)}, b_);
  }
  if ((dice >> 16) % 4 != 0) release();
}

// From the rank that is off most to another.
void PackSearch::propose_mending() {
  int worst = 0;
  for (int rank = 1; rank < pack_.cp_size; ++rank) {
    if (price_of(rank) > price_of(worst)) worst = rank;
  }
  if (price_of(worst) == 0) return propose_swap();
  const uint64_t dice = random();
  a_ = worst;
  b_ = random_below(static_cast<size_t>(pack_.cp_size));
  const auto index = static_cast<size_t>(worst);
  if (rows_[index] < pack_.rows_per_rank && area_[index] <= pack_.most_area) {
    if (dice % 2 == 0) b_ = static_cast<int>(std::max_element(rows_.begin(), rows_.end()) - rows_.begin());
    std::swap(a_, b_);
  } else if (dice % 2 == 0) {
    b_ = static_cast<int>(std::min_element(area_.begin(), area_.end()) - area_.begin());
  }
  const std::vector<Place>& pieces = of_rank_[static_cast<size_t>(a_)];
  if (a_ == b_ || pieces.empty()) return;
  give_part(pieces[static_cast<size_t>(random_below(pieces.size()))], b_);
  if ((dice >> 8) % 4 != 0) release();
}

// Any piece to any rank.
void PackSearch::propose_swap() {
  a_ = random_below(static_cast<size_t>(pack_.cp_size));
  b_ = random_below(static_cast<size_t>(pack_.cp_size));
  const std::vector<Place>& pieces = of_rank_[static_cast<size_t>(a_)];
  if (a_ == b_ || pieces.empty()) return;
  give_part(pieces[static_cast<size_t>(random_below(pieces.size()))], b_);
  if (random() % 4 != 0) release();
}

void PackSearch::propose() {
  const uint64_t dice = random() % 4;
  if (dice == 0) return propose_mending();
  if (dice < 3 && !split_.empty()) return propose_in_split();
  propose_swap();
}

}  // namespace tangram
