// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0
// Parameters of the kernels that build lists of masks, as plain data that host and device agree on.
#pragma once

#include "schedule/builder/block_lists.hpp"
#include "schedule/builder/blocks.hpp"
#include "schedule/builder/documents.hpp"
#include "schedule/builder/places.hpp"
#include "schedule/builder/ranges.hpp"

namespace tangram::gpu::builder {

using schedule::builder::BlockBuild;
using schedule::builder::BlockLists;
using schedule::builder::Blocks;
using schedule::builder::Build;
using schedule::builder::Documents;
using schedule::builder::Ranges;
using schedule::builder::SortBuild;
using schedule::builder::TurnBuild;

struct DocumentParams {
  Build build;
  Documents documents;
};

struct RangeParams {
  SortBuild build;
  Ranges ranges;
};

struct BlockParams {
  Build build;
  Blocks blocks;
};

struct BlockListParams {
  BlockBuild build;
  BlockLists lists;
};

}  // namespace tangram::gpu::builder
