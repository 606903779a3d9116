// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Writes the programs of a plan: what a rank does in a pass, for a call and for what will run it.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/program/program.hpp"
#include "tangram/attn_pass.hpp"
#include "tangram/attn_shape.hpp"
#include "tangram/local_kv_range.hpp"
#include "tangram/plan.hpp"
#include "tangram/slice.hpp"
#include "tangram/tile_list.hpp"

namespace tangram {

/// Calls that a program computes: one for each stage of each pass. With a grid, one for each step between row groups
/// and each number of heads in a chunk. With QO communication, one for each call.
struct ProgramMask {
  AttnShape shape;
  std::vector<AttnSlice> slices;
  bool needed = true;  ///< something is to be computed, or results have to be set
  AttnPasses passes = AttnPasses::kBoth;
  std::vector<KeyReadyFlag> late = {};          ///< keys that come while a call runs, in the order in which they come
  std::vector<LocalKvRange> local_ranges = {};  ///< keys that a call reads elsewhere,
  int64_t local_kv_halo = 0;                    ///< and of whose ends so many lie among the others, too
};

/// Shapes and dtypes of a call's arguments and results.
struct CallShape {
  DType out = DType::kBFloat16;
  DType dout = DType::kBFloat16;
  DType dq = DType::kBFloat16;
  DType dk = DType::kBFloat16;
  DType dv = DType::kBFloat16;
  int64_t seqlen_sink = 0;
  SinkLayout sink_layout = SinkLayout::kSh;
  bool wants_dsink = true;
  /// Forward: what the backward pass can use is kept in the first regions, where that costs memory or copies.
  bool keeps = false;

  /// All results in `dtype`.
  static CallShape with_results(DType inputs, DType results) { return {results, inputs, results, results, results}; }

  friend auto operator<=>(const CallShape&, const CallShape&) = default;
};

/// Calls of attention beside the transfers of keys.
enum class KeyCalls {
  kByStage,     ///< one a stage; rows of later stages move meanwhile
  kOnce,        ///< one, once all keys are there
  kAsTheyCome,  ///< one, which waits for each key where it needs it
};

/// Abilities of a runner of programs.
struct ProgramTarget {
  /// Casts read arguments and work, too; else regions of the arena alone.
  bool sends_from_anywhere = false;
  /// Number of chunks of heads whose operands are requested while another chunk computes; 0: all at once, so that the
  /// link is never idle between them. Copies for later chunks then overlap transfers of the first.
  int chunks_ahead = 0;
  /// Parts of a cast of one float a row and head are filled up to multiples of so many.
  int64_t float_unit = 4;
  /// Blocks of a ring reuse memory of earlier ones, so that a pass needs equally much for any number of ranks. A rank
  /// announces a free block this many steps before it needs to, each step for one further block. Negative: the
  /// transport can not, and every block has memory of its own.
  int ring_buffer_steps = -1;

  // Attention calls of K/V plans that run on a stream; all rows are requested at once.
  KeyCalls forward_calls = KeyCalls::kByStage;
  KeyCalls backward_calls = KeyCalls::kByStage;
  /// Calls can read own keys where they lie, in ranges that are longer than two borders, of which only the borders
  /// are copied. Negative: they can not.
  int64_t local_kv_halo = -1;
  /// A call that gets all keys can store rows of dk and dv at their owners, in the dtype in which they move.
  bool stores_at_owners = false;
};
/// Target of the host's runner. The operands of the next chunk of heads move while one computes; more would only take
/// memory.
inline constexpr ProgramTarget kHostTarget{.sends_from_anywhere = true, .chunks_ahead = 1, .float_unit = 1};

/// Query rows of the rank's shard against key rows of its buffer; against none where every call has its own.
AttnShape rank_shape(const Plan& plan, int rank);

std::vector<ProgramMask> program_masks(const Plan& plan, int rank, const ProgramTarget& target);

/// Whether queries stay with their ranks, and heads do.
inline bool moves_kv_alone(const Plan& plan) { return plan.grid() == nullptr && plan.movement() == nullptr; }
/// Whether a forward pass can leave something to its backward pass.
bool can_keep(const Plan& plan);

/// Throw InvalidArgument for ranks that the plan has not.
/// Casts and regions do not depend on a sink of all rows; sinks of single rows are sent where heads are exchanged.
Program forward_program(const Plan& plan, int rank, const CallShape& call, const ProgramTarget& target);
/// `kept`: the first regions hold what the forward program left there.
Program backward_program(const Plan& plan, int rank, const CallShape& call, const ProgramTarget& target, bool kept);

}  // namespace tangram
