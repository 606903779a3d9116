// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/mask_image.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/require.hpp"
#include "core/rounding.hpp"
#include "schedule/regular_tiles.hpp"

namespace tangram::schedule {
namespace {

constexpr size_t kAlignment = 256;
// What a list is given beside its tiles: see MaskCapacity::slices. A run of a document has two or three turn segments,
// the more, the more runs meet at a query tile. A window of w keys needs w / 128 runs, and twice that with as many keys
// to the right, since runs end or begin at every query tile. Tiles have room for windows of 16K keys.
constexpr int64_t kRunsPerTile = 2, kSegmentsPerRun = 8, kSegmentsPerTile = 112;

int64_t tiles_of(int64_t rows, int block) { return (rows + block - 1) / block; }

/// Runs of a slice of up to 128 rows, wherever it begins, with reserve.
int64_t runs_of_slice(int block) { return tiles_of(128, block) + 3; }

/// Places one array behind the other, each aligned.
struct Offsets {
  size_t end = 0;

  template <class T>
  size_t take(int64_t count) {
    const size_t offset = round_up(end, kAlignment);
    end = offset + static_cast<size_t>(count) * sizeof(T);
    return offset;
  }
};

/// Copies arrays to where they belong in an image.
struct Writer {
  std::byte* to;

  template <class T>
  size_t put(size_t offset, const std::vector<T>& values) const {
    static_assert(std::is_trivially_copyable_v<T>);
    const size_t bytes = values.size() * sizeof(T);
    if (bytes > 0) std::memcpy(to + offset, values.data(), bytes);
    return offset + bytes;
  }
  template <class T>
  void fill(size_t offset, int64_t begin, int64_t end, const T& value) const {
    T* const values = reinterpret_cast<T*>(to + offset);
    std::fill(values + begin, values + end, value);
  }
  /// Runs whose intervals lie at `intervals`.
  void put_runs(size_t offset, const std::vector<TileRange>& runs, size_t intervals) const {
    auto* out = reinterpret_cast<TileRange*>(to + offset);
    const auto first = static_cast<int32_t>(intervals / sizeof(RowInterval));
    for (const TileRange& run : runs) {
      *out = run;
      if (run.interval_begin >= 0) out->interval_begin += first;
      ++out;
    }
  }
};

void require_room(std::string_view what, int64_t needed, int64_t room, std::string_view field, int64_t value) {
  require(needed <= room,
          "MaskBuffer::set: the mask must fit the buffer, a larger {} makes room (got {} {}, room for {}, {}={})",
          field, needed, what, room, field, value);
}

}  // namespace

ImageLayout::ImageLayout(const AttnShape& shape, const TileShape& forward, const TileShape& backward,
                         const MaskCapacity& capacity)
    : capacity_(capacity), seqlen_q_(shape.seqlen_q) {
  if (capacity_.max_slices == 0) capacity_.max_slices = capacity_.max_documents;
  constexpr int64_t kMost = int64_t{1} << 24;
  require(
      0 < capacity_.max_documents && capacity_.max_documents <= kMost && 0 < capacity_.max_slices &&
          capacity_.max_slices <= kMost,
      "MaskBuffer: max_documents and max_slices must be positive and at most {} (got max_documents={}, max_slices={})",
      kMost, capacity.max_documents, capacity.max_slices);
  if (capacity_.passes != AttnPasses::kBackward) {
    num_forward_work_tiles_ =
        RegularTiles{static_cast<int32_t>(shape.seqlen_q), forward.block_m, forward.anew_every}.count();
    num_forward_runs_ = kRunsPerTile * num_forward_work_tiles_ + runs_of_slice(forward.block_m) * capacity_.max_slices;
  }
  if (capacity_.passes != AttnPasses::kForward) {
    // A tile more where a document begins, of queries and of keys.
    num_q_tiles_ = shape.seqlen_q == 0 ? 0 : tiles_of(shape.seqlen_q, backward.block_n) + capacity_.max_documents;
    num_key_tiles_ = shape.seqlen_k == 0 ? 0 : tiles_of(shape.seqlen_k, backward.block_m) + capacity_.max_documents;
    num_backward_work_tiles_ = num_key_tiles_ * shape.num_heads_q;  // a work tile a head at most
    num_backward_runs_ = kRunsPerTile * num_key_tiles_ + runs_of_slice(backward.block_m) * capacity_.max_slices;
    if (capacity_.deterministic) {
      num_turn_segments_ = kSegmentsPerRun * num_backward_runs_ + kSegmentsPerTile * num_key_tiles_;
    }
  }
  Offsets at;
  at.take<BackwardMaskInfo>(1);
  q_tiles_ = at.take<QueryTile>(num_q_tiles_);
  covered_queries_ = at.take<uint64_t>(num_q_tiles_);
  forward_work_tiles_ = at.take<MaskTile>(num_forward_work_tiles_);
  forward_runs_ = at.take<TileRange>(num_forward_runs_);
  backward_runs_ = at.take<TileRange>(num_backward_runs_);
  run_tiles_ = at.take<RangeQueryTiles>(num_backward_runs_);
  backward_work_tiles_ = at.take<WorkTile>(num_backward_work_tiles_);
  at.take<RowInterval>(num_forward_runs_ * forward.block_m);  // a run has none, or one for each row of its tile
  at.take<RowInterval>(num_backward_runs_ * backward.block_m);
  at.take<DqOrderSegment>(num_turn_segments_);
  bytes_ = round_up(at.end, kAlignment);
  require(bytes_ < size_t{1} << 33,
          "MaskBuffer: lists must stay below 8 GiB (got max_documents={}, max_slices={}, {} bytes)",
          capacity_.max_documents, capacity_.max_slices, bytes_);
}

void ImageLayout::check(const TileList& forward, const WorkList& backward) const {
  const auto size = [](const auto& values) { return static_cast<int64_t>(values.size()); };
  const auto need = [&](std::string_view what, int64_t needed, int64_t room) {
    require_room(what, needed, room, "max_slices", capacity_.max_slices);
  };
  TANGRAM_ASSERT(size(forward.work_tiles) == num_forward_work_tiles_);
  TANGRAM_ASSERT(backward.deterministic_work_tiles.empty());
  need("runs of keys", size(forward.runs), num_forward_runs_);
  require_room("tiles of queries", size(backward.q_tiles), num_q_tiles_, "max_documents", capacity_.max_documents);
  // No more work tiles than tiles times heads, nor intervals than runs times rows: these have room where the others
  // have.
  require_room("items of keys", size(backward.work_tiles), num_backward_work_tiles_, "max_documents",
               capacity_.max_documents);
  need("runs of queries", size(backward.runs), num_backward_runs_);
  need("turns of runs", size(backward.dq_order_segments), num_turn_segments_);
  require(capacity_.allow_fully_masked_rows || backward.covered_queries.empty(),
          "MaskBuffer::set: each row must see a key, as the buffer is made for (got a mask with rows that see none, "
          "allow_fully_masked_rows=false)");
}

size_t ImageLayout::write(std::byte* to, const TileList& forward, const WorkList& backward) const {
  const Writer image{to};
  *reinterpret_cast<BackwardMaskInfo*>(to + mask_info()) = {static_cast<int32_t>(backward.work_tiles.size()),
                                                            backward.walk, backward.zeroed_sums};
  const auto used = static_cast<int64_t>(backward.q_tiles.size());
  const auto end = static_cast<int32_t>(seqlen_q_);
  image.put(q_tiles_, backward.q_tiles);
  image.fill<QueryTile>(q_tiles_, used, num_q_tiles_, {end, end});
  image.put(covered_queries_, backward.covered_queries);
  image.fill(covered_queries_, static_cast<int64_t>(backward.covered_queries.size()), num_q_tiles_, ~uint64_t{0});
  image.put(forward_work_tiles_, forward.work_tiles);
  // Arrays whose begin depends on the mask: NOTE [image].
  const size_t forward_intervals = image.put(backward_work_tiles_, backward.work_tiles);
  const size_t backward_intervals = image.put(forward_intervals, forward.intervals);
  const size_t segments = image.put(backward_intervals, backward.intervals);
  const size_t bytes = image.put(segments, backward.dq_order_segments);
  image.put_runs(forward_runs_, forward.runs, forward_intervals);
  image.put_runs(backward_runs_, backward.runs, backward_intervals);
  auto* run_tiles = reinterpret_cast<RangeQueryTiles*>(to + run_tiles_);
  const auto first = static_cast<int32_t>(segments / sizeof(DqOrderSegment));
  for (const RangeQueryTiles& run : backward.run_tiles) *run_tiles++ = {run.first, run.end, run.segment + first};
  return bytes;
}

}  // namespace tangram::schedule
