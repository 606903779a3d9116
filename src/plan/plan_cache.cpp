// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include <list>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "core/require.hpp"
#include "tangram/plan.hpp"

namespace tangram {

/// Entries in order of use, the latest first, found by the hash of the mask; the few that share a hash are compared.
class PlanCache::Impl {
 public:
  explicit Impl(size_t capacity) : capacity_(capacity) {}

  std::shared_ptr<const Plan> get(const Mask& mask, const DistAttnConfig& config) {
    const uint64_t hash = mask.hash();
    {
      const std::lock_guard lock(mutex_);
      if (std::shared_ptr<const Plan> plan = find(hash, mask, config)) {
        ++counters_.hits;
        return plan;
      }
      ++counters_.misses;
    }
    // Planned outside the lock, so that another mask need not wait; two threads that miss on one mask plan it twice.
    auto plan = std::make_shared<const Plan>(make_plan(mask, config));
    const std::lock_guard lock(mutex_);
    if (std::shared_ptr<const Plan> other = find(hash, mask, config)) return other;
    entries_.push_front({hash, config, plan});
    by_hash_.emplace(hash, entries_.begin());
    if (entries_.size() > capacity_) drop_oldest();
    return plan;
  }

  std::shared_ptr<const Plan> most_recent() const {
    const std::lock_guard lock(mutex_);
    return entries_.empty() ? nullptr : entries_.front().plan;
  }
  Counters counters() const {
    const std::lock_guard lock(mutex_);
    return counters_;
  }
  size_t size() const {
    const std::lock_guard lock(mutex_);
    return entries_.size();
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    by_hash_.clear();
    entries_.clear();
  }

 private:
  struct Entry {
    uint64_t hash;
    DistAttnConfig config;  // as asked for
    std::shared_ptr<const Plan> plan;
  };
  using Entries = std::list<Entry>;

  std::shared_ptr<const Plan> find(uint64_t hash, const Mask& mask, const DistAttnConfig& config) {
    const auto [first, last] = by_hash_.equal_range(hash);
    for (auto at = first; at != last; ++at) {
      const Entries::iterator entry = at->second;
      if (entry->config != config || entry->plan->mask != mask) continue;
      entries_.splice(entries_.begin(), entries_, entry);
      return entry->plan;
    }
    return nullptr;
  }

  void drop_oldest() {
    const Entries::iterator oldest = std::prev(entries_.end());
    const auto [first, last] = by_hash_.equal_range(oldest->hash);
    for (auto at = first; at != last; ++at) {
      if (at->second != oldest) continue;
      by_hash_.erase(at);
      break;
    }
    entries_.pop_back();
  }

  const size_t capacity_;
  mutable std::mutex mutex_;
  Entries entries_;
  std::unordered_multimap<uint64_t, Entries::iterator> by_hash_;
  Counters counters_;
};

PlanCache::PlanCache(size_t capacity) {
  require(capacity >= 1, "PlanCache: capacity must be at least 1 (got {})", capacity);
  impl_ = std::make_unique<Impl>(capacity);
}
PlanCache::~PlanCache() = default;
PlanCache::PlanCache(PlanCache&&) noexcept = default;
PlanCache& PlanCache::operator=(PlanCache&&) noexcept = default;

std::shared_ptr<const Plan> PlanCache::get(const Mask& mask, const DistAttnConfig& config) {
  return impl_->get(mask, config);
}
std::shared_ptr<const Plan> PlanCache::most_recent() const { return impl_->most_recent(); }
PlanCache::Counters PlanCache::counters() const { return impl_->counters(); }
size_t PlanCache::size() const { return impl_->size(); }
void PlanCache::clear() { impl_->clear(); }

}  // namespace tangram
