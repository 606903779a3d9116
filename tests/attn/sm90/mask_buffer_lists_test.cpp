// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The lists that a MaskBuffer has on a GPU are those of one thread, where two make them: over a runtime in host memory.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "attn/gpu/gpu_model.hpp"
#include "attn/gpu/slot.hpp"
#include "attn/sm90/sm90_backend.hpp"
#include "schedule/choose_kernels.hpp"
#include "schedule/tile_list.hpp"
#include "schedule/work_list.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram {
namespace {

template <class T>
bool are_same(const T* device, const std::vector<T>& expected) {
  return std::memcmp(device, expected.data(), expected.size() * sizeof(T)) == 0;
}

Mask make_documents(unsigned seed, int64_t rows, int documents) {
  std::mt19937 rng(seed);
  std::vector<int64_t> ends = {0, rows};
  for (int i = 1; i < documents; ++i) ends.push_back(static_cast<int64_t>(rng() % static_cast<unsigned>(rows)));
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  return varlen_mask(ends, true);
}

constexpr MaskCapacity kCapacity{.max_documents = 64};

void install(const Sm90Backend& backend, MaskSlot& buffer, const Mask& mask, const AttnShape& shape, int64_t num_keys) {
  const std::span<const AttnSlice> slices = mask.slices();
  backend.install(
      buffer,
      backend.build(
          {.masks = {&slices, 1}, .shape = shape, .gpu = backend.caps().gpu, .into = &buffer, .num_keys = num_keys}));
}

TEST(MaskBufferLists, AreThoseOfOneThread) {
  const Sm90Backend backend;
  for (const int64_t rows : {int64_t{1024}, int64_t{16384}}) {  // the longer one's are made by two
    const AttnShape shape{rows, rows, 16, 2, 128, 128, DType::kBFloat16};
    const std::unique_ptr<MaskSlot> buffer = backend.make_slot(shape, &kCapacity);
    for (unsigned seed = 1; seed <= 20; ++seed) {
      SCOPED_TRACE(::testing::Message() << rows << " rows, seed " << seed);
      const Mask mask = make_documents(seed, rows, 40);
      install(backend, *buffer, mask, shape, mask.seqlen_k());
      const gpu::GpuSlot& lists = gpu::as_gpu_slot(*buffer);
      const gpu::ForwardView forward = lists.forward_view();
      const gpu::BackwardView backward = lists.backward_view(false, nullptr);
      const TileList tiles =
          schedule::build_tile_list(mask.slices(), rows, rows, schedule::forward_tile(lists.kernels(), shape));
      const TileList transposed = schedule::transposed_tile_list(mask.slices(), rows, rows, lists.kernels().backward);
      const schedule::WorkList work = schedule::make_work_list(
          transposed, mask.slices(), shape, gpu::gpu_of_current_device(), {}, {.calls = BackwardCalls::kDefault});
      EXPECT_TRUE(are_same(forward.work_tiles, tiles.work_tiles));
      EXPECT_TRUE(are_same(backward.work_tiles, work.work_tiles));
      for (size_t i = 0; i < tiles.runs.size(); ++i) {
        TileRange run = forward.runs[i];
        // A buffer counts intervals from its begin.
        if (tiles.runs[i].interval_begin >= 0) run.interval_begin = tiles.runs[i].interval_begin;
        ASSERT_EQ(std::memcmp(&run, &tiles.runs[i], sizeof(run)), 0) << i;
      }
    }
  }
}

// A buffer for more keys stored zeros for keys behind the last one of a mask.
TEST(MaskBufferLists, OfKeysThatAMaskHasNotThereAreNoWorkTiles) {
  const Sm90Backend backend;
  const AttnShape shape{1024, 4096, 16, 2, 128, 128, DType::kBFloat16};
  const std::unique_ptr<MaskSlot> buffer = backend.make_slot(shape, &kCapacity);
  const Mask mask = make_documents(3, 1024, 10);
  for (const int64_t num_keys : {int64_t{1024}, shape.seqlen_k}) {
    install(backend, *buffer, mask, shape, num_keys);
    const gpu::BackwardView backward = gpu::as_gpu_slot(*buffer).backward_view(false, nullptr);
    int64_t last_row = 0;
    for (int32_t i = 0; i < backward.mask_info->num_work_tiles; ++i) {
      last_row = std::max<int64_t>(last_row, backward.work_tiles[i].row_begin);
    }
    EXPECT_LT(last_row, num_keys);
    EXPECT_GE(last_row, num_keys - gpu::as_gpu_slot(*buffer).kernels().backward.block_m);
  }
}

}  // namespace
}  // namespace tangram
