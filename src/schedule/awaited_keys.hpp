// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Which keys of a mask are awaited, in granules, as kernels and their schedules ask for it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tangram/tile_list.hpp"

namespace tangram::schedule {

/// Awaited keys are marked for this many at a time: a tile may wait for up to one less on either side than it needs.
inline constexpr int kReadyGranule = 16;

/// Flags are the bits of a word, the first to come the lowest.
class AwaitedKeys {
 public:
  AwaitedKeys() = default;
  /// `arrivals`: in the order in which they come. Throws InvalidArgument for keys outside of [0, seqlen_k) and for more
  /// than 64 flags.
  AwaitedKeys(std::span<const KeyReadyFlag> ready_flags, int64_t seqlen_k);

  /// 0 when all keys of [begin, end) are there from the start, else more the later the last of them comes.
  int turn(int64_t begin, int64_t end) const;
  bool empty() const { return flags_.empty(); }
  int num_turns() const { return static_cast<int>(flags_.size()); }
  /// Awaited keys, in whole granules.
  int64_t num_keys() const;

  /// Flag bits that each granule of keys needs; all 0 without awaited keys.
  const std::vector<uint64_t>& needed() const { return needed_; }
  /// The flag of each bit.
  const std::vector<int32_t>& flags() const { return flags_; }
  /// The bits of all flags.
  uint64_t all() const { return num_turns() == 64 ? ~uint64_t{0} : (uint64_t{1} << num_turns()) - 1; }

 private:
  std::vector<uint64_t> needed_;
  std::vector<int32_t> flags_;
};

}  // namespace tangram::schedule
