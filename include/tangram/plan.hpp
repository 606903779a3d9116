// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// Plan: everything derived from (mask, config). A plain value: comparable, printable, serialisable. Executors decide
// nothing; whatever they do is written here.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tangram/config.hpp"
#include "tangram/exchange.hpp"
#include "tangram/grid_plan.hpp"
#include "tangram/mask.hpp"
#include "tangram/movement_plan.hpp"
#include "tangram/rank_of_chunk.hpp"

namespace tangram {

/// The map chunk -> rank over one sequence. Every rank holds the same number of chunks, in ascending order.
struct Dispatch {
  int cp_size = 1;
  int64_t chunk_size = 0;
  RankOfChunk rank_of_chunk;  // [num_chunks]

  int64_t num_chunks() const { return static_cast<int64_t>(rank_of_chunk.size()); }
  int64_t seqlen() const { return num_chunks() * chunk_size; }
  int64_t rows_per_rank() const { return seqlen() / cp_size; }

  /// The global rows of a rank's shard in shard order; neighbouring chunks joined.
  std::vector<Range> rows_of_rank(int rank) const;

  friend bool operator==(const Dispatch&, const Dispatch&) = default;
};

/// A run of K/V rows in a rank's buffer, all of one owner. A rank's segments are sorted by global row and their buffer
/// rows follow each other without gaps. NOTE [global row order]: K/V rows that a rank needs, local and remote, are
/// compact in one buffer in global row order. So an interval of keys in the mask is an interval on the rank, and no
/// slice is cut.
struct KvSegment {
  Range global;           // rows of the global sequence
  int64_t row = 0;        // first row in the rank's K/V buffer
  int owner = 0;          // the rank whose shard holds the rows
  int64_t owner_row = 0;  // first row in the owner's shard
  int stage_fwd = 0;      // the stage that brings the rows, 0 when they are local
  int stage_bwd = 0;

  friend bool operator==(const KvSegment&, const KvSegment&) = default;
};

/// One step of a pass on one rank. Stage 0 works on local rows; its exchange is empty. All ranks have equally many
/// stages in a pass; some may be empty.
///
/// NOTE [kept stage]: with OverlapConfig::keep_remote_kv the last backward stage holds the rows of the last forward
/// stage and is marked `kept`. Its rows are still in the buffer, so its group_cast is skipped, but not its
/// group_reduce. The backward pass then runs the stages in the order last, 1, 2, ..., 0. The local stage ends the pass
/// and hides the gradients that still move. Without it both passes run 0, 1, 2, ...
struct Stage {
  /// group_cast of this stage's K/V rows from shards into buffers; read backwards, group_reduce of their dk and dv.
  Exchange exchange;
  bool kept = false;
  /// Slices that are computed once the rows have arrived, in (shard row, buffer row) coordinates.
  std::vector<AttnSlice> slices;
  int64_t area = 0;  ///< visible pairs of the slices

  friend bool operator==(const Stage&, const Stage&) = default;
};

struct RankPlan {
  /// All of the rank's work at once: q rows of its shard, k rows of its buffer. The stages of a pass partition it.
  std::vector<AttnSlice> slices;
  int64_t area = 0;
  std::vector<KvSegment> segments;
  int64_t kv_rows = 0;         // rows of the K/V buffer: what the rank's queries see, no more
  int64_t remote_kv_rows = 0;  // rows that other ranks own
  std::vector<Stage> forward;
  std::vector<Stage> backward;

  friend bool operator==(const RankPlan&, const RankPlan&) = default;
};

/// Predicted seconds of a step on the slowest rank, from the cost model.
struct PredictedTime {
  double forward_s = 0;
  double backward_s = 0;
  double exposed_s = 0;  // communication that no compute hides, both passes

  friend bool operator==(const PredictedTime&, const PredictedTime&) = default;
};

/// A strategy that "auto" considered, with the parameters that it would have.
struct StrategyCandidate {
  StrategyConfig strategy;
  /// Why it cannot run here, or empty; its times are 0 then.
  std::string impossible;
  PredictedTime predicted;

  friend bool operator==(const StrategyCandidate&, const StrategyCandidate&) = default;
};

struct Plan {
  Mask mask;
  /// Requested config with two changes. Strategy "auto" became the chosen strategy (see `candidates`). `movement` is
  /// its default unless the strategy is Tangram's own.
  DistAttnConfig config;
  /// Dispatch algorithm that was used; kAuto only if the dispatches were given, or hybrid_cp sharded documents.
  DispatchAlgorithm algorithm = DispatchAlgorithm::kSequential;
  Dispatch q_dispatch;
  Dispatch k_dispatch;  // equal to q_dispatch for self-attention
  /// Who computes what, and which rows move. Of Tangram's own strategy where K/V rows move alone, [cp_size]; of another
  /// strategy; or of QO communication (`config.movement`).
  std::variant<std::vector<RankPlan>, GridPlan, MovementPlan> tables;
  PredictedTime predicted;
  /// Candidates of strategy "auto": the chosen one first, then by predicted step, impossible ones last. Empty if a
  /// strategy was named. One is chosen for both passes, by their sum: they share the ranks' rows and what the forward
  /// pass leaves to the backward pass.
  std::vector<StrategyCandidate> candidates;

  int cp_size() const { return config.cp_size; }
  /// The tables of this kind. `grid` and `movement` are null where the plan is of another one, `ranks` throws
  /// InvalidArgument. A plan without a name gives its ranks away, so that a loop may read them; pointers
  /// into such a plan would outlive it.
  const std::vector<RankPlan>& ranks() const&;
  std::vector<RankPlan> ranks() &&;
  const GridPlan* grid() const& { return std::get_if<GridPlan>(&tables); }
  GridPlan* grid() & { return std::get_if<GridPlan>(&tables); }
  const GridPlan* grid() const&& = delete;
  const MovementPlan* movement() const& { return std::get_if<MovementPlan>(&tables); }
  MovementPlan* movement() & { return std::get_if<MovementPlan>(&tables); }
  const MovementPlan* movement() const&& = delete;
  /// Area and K/V rows of each rank, for any plan; the tables in them are empty.
  std::vector<RankPlan> rank_totals() const;
  /// Ranks that exchange heads: 1 where none do.
  int ulysses_degree() const { return grid() != nullptr ? grid()->ulysses_degree : 1; }
  /// Largest area of a rank divided by the mean; 1 for an empty mask.
  double balance() const;
  /// K/V rows that cross ranks in one cast, over all ranks.
  int64_t rows_moved() const;
  /// Largest number of bytes that `rank` holds during a step on the host, as DistAttention::memory_use counts them
  /// (docs/design/program.md). They are the shards of q, k, v, out and lse, backward also of dout, dq, dk and dv, and
  /// the pass's own buffers. Holds for calls without sinks and with all results in the dtype of the heads. Their
  /// forward pass keeps what this plan can keep for the backward pass. The plan, prepared masks, kernels and transports
  /// come on top. Writes both programs; throws InvalidArgument for a rank that the plan has not.
  int64_t peak_bytes(int rank) const;

  friend bool operator==(const Plan&, const Plan&) = default;
};

/// Bytes of host memory that a plan takes, by the sizes of its lists: of equal plans the same on every rank.
int64_t memory_bytes(const Plan& plan);
/// About as much as an executor on the CPU keeps beside the plan, on the rank where it is most; the same on every rank.
int64_t executor_bytes(const Plan& plan);

/// Rows to append to `total_seqlen` so that cp_size ranks get whole chunks. Throws InvalidArgument unless all are
/// positive.
int64_t compute_pad_size(int64_t total_seqlen, int cp_size, int64_t chunk_size);

/// Plans `mask` for `config.cp_size` ranks. Deterministic: every rank that calls it with equal arguments gets an equal
/// plan, so that no plan is ever sent. For self-attention (seqlen_q == seqlen_k) queries and keys share one dispatch.
/// Throws InvalidArgument if a config value is out of range or the strategy cannot split these heads over so many
/// ranks. It throws too if a sequence length is no multiple of cp_size * chunk_size (of cp_size, if the planner chooses
/// the chunks): pad explicitly, see compute_pad_size and Mask::padded.
Plan make_plan(const Mask& mask, const DistAttnConfig& config);

/// make_plan with given dispatches: another mask over rows that are already sharded (hybrid attention).
Plan make_plan(const Mask& mask, const DistAttnConfig& config, const Dispatch& q_dispatch, const Dispatch& k_dispatch);

/// Lower bound of the K/V rows that a plan over these dispatches moves in one cast. It is the sum over ranks of remote
/// key rows that their queries see. Counted from the keys' side of the slices, sharing no code with make_plan, so that
/// a plan can be held against it. O(n log n), n the pairs of a slice and a run of one rank's rows that meet.
int64_t rows_lower_bound(const Mask& mask, const Dispatch& q_dispatch, const Dispatch& k_dispatch);

/// Bytes that all ranks together receive in a step of a plan with a grid, by the closed forms of
/// docs/design/strategies.md.
struct GridTraffic {
  int64_t forward_bytes = 0;
  int64_t backward_bytes = 0;
};
/// The dtypes that a caller chooses per call, and whether it passes KeptKv on from forward to backward.
struct GridCall {
  DType out = DType::kBFloat16;
  DType dout = DType::kBFloat16;
  DType grads = DType::kBFloat16;
  bool kept = true;
  /// Sinks of single rows (SinkLayout::kSsh), with gradients: they move with the heads.
  int64_t row_sinks = 0;
};
/// Throws InvalidArgument for a plan without a grid.
GridTraffic grid_traffic(const Plan& plan, const GridCall& call);
/// Traffic of a plan with QO communication, from the rows in its tables; see docs/design/movement.md. Throws
/// InvalidArgument for another plan.
GridTraffic movement_traffic(const Plan& plan, const GridCall& call);
/// Whether a forward pass with QO communication leaves the fetched q, k and v to the backward pass. True if the
/// configuration says so and both passes fetch the same rows.
bool keeps_moved_rows(const Plan& plan);

/// JSON both ways. `plan_from_json` checks the format version and that the plan is consistent; it throws
/// InvalidArgument for text that is malformed, too deep or too large.
inline constexpr int kPlanFormatVersion = 2;
std::string plan_to_json(const Plan& plan);
Plan plan_from_json(std::string_view text);

/// A printed explanation: who gets what and why, balance, rows moved, stages, memory.
std::string explain(const Plan& plan);

/// Sentences that say why the strategy "auto" chose as it did, and what each pass alone would prefer; none where a
/// strategy was named.
std::vector<std::string> strategy_reasons(const Plan& plan);

/// Least recently used plans by (mask, config). Thread-safe; `get` plans on a miss.
class PlanCache {
 public:
  static constexpr int64_t kMaxBytes = int64_t{64} << 20;

  /// Keeps at most `capacity` plans and at most `max_bytes` of them, but always the latest. Throws InvalidArgument
  /// unless capacity >= 1 and max_bytes >= 0.
  explicit PlanCache(size_t capacity = 128, int64_t max_bytes = kMaxBytes);
  ~PlanCache();
  PlanCache(PlanCache&&) noexcept;
  PlanCache& operator=(PlanCache&&) noexcept;

  std::shared_ptr<const Plan> get(const Mask& mask, const DistAttnConfig& config);
  /// The plan that `get` returned last, null before the first.
  std::shared_ptr<const Plan> most_recent() const;

  struct Counters {
    int64_t hits = 0;
    int64_t misses = 0;
  };
  Counters counters() const;
  size_t size() const;
  /// memory_bytes of all plans, and their bound. A smaller bound holds at once.
  int64_t bytes() const;
  int64_t max_bytes() const;
  void set_max_bytes(int64_t max_bytes);
  void clear();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tangram
