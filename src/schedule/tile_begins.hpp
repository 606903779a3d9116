// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Where the tiles of a list begin (tile_list.hpp), apart from what they see.
#pragma once

#include <cstdint>
#include <vector>

#include "tangram/slice.hpp"

namespace tangram::schedule {

/// Where tiles of `block` rows begin, of canonical slices sorted by their first row. If they follow the mask they begin
/// anew at a row at which the mask falls apart, if the rows behind it then need fewer tiles or fill one.
std::vector<int32_t> tile_begins(const std::vector<AttnSlice>& slices, int64_t num_rows, int64_t block,
                                 bool follows_mask);
/// Begins of tiles that begin anew every `every` rows.
std::vector<int32_t> tile_begins_anew(int64_t num_rows, int64_t block, int64_t every);

}  // namespace tangram::schedule
