// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include <list>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "core/fork.hpp"
#include "core/require.hpp"
#include "tangram/plan.hpp"

namespace tangram {

/// Entries in order of use, the latest first, found by the hash of the mask; the few that share a hash are compared.
class PlanCache::Impl {
 public:
  Impl(size_t capacity, int64_t max_bytes) : capacity_(capacity), max_bytes_(max_bytes) {}

  std::shared_ptr<const Plan> get(const Mask& mask, const DistAttnConfig& config) {
    const uint64_t hash = mask.hash();
    {
      const Lock lock(*this);
      if (std::shared_ptr<const Plan> plan = find(hash, mask, config)) {
        ++counters_.hits;
        return plan;
      }
      ++counters_.misses;
    }
    // Planned outside the lock, so that another mask need not wait; two threads that miss on one mask plan it twice.
    auto plan = std::make_shared<const Plan>(make_plan(mask, config));
    const int64_t bytes = memory_bytes(*plan);
    const Lock lock(*this);
    if (std::shared_ptr<const Plan> other = find(hash, mask, config)) return other;
    entries_.push_front({hash, config, plan, bytes});
    by_hash_.emplace(hash, entries_.begin());
    bytes_ += bytes;
    drop_superfluous();
    return plan;
  }

  std::shared_ptr<const Plan> most_recent() const {
    const Lock lock(*this);
    return entries_.empty() ? nullptr : entries_.front().plan;
  }
  Counters counters() const {
    const Lock lock(*this);
    return counters_;
  }
  size_t size() const {
    const Lock lock(*this);
    return entries_.size();
  }
  int64_t bytes() const {
    const Lock lock(*this);
    return bytes_;
  }
  int64_t max_bytes() const {
    const Lock lock(*this);
    return max_bytes_;
  }
  void set_max_bytes(int64_t max_bytes) {
    require(max_bytes >= 0, "PlanCache: max_bytes must not be negative (got {})", max_bytes);
    const Lock lock(*this);
    max_bytes_ = max_bytes;
    drop_superfluous();
  }
  void clear() {
    const Lock lock(*this);
    by_hash_.clear();
    entries_.clear();
    bytes_ = 0;
  }

 private:
  struct Entry {
    uint64_t hash;
    DistAttnConfig config;  // as asked for
    std::shared_ptr<const Plan> plan;
    int64_t bytes;
  };
  using Entries = std::list<Entry>;
  using ByHash = std::unordered_multimap<uint64_t, Entries::iterator>;

  /// A child of a fork finds what a thread of its parent was changing half changed, and begins without entries.
  class Lock {
   public:
    explicit Lock(const Impl& impl) : lock_(impl.mutex_) {
      if (impl.mutex_.was_abandoned()) const_cast<Impl&>(impl).leave_entries();
    }

   private:
    std::lock_guard<ForkMutex> lock_;
  };
  void leave_entries() {
    static_cast<void>(new Entries(std::move(entries_)));  // never destroyed
    static_cast<void>(new ByHash(std::move(by_hash_)));
    entries_ = {};
    by_hash_ = {};
    bytes_ = 0;
  }

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

  // The latest stays, however large: it is in use.
  void drop_superfluous() {
    while (entries_.size() > 1 && (entries_.size() > capacity_ || bytes_ > max_bytes_)) drop_oldest();
  }

  void drop_oldest() {
    const Entries::iterator oldest = std::prev(entries_.end());
    const auto [first, last] = by_hash_.equal_range(oldest->hash);
    for (auto at = first; at != last; ++at) {
      if (at->second != oldest) continue;
      by_hash_.erase(at);
      break;
    }
    bytes_ -= oldest->bytes;
    entries_.pop_back();
  }

  const size_t capacity_;
  int64_t max_bytes_;
  int64_t bytes_ = 0;
  mutable ForkMutex mutex_;
  Entries entries_;
  ByHash by_hash_;
  Counters counters_;
};

PlanCache::PlanCache(size_t capacity, int64_t max_bytes) {
  require(capacity >= 1, "PlanCache: capacity must be at least 1 (got {})", capacity);
  require(max_bytes >= 0, "PlanCache: max_bytes must not be negative (got {})", max_bytes);
  impl_ = std::make_unique<Impl>(capacity, max_bytes);
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
int64_t PlanCache::bytes() const { return impl_->bytes(); }
int64_t PlanCache::max_bytes() const { return impl_->max_bytes(); }
void PlanCache::set_max_bytes(int64_t max_bytes) { impl_->set_max_bytes(max_bytes); }
void PlanCache::clear() { impl_->clear(); }

}  // namespace tangram
