// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Keys that come while an emulated kernel runs, and keys that lie in other tensors.
#pragma once

#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "attn/gpu/abilities.hpp"
#include "attn/gpu/ready_flags.hpp"
#include "cuda/wait_context.hpp"
#include "schedule/local_kv_table.hpp"
#include "tangram/attention.hpp"

namespace tangram::test::emulated_problem {

inline char* row_of(HostTensor& tensor, int64_t row) {
  return tensor.data<char>() + row * tensor.bytes() / std::max<int64_t>(tensor.rows(), 1);
}
/// Copies `count` rows, gaps included, between tensors of one layout.
inline void copy_rows(HostTensor& from, int64_t row, HostTensor& to, int64_t to_row, int64_t count) {
  std::memcpy(row_of(to, to_row), row_of(from, row),
              static_cast<size_t>(row_of(from, row + count) - row_of(from, row)));
}
inline void poison_rows(HostTensor& tensor, const Range& rows) {
  if (rows.empty()) return;
  std::memset(row_of(tensor, rows.begin), 0xff,
              static_cast<size_t>(row_of(tensor, rows.end) - row_of(tensor, rows.begin)));
}

/// Whether some keys of a case come while the kernel runs.
enum class LateKind { kNone, kCome, kNeverCome };

/// A peer that sends rows of k and v, each followed by its flag; flags are stage * kSize + rank, as a communicator has
/// them.
class LatePeer {
 public:
  LatePeer(HostTensor& k, HostTensor& v) : tensors_{&k, &v} {
    const int64_t keys = k.rows();
    // In the order in which they come; two ranges under one flag, a border within a granule.
    ready_flags_ = {{{keys / 3, keys / 2}, 1},
                    {{keys * 4 / 5, keys}, kSize + 3},
                    {{0, keys / 10}, 0},
                    {{keys / 2, keys / 2 + 20}, 0}};
    awaited_keys_ = schedule::AwaitedKeys(ready_flags_, keys);
    for (HostTensor* tensor : tensors_) sent_.push_back(tensor->clone());
    context_ = {&abort_, &aborts_[0], control_block_, 0, kRank, kSize};
  }
  LatePeer(const LatePeer&) = delete;
  LatePeer& operator=(const LatePeer&) = delete;

  const std::vector<KeyReadyFlag>& ready_flags() const { return ready_flags_; }
  const schedule::AwaitedKeys& awaited_keys() const { return awaited_keys_; }
  gpu::ReadyFlagParams params() const {
    return {{flags_, &epoch_, kSize, 5, &context_},
            awaited_keys_.needed().data(),
            awaited_keys_.flags().data(),
            awaited_keys_.all()};
  }
  /// NaN in the place of what is late, and no flag set; then what makes it come.
  std::vector<std::function<void()>> send() {
    forget();
    std::vector<std::function<void()>> events;
    for (size_t i = 0; i < ready_flags_.size(); ++i) {
      const KeyReadyFlag ready_flag = ready_flags_[i];
      for (const size_t which : {0, 1}) {
        events.emplace_back([this, which, ready_flag] {
          copy_rows(sent_[which], ready_flag.keys.begin, *tensors_[which], ready_flag.keys.begin,
                    ready_flag.keys.size());
        });
      }
      if (i + 1 < ready_flags_.size() && ready_flags_[i + 1].flag == ready_flag.flag) continue;
      events.emplace_back([this, ready_flag] { flags_[ready_flag.flag] = epoch_; });
    }
    return events;
  }
  /// Like send(), but after the first flag the group fails.
  std::vector<std::function<void()>> fail() {
    std::vector<std::function<void()>> events = send();
    events.resize(3);
    events.emplace_back([this] { abort_ = 1; });
    return events;
  }

 private:
  static constexpr int kSize = 4, kRank = 2;

  void forget() {
    for (const KeyReadyFlag& ready_flag : ready_flags_) {
      for (HostTensor* tensor : tensors_) poison_rows(*tensor, ready_flag.keys);
    }
    std::fill(std::begin(flags_), std::end(flags_), uint64_t{0});
    abort_ = 0;
  }

  HostTensor* tensors_[2];  // k and v
  std::vector<HostTensor> sent_;
  std::vector<KeyReadyFlag> ready_flags_;
  schedule::AwaitedKeys awaited_keys_;
  uint64_t flags_[2 * kSize] = {}, epoch_ = 7, abort_ = 0;
  uint64_t* aborts_[kSize] = {&abort_, &abort_, &abort_, &abort_};
  cuda::ControlBlockRow control_block_[kSize];
  cuda::WaitContext context_;
};

/// Keys of k and v that lie elsewhere too, in another order, and hold NaN where kernels must look there.
class LocalKv {
 public:
  LocalKv(HostTensor& k, HostTensor& v) {
    constexpr int64_t kBorder = kLocalKvHalo;
    const int64_t keys = k.rows(), first = keys * 2 / 5, gap = 23;
    const std::vector<LocalKvRange> local_ranges{{{0, first}, keys - first + 40}, {{first + gap, keys}, 5}};
    of_granule_ = local_ranges_of_granules(local_ranges, keys);
    const auto move = [&](HostTensor& here, HostTensor& there) {
      there = HostTensor(here.dtype(), keys + 60, here.heads(), here.dim());
      poison_rows(there, {0, there.rows()});
      for (const LocalKvRange& local_range : local_ranges) {
        copy_rows(here, local_range.keys.begin, there, local_range.row, local_range.keys.size());
        poison_rows(here, {local_range.keys.begin + kBorder, local_range.keys.end - kBorder});
      }
    };
    move(k, k_);
    move(v, v_);
  }

  LocalKvParams params() const { return {of_granule_.data()}; }
  /// Like `here`, of the other tensors.
  TensorView k_view(const TensorView& here) { return like(here, k_); }
  TensorView v_view(const TensorView& here) { return like(here, v_); }

 private:
  static TensorView like(TensorView view, HostTensor& tensor) {
    view.data = tensor.view().data;
    view.rows = tensor.rows();
    return view;
  }

  HostTensor k_, v_;
  std::vector<GranuleRange> of_granule_;
};

}  // namespace tangram::test::emulated_problem
