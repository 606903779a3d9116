// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/sm90/arrivals.hpp"

#include <algorithm>
#include <bit>

#include "core/require.hpp"
#include "tangram/attention.hpp"

namespace tangram::sm90 {

LateKeys::LateKeys(std::span<const KeyArrival> arrivals, int64_t seqlen_k) {
  bits_.resize(static_cast<size_t>((seqlen_k + kArrivalGranule - 1) / kArrivalGranule));
  std::vector<int32_t> flags;
  for (const KeyArrival& arrival : arrivals) {
    if (arrival.keys.empty()) continue;
    require(0 <= arrival.keys.begin && arrival.keys.end <= seqlen_k && arrival.flag >= 0,
            "Sm90Backend::prepare_arrivals: keys must lie in [0, {}) with a flag that is not negative (got [{}, {}), "
            "flag {})",
            seqlen_k, arrival.keys.begin, arrival.keys.end, arrival.flag);
    const auto at = std::find(flags.begin(), flags.end(), arrival.flag);
    const auto bit = static_cast<size_t>(at - flags.begin());
    if (at == flags.end()) flags.push_back(arrival.flag);
    require(flags.size() <= AttnBackend::kMaxKeyFlags,
            "Sm90Backend::prepare_arrivals: there must be at most {} different flags (got more)",
            AttnBackend::kMaxKeyFlags);
    for (int64_t granule = arrival.keys.begin / kArrivalGranule; granule * kArrivalGranule < arrival.keys.end;
         ++granule) {
      bits_[static_cast<size_t>(granule)] |= uint64_t{1} << bit;
    }
  }
  if (flags.empty()) return;
  all_ = flags.size() == 64 ? ~uint64_t{0} : (uint64_t{1} << flags.size()) - 1;
  needed_ = cuda::DeviceBuffer::copy_of(bits_.data(), bits_.size() * sizeof(uint64_t));
  flags_ = cuda::DeviceBuffer::copy_of(flags.data(), flags.size() * sizeof(int32_t));
}

int LateKeys::turn(int64_t begin, int64_t end) const {
  uint64_t needed = 0;
  for (int64_t granule = begin / kArrivalGranule; all_ != 0 && granule * kArrivalGranule < end; ++granule) {
    needed |= bits_[static_cast<size_t>(granule)];
  }
  return std::bit_width(needed);
}

int LateKeys::num_turns() const { return std::bit_width(all_); }

int64_t LateKeys::num_keys() const {
  return kArrivalGranule * std::count_if(bits_.begin(), bits_.end(), [](uint64_t bits) { return bits != 0; });
}

ArrivalParams LateKeys::params(const DeviceArrivals* arrivals) const {
  if (arrivals == nullptr || all_ == 0) return {};
  return {*arrivals, needed_.as<uint64_t>(), flags_.as<int32_t>(), all_};
}

}  // namespace tangram::sm90
