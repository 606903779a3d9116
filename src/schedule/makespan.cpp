// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "schedule/makespan.hpp"

#include <vector>

#include "schedule/multiprocessors.hpp"

namespace tangram::schedule {

double steps_of(const Extent& item, const AttnShape& shape, int pieces, bool together, const ItemCosts& costs) {
  const double joins = pieces == 1 ? 0 : together ? 1 + 0.2 * (pieces - 2) : 1;
  return static_cast<double>(item.count * (shape.num_heads_q / shape.num_heads_kv / pieces)) + costs.item +
         joins * costs.join;
}

double makespan(const Setting& in, const Dealing& how, const ItemCosts& costs) {
  Multiprocessors machine(in.gpu.multiprocessors);
  const std::vector<size_t>& order = in.extents.order;
  std::vector<char> is_tail(order.size(), 0);
  for (size_t at = order.size() - static_cast<size_t>(how.tail_tiles); at < order.size(); ++at) is_tail[order[at]] = 1;
  deal(in.extents, in.shape.num_heads_kv, how, [&](size_t i, int, int, int pieces) {
    const bool together = (is_tail[i] != 0 ? how.tail_together : how.together) == 0;
    machine.run(steps_of(in.extents.of_keys[i], in.shape, pieces, together, costs),
                in.arrives.empty() ? 0 : in.arrives[i]);
  });
  return machine.end();
}

double even_steps(const Setting& in) {
  double sum = 0;
  for (const Extent& extent : in.extents.of_keys) sum += static_cast<double>(extent.count);
  return sum * in.shape.num_heads_q / in.gpu.multiprocessors;
}

}  // namespace tangram::schedule
