// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// All lists of a mask in one block, at places that depend on a capacity alone. Kernels that got the places once, in a
// captured graph, read there whatever mask was copied last.
#pragma once

#include <cstddef>
#include <cstdint>

#include "schedule/work_list.hpp"
#include "tangram/attn_shape.hpp"
#include "tangram/mask_capacity.hpp"
#include "tangram/tile_list.hpp"

namespace tangram::schedule {

/// NOTE [image] Long arrays whose length depends on the mask are at the end, one after the other. So a copy ends with
/// the last entry that the mask fills. References into them are indices from the begin of the image:
/// TileRange::interval_begin, RangeQueryTiles::segment. Query tiles that a mask leaves unused are empty; those of the
/// forward pass (TileList::work_tiles) are always as many.
class ImageLayout {
 public:
  /// `forward`, `backward`: shapes of the tiles of the two lists. Throws InvalidArgument for a capacity that is not
  /// positive, or beyond 2^31.
  ImageLayout(const AttnShape& shape, const TileShape& forward, const TileShape& backward,
              const MaskCapacity& capacity);

  /// Bytes of the largest image.
  size_t bytes() const { return bytes_; }

  /// Throws InvalidArgument, naming what is too much, unless the lists fit: those of a pass for which the capacity is
  /// not may be empty. Work lists are of the kind of calls that the capacity is for.
  void check(const TileList& forward, const WorkList& backward) const;

  /// Writes the image of lists that were checked to `to`, of bytes(), aligned to 256. Returns how many bytes it has;
  /// what lies between its arrays is left as it was.
  size_t write(std::byte* to, const TileList& forward, const WorkList& backward) const;

  // Offsets in bytes.
  size_t mask_info() const { return 0; }  ///< a BackwardMaskInfo
  size_t q_tiles() const { return q_tiles_; }
  size_t covered_queries() const { return covered_queries_; }  ///< always there
  size_t forward_work_tiles() const { return forward_work_tiles_; }
  size_t forward_runs() const { return forward_runs_; }
  size_t backward_runs() const { return backward_runs_; }
  size_t run_tiles() const { return run_tiles_; }
  size_t backward_work_tiles() const { return backward_work_tiles_; }
  size_t intervals() const { return 0; }          ///< of both passes, see NOTE [image]
  size_t dq_order_segments() const { return 0; }  ///< likewise

  // Lengths.
  int64_t num_forward_work_tiles() const { return num_forward_work_tiles_; }
  int64_t num_forward_runs() const { return num_forward_runs_; }
  int64_t num_backward_runs() const { return num_backward_runs_; }
  int64_t num_q_tiles() const { return num_q_tiles_; }
  /// Tiles of keys, of which each K/V head may have an accumulator tile.
  int64_t num_key_tiles() const { return num_key_tiles_; }
  int64_t num_turn_segments() const { return num_turn_segments_; }  ///< 0: of calls that are not deterministic

 private:
  MaskCapacity capacity_;
  int64_t seqlen_q_ = 0;
  int64_t num_forward_work_tiles_ = 0, num_forward_runs_ = 0;
  int64_t num_q_tiles_ = 0, num_key_tiles_ = 0, num_backward_work_tiles_ = 0, num_backward_runs_ = 0;
  int64_t num_turn_segments_ = 0;
  size_t q_tiles_ = 0, covered_queries_ = 0, forward_work_tiles_ = 0, forward_runs_ = 0, backward_runs_ = 0,
         run_tiles_ = 0, backward_work_tiles_ = 0;
  size_t bytes_ = 0;
};

}  // namespace tangram::schedule
