// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Where images of chosen blocks are worked on, and which tables an image has room for.
#pragma once

#include <cstddef>

#include "schedule/builder/block_lists.hpp"
#include "tangram/mask_data.hpp"

namespace tangram::schedule::builder {

/// Bytes of the builder's workspace, which must begin as zeros.
size_t block_build_bytes(const BlockImageLayout& image);

/// Build in these two pieces of memory, aligned to 256.
BlockBuild block_build_at(const BlockImageLayout& image, std::byte* memory, std::byte* to);

/// Throws InvalidArgument for errors that show without the indices. The table has other head groups than the image,
/// smaller blocks, or exceeds the capacity.
BlockLists block_lists_of(const BlockImageLayout& image, const BlockTable& table);

}  // namespace tangram::schedule::builder
