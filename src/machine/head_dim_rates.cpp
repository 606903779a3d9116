// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "machine/head_dim_rates.hpp"

#include <algorithm>
#include <cmath>

#include "core/require.hpp"

namespace tangram {

double flops_per_cell(int head_dim, int head_dim_v, AttnPass pass) {
  const double qk = head_dim, v = head_dim_v;
  return 2 * (pass == AttnPass::kForward ? qk + v : 3 * qk + 2 * v);
}

const HeadDimRate* find_head_dim_rate(std::span<const HeadDimRate> rates, int head_dim, int head_dim_v) {
  if (rates.empty()) return nullptr;
  const auto found = std::find_if(rates.begin(), rates.end(), [&](const HeadDimRate& rate) {
    return head_dim <= rate.head_dim && head_dim_v <= rate.head_dim_v;
  });
  return found == rates.end() ? &rates.back() : &*found;
}

double head_dim_factor(std::span<const HeadDimRate> rates, int head_dim, int head_dim_v, AttnPass pass) {
  const HeadDimRate* const rate = find_head_dim_rate(rates, head_dim, head_dim_v);
  if (rate == nullptr) return 1;
  // No more than all: nothing is known of dimensions beyond the last class but that they have no fewer columns.
  const double share = std::min(
      1.0, flops_per_cell(head_dim, head_dim_v, pass) / flops_per_cell(rate->head_dim, rate->head_dim_v, pass));
  return share * (pass == AttnPass::kForward ? rate->forward : rate->backward);
}

std::vector<HeadDimRate> relative_rates(std::span<const HeadDimRate> rates, int head_dim, int head_dim_v) {
  const double forward = head_dim_factor(rates, head_dim, head_dim_v, AttnPass::kForward);
  const double backward = head_dim_factor(rates, head_dim, head_dim_v, AttnPass::kBackward);
  std::vector<HeadDimRate> relative(rates.begin(), rates.end());
  for (HeadDimRate& rate : relative) {
    rate.forward /= forward;
    rate.backward /= backward;
  }
  return relative;
}

void validate_head_dim_rates(std::span<const HeadDimRate> rates, std::string_view function, std::string_view name) {
  constexpr size_t kMaxClasses = 64;
  require(rates.size() <= kMaxClasses, "{}: {} must have at most {} classes (got {})", function, name, kMaxClasses,
          rates.size());
  for (size_t i = 0; i < rates.size(); ++i) {
    const HeadDimRate& rate = rates[i];
    require(rate.head_dim > 0 && rate.head_dim_v > 0,
            "{}: {}[{}] must be of positive dimensions (got head_dim={}, head_dim_v={})", function, name, i,
            rate.head_dim, rate.head_dim_v);
    for (const double factor : {rate.forward, rate.backward}) {
      require(std::isfinite(factor) && factor > 0,
              "{}: {}[{}] must have finite, positive factors (got forward={}, backward={})", function, name, i,
              rate.forward, rate.backward);
    }
  }
}

}  // namespace tangram
