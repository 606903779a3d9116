// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Ulysses: an all-to-all gives every rank all rows of some heads, and another brings out back; nothing overlaps. Where
// there are more ranks than K/V heads, K/V heads are repeated; more ranks than query heads it cannot use.
#include <algorithm>
#include <cmath>

#include "core/require.hpp"
#include "plan/cost.hpp"
#include "plan/simulate/strategies.hpp"

namespace tangram::sim {

namespace {

// What a rank receives when each rank's rows go to all others, `row_bytes` of each row of the whole sequence.
Transfer all_to_all(const SimInput& input, double rows, double row_bytes) {
  const double peers = input.cp_size() - 1;
  const double near = std::min<double>(peers, input.machine.ranks_per_node - 1);
  const double bytes = rows / input.cp_size() * row_bytes;
  return {{near * bytes, near}, {(peers - near) * bytes, peers - near}};
}

}  // namespace

StrategyPrediction simulate_ulysses(const SimInput& input) {
  const Mask& mask = input.mask;
  const HeadConfig& heads = input.config.heads;
  const int cp_size = input.cp_size();
  StrategyPrediction prediction;
  if (cp_size > heads.num_heads_q) {
    prediction.infeasible = "more ranks than query heads";
    return prediction;
  }
  const double heads_q = std::ceil(static_cast<double>(heads.num_heads_q) / cp_size);
  const double heads_kv = std::max(1.0, std::ceil(static_cast<double>(heads.num_heads_kv) / cp_size));
  const double q_bytes = q_row_bytes(heads) / heads.num_heads_q * heads_q;
  const double out_bytes = out_row_bytes(heads) / heads.num_heads_q * heads_q;
  const double kv_bytes = static_cast<double>(kv_row_bytes(heads)) / heads.num_heads_kv * heads_kv;
  const double grad_bytes =
      static_cast<double>(kv_grad_row_bytes(heads, input.config.reduce_dtype)) / heads.num_heads_kv * heads_kv;
  const double rows_q = static_cast<double>(mask.seqlen_q());
  const double rows_k = static_cast<double>(mask.seqlen_k());
  // Forward q, k, v in and out back; backward dout in and dq, dk, dv back: q, k, v and out are kept by heads.
  Transfer forward_in = all_to_all(input, rows_q, q_bytes);
  forward_in += all_to_all(input, rows_k, kv_bytes);
  const Transfer forward_out = all_to_all(input, rows_q, out_bytes);
  const Transfer backward_in = all_to_all(input, rows_q, out_bytes);
  Transfer backward_out = all_to_all(input, rows_q, q_bytes);
  backward_out += all_to_all(input, rows_k, grad_bytes);

  const auto play = [&](Pass pass, const Transfer& in, const Transfer& out) {
    const Work work = count_work(mask.slices(), input.kernel(pass));
    const double compute_s = work_seconds(input, pass, work, heads_q, false);
    SlowestPass slowest;
    slowest.take({compute_s + transfer_seconds(input.machine, in) + transfer_seconds(input.machine, out), compute_s});
    return slowest;
  };
  set_times(prediction, play(Pass::kForward, forward_in, forward_out),
            play(Pass::kBackward, backward_in, backward_out));
  prediction.forward_bytes = cp_size * (forward_in.bytes() + forward_out.bytes());
  prediction.backward_bytes = cp_size * (backward_in.bytes() + backward_out.bytes());
  prediction.between_bytes = cp_size * (forward_in.between.bytes + forward_out.between.bytes +
                                        backward_in.between.bytes + backward_out.between.bytes);
  prediction.max_rank_bytes = (prediction.forward_bytes + prediction.backward_bytes) / cp_size;
  // Beside the shard all rows of some heads: q, out, dout, dq and K/V with its gradients.
  HeadConfig whole = heads;
  whole.num_heads_q = static_cast<int>(heads_q);
  whole.num_heads_kv = static_cast<int>(heads_kv);
  DistAttnConfig by_heads = input.config;
  by_heads.heads = whole;
  prediction.peak_bytes =
      static_cast<double>(step_peak_bytes(input.config, mask.seqlen_q() / cp_size, mask.seqlen_k() / cp_size, 0) +
                          (cp_size > 1 ? step_peak_bytes(by_heads, mask.seqlen_q(), mask.seqlen_k(), 0) : 0));
  prediction.balance = heads_q * cp_size / heads.num_heads_q;
  return prediction;
}

}  // namespace tangram::sim
