// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// All faults that programs are mutated with, and which of them do harm.
#pragma once

#include "plan/program/cast_mutations.hpp"
#include "plan/program/mutant.hpp"
#include "plan/program/work_mutations.hpp"

namespace tangram::testing {

struct NamedMutation {
  const char* name;
  Mutation mutate;
};

/// Mutations that must be found: each drops or changes data of a result, or the order between ranks.
inline constexpr NamedMutation kHarmful[] = {
    {"a wait dropped", drop_everywhere<WaitOp>},
    {"a cast dropped", drop_everywhere<GroupCastOp>},
    {"attention dropped", drop_attend},
    {"attention twice", attend_twice},
    {"results shifted onto others", shift_results},
    {"results written over what is live", write_over_live},
    {"dk and dv swapped", swap_keys_and_values},
    {"another mask", change_mask},
    {"added to nothing", flip_accumulate},
    {"casts of a rank swapped", swap_casts_of_a_rank},
    {"rows received elsewhere", shift_receipt},
    {"rows not received", drop_receipt},
    {"rows not sent", drop_sending},
    {"a region larger on one rank", grow_region},
    {"waited too late", wait_later},
    {"sent too early", cast_earlier},
    {"a merge dropped", drop<MergeOp>},
    {"merged with another lse", merge_wrongly},
    {"delta dropped", drop<DeltaOp>},
    {"dsink dropped", drop<SinkGradOp>},
    {"the largest not sought", drop<LargestOp>},
    {"a credit dropped", drop_credit},
    {"given too early", give_earlier},
    {"cast without a credit", cast_without_credit},
    {"not seen to be sent", drop_sent},
};
/// That may be harmless: rows that are never read or are zero anyhow, two regions of equal content.
inline constexpr NamedMutation kMaybeHarmless[] = {
    {"a sum or copy dropped", drop_sum}, {"a copy of floats dropped", drop_float_copy}, {"rows shifted", shift_rows},
    {"another region", move_region},     {"parts of another row", shift_lists},
};

}  // namespace tangram::testing
