// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// DeviceCommunicator: how the ranks of a group exchange rows of GPU memory, enqueued on streams, without the host ever
// waiting. One interface, several transports. Streams are `cudaStream_t` passed as `void*`.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tangram/communicator.hpp"
#include "tangram/dtype.hpp"
#include "tangram/exchange.hpp"
#include "tangram/kv_ready_flags.hpp"
#include "tangram/local_kv_range.hpp"
#include "tangram/tensor.hpp"

namespace tangram {

namespace cuda {
class Workspace;
}

/// A receive buffer for remote rows, `[rows, heads, dim]`, contiguous: the K or the V buffer of a rank, in global row
/// order. `rows` may differ between ranks, the rest may not. Rows are multiples of 16 bytes.
struct RecvTensor {
  int64_t rows = 0;
  int heads = 0;
  int dim = 0;
  DType dtype = DType::kBFloat16;

  friend bool operator==(const RecvTensor&, const RecvTensor&) = default;
};

/// A gradient that moves back: partial rows `[partial_rows, heads, dim]` (rows of the receive buffer) are summed into
/// `[owned_rows, heads, dim]` (rows of the shard) at their owners. Rows are multiples of 8 elements.
struct ReturnTensor {
  int64_t partial_rows = 0;
  int64_t owned_rows = 0;
  int heads = 0;
  int dim = 0;
  /// Dtype of the tensors that reduce() gets: kFloat32, or reduce_dtype, which needs no conversion.
  DType partial_dtype = DType::kFloat32;
  /// Dtype in which rows move: kFloat32 or kBFloat16. Sums are always made in float32 and rounded once.
  DType reduce_dtype = DType::kFloat32;

  friend bool operator==(const ReturnTensor&, const ReturnTensor&) = default;
};

class BufferedPass;
struct BufferedPassSpec;
class DevicePass;

/// The parts of all ranks' tables that peers need, if every rank knows them beforehand.
struct AgreedRows {
  std::vector<int64_t> recv_buffers;  ///< by rank: rows of the receive buffers
  /// Begin, by rank, of the returned rows of each stage and source, at [stage * size + source]. They are ordered by
  /// stage, then by source.
  std::vector<std::vector<int64_t>> return_begin;
  std::vector<int64_t> return_rows;  ///< by rank: of all of them
  /// Tables of all ranks, by stage, then by rank; kept as long as this object. Transports over several nodes read them;
  /// empty: they gather them.
  std::vector<std::vector<const Exchange*>> casts, reduces;
};

/// Transfers of one pass (forward or backward of one plan). Equal numbers of stages and tensor shapes on all ranks;
/// tables and row counts are the rank's own. See Exchange for how the tables of two ranks fit together.
struct DevicePassSpec {
  std::string label;            ///< in errors and traces, alike on all ranks: `forward`, `backward`
  std::vector<Exchange> casts;  ///< by stage: rows of the sources -> rows of the receive buffers; all tensors alike
  std::vector<RecvTensor> recv_buffers;  ///< at most 4; may be empty when `casts` is
  std::vector<Exchange> reduces;         ///< by stage: read backwards, as in Communicator::group_reduce
  std::vector<ReturnTensor> returns;     ///< at most 4; may be empty when `reduces` is
  /// Rows of this rank's own that begin() copies: from rows `row` on of its sources to rows `keys` of the receive
  /// buffers. Disjoint, and none that a cast brings.
  std::vector<LocalKvRange> own_rows;
  /// Copies of the receive buffers. begin() takes a slot, end() releases it. Two slots let a rank run one pass ahead of
  /// its peers; each kept pass (end_kept) needs one more.
  int num_slots = 2;
  /// Copies of the areas in which partial gradients arrive, as num_slots.
  int num_return_slots = 2;
  /// Whether the caller needs no receive buffers or areas of partial gradients between end() and begin(). Such passes
  /// of a communicator share memory, as much as the largest needs, if the transport supports it. Alike on all ranks.
  /// With more than two slots receive buffers are the pass's own nevertheless.
  bool shares_memory = false;
  /// The pass is open while another one of its communicator is: it shares memory with such passes alone.
  bool opens_beside = false;
  /// Casts whose rows overwrite rows that were received or used earlier in the epoch. They are sent once their
  /// receivers have called release_credit(). Ascending, without the first cast. Alike on all ranks; only where there is
  /// RecvBufferReuse.
  std::vector<int> credited;
  /// Whether wait_send() is called, so that sources may change before end().
  bool reuses_sources = false;
  /// Another pass of the communicator whose receive buffers this one uses: a backward pass works on rows that the
  /// forward pass kept. Its receive buffers must be equal; num_slots is then ignored. Or null.
  std::shared_ptr<DevicePass> recv_buffers_of;
  /// All ranks have agreed (Agreement) on what their specs follow from, this among it. Then nothing is
  /// compared, and there is no rendezvous if the transport has enough shared memory. Or null.
  std::shared_ptr<const AgreedRows> agreed;
  /// leave_rows() is called before the first epoch.
  bool leaves_rows = false;
};

/// Destination of partial gradients that a kernel stores itself instead of calling `reduce`. Rows `partial` of one
/// return tensor go to rows `row` and on of a contiguous tensor of reduce_dtype at `base`, which may be memory of
/// another GPU. `base` is one for each owner, and `row` the same for all return tensors and slots.
struct ReturnTarget {
  int owner = 0;
  Range partial;
  void* base = nullptr;
  int64_t row = 0;
};

/// Receive buffers that outlive the epoch that filled them, see end_kept. Give it to begin_kept or drop_kept of a pass
/// that shares the buffers, exactly once. Plain data; -1 is nothing.
struct KeptSlot {
  int slot = -1;
};

/// The transfers of one pass, prepared: everything that an epoch needs is allocated. Not thread-safe.
///
/// An epoch is begin, then casts and reduces of its stages in any order that is the same on all ranks, then end. Epochs
/// of all passes of a communicator form one sequence, the same on all ranks. The device checks it: if a rank opens
/// another pass, check() throws CommError that names both. Over several nodes stages are cast in ascending order, since
/// a row that crossed for one stage serves later ones. `stream` is the compute stream. All calls of an epoch, and
/// successive epochs, must be ordered on it: one stream, or streams ordered by events. Transfers run on streams of the
/// communicator's own, forked from and joined with `stream` by events.
///
/// Nothing here synchronises the host, allocates, or polls on the host. Calls only enqueue; errors of peers show in
/// DeviceCommunicator::check. All calls can be captured into a CUDA graph as whole epochs, with exceptions of transport
/// nccl. Each replay uses the captured slot; the epoch number comes from device memory. Replays count in the epoch
/// sequence like calls.
class DevicePass {
 public:
  virtual ~DevicePass() = default;

  /// Opens the next epoch in a free slot; returns the slot. On the device it waits until the peers to which this pass
  /// sends have given the slot back. Throws InvalidArgument when no slot is free (alike on all ranks), CommError or
  /// Timeout when the communicator has failed before. `own`: as for cast(), of which own_rows are copied into the
  /// receive buffers, for later work on `stream`; or none, and nothing is copied.
  virtual int begin(std::span<const ConstTensorView> own, void* stream) = 0;
  int begin(void* stream) { return begin({}, stream); }
  /// Begins an epoch in a slot that end_kept of a pass with equal receive buffers kept: its rows are still there.
  virtual int begin_kept(KeptSlot kept, void* stream) = 0;

  /// Receive buffer `tensor` of slot `slot`, always the same address for the same slot. Local rows that are not
  /// in own_rows are written there by the caller, after begin, on `stream`.
  virtual TensorView recv_buffers(int tensor, int slot) const = 0;
  virtual int num_slots() const = 0;
  /// Memory of this rank's GPU that the receive buffers take where they are the pass's own, as far as is known.
  virtual int64_t own_bytes() const { return 0; }

  /// Sends what peers need of `sources` (one per receive buffer, of its dtype, heads and dim, rows contiguous,
  /// 16-byte aligned rows) in stage `stage`. Ordered after what was enqueued on `stream`; later work on `stream` does
  /// not wait for it. Sources must stay unchanged until end(), or wait_send(). Of a stage that is credited it waits on
  /// `stream` until the peers have given theirs.
  virtual void cast(int stage, std::span<const ConstTensorView> sources, void* stream) = 0;
  /// Later work on `stream` finds the rows that this rank receives in `stage`. By event or by a kernel of one thread
  /// block that waits, never by the host.
  virtual void wait_group_cast(int stage, void* stream) = 0;
  /// Later work on `stream` may overwrite what this rank sends in `stage`, which was cast before. Only where
  /// DevicePassSpec::reuses_sources.
  virtual void wait_send(int /*stage*/, void* /*stream*/) {}
  /// Releases the credit of a credited stage, before its cast: once the work on `stream` has ended, peers may overwrite
  /// the receive buffer of `stage`. Peers learn of it by the next cast or wait_group_cast at the latest.
  virtual void release_credit(int /*stage*/, void* /*stream*/) {}
  /// Later work on `stream` starts on the device no earlier than the transfer of `stage`, which was cast before. So a
  /// kernel that fills the device cannot keep the transfer waiting. Does not wait for rows. Nothing where transfers
  /// need no multiprocessors.
  virtual void wait_started(int /*stage*/, void* /*stream*/) {}
  /// Multiprocessors that transfers take while they run, as far as the transport knows.
  virtual int transfer_sms() const { return 0; }
  /// Flags for kernels that wait inside, if the transport supports that (DeviceCommunicator::kernel_transfers).
  /// Everything that peers wait for must be enqueued before such a kernel: call all casts of the epoch first.
  virtual KvReadyFlags ready_flags() const = 0;

  /// Sends the partial rows of `stage` to their owners. `partials`: one per return tensor, `[partial_rows, heads,
  /// dim]`, contiguous, of its partial_dtype. They must stay unchanged until end().
  virtual void reduce(int stage, std::span<const ConstTensorView> partials, void* stream) = 0;
  /// Instead of `partials` in reduce: what a kernel stores itself. Rows of `stage` and `tensor` by owner and partial
  /// row; the same for every epoch of the return slot `return_slot()`. Empty where kernels cannot.
  virtual std::vector<ReturnTarget> return_targets(int stage, int tensor, int return_slot) const = 0;
  /// The return slot of the open epoch, -1 when nothing returns.
  virtual int return_slot() const = 0;
  /// Tells the owners that all rows of `stage` are stored, at once or with finish_reduce; after the kernel that stored
  /// them, on `stream`.
  virtual void signal_returned(int stage, void* stream) = 0;
  /// Waits on the device until the partial rows of all stages have come, and adds them: `sums[t]` becomes `own[t]` plus
  /// the peers' rows, rounded. The terms of a row are added in float32 in rank order, `own` in the place of this rank,
  /// so sums are bitwise reproducible. own: `[owned_rows, heads, dim]`, float32 or reduce_dtype. sums: the shape of
  /// own, any dtype; the same memory if the dtypes are equal. Both contiguous.
  virtual void finish_reduce(std::span<const ConstTensorView> own, std::span<const TensorView> sums, void* stream) = 0;

  /// finish_reduce leaves these rows of the sums alone from now on. No partial rows return for them, and the kernel
  /// that computed the own part stored it there. Of the rows `absent` nothing is read from `own`, which counts as
  /// zeros. Both ascending and disjoint. Once; returns false, and does nothing, where a transport cannot.
  virtual bool leave_rows(std::span<const Range> /*rows*/, std::span<const Range> /*absent*/ = {}) { return false; }

  /// finish_reduce, then end.
  virtual void finish_reduce_and_end(std::span<const ConstTensorView> own, std::span<const TensorView> sums,
                                     void* stream) {
    finish_reduce(own, sums, stream);
    end(stream);
  }

  /// Closes the epoch: later work on `stream` may overwrite sources and partials, and the slot is given back to the
  /// peers. All stages must have been cast and reduced.
  virtual void end(void* stream) = 0;
  /// Like end(), but the receive buffers stay this rank's until begin_kept or drop_kept.
  virtual KeptSlot end_kept(void* stream) = 0;
  /// Gives a kept slot back. In the same order on all ranks, like begin.
  virtual void drop_kept(KeptSlot kept) = 0;
};

/// Whether rows may land where others were before in the same epoch.
enum class RecvBufferReuse {
  kNone,
  kInOrder,   ///< rows come by calls of the receiver's own, in the order of its stream: no credits
  kByCredit,  ///< peers push as soon as DevicePass::release_credit has told them
};

/// Abilities of kernels in the passes of a communicator, and other abilities of its passes.
struct KernelTransfers {
  bool wait_for_rows = false;    ///< there are flags: DevicePass::arrivals
  bool store_at_owners = false;  ///< DevicePass::return_targets, leave_rows
  RecvBufferReuse recv_buffer_reuse = RecvBufferReuse::kNone;
};

/// How ranks find out that they make the same without meeting. All ranks make the same calls of agree() and refuse() in
/// the same order.
class Agreement {
 public:
  virtual ~Agreement() = default;
  /// Agrees that all ranks make their next object from the plan with these facts and equal `options`. Throws
  /// InvalidArgument on every rank, naming what differs, unless that is so: now, or, on ranks that came first, from
  /// DevicePass::begin and DeviceCommunicator::check. The group is broken then.
  virtual void agree(const CallFingerprint& fingerprint, uint64_t options) = 0;
  /// Replaces agree() on a rank that cannot take part; the others throw InvalidArgument with `reason`.
  virtual void refuse(std::string_view reason) = 0;
  /// Returns when all ranks have agreed on what this one was the last to name, so that collective calls may follow.
  /// Throws Timeout, naming who has not come.
  virtual void meet() = 0;
};

/// The device side of a group: one GPU per rank (in tests several ranks may share one). Collective calls as in
/// Communicator: the same on all ranks, in the same order.
class DeviceCommunicator {
 public:
  virtual ~DeviceCommunicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// `copy_engine`, `nccl`, `hierarchical`.
  virtual std::string_view name() const = 0;
  /// The CUDA device of this rank. All calls expect it to be current.
  virtual int device() const = 0;
  /// Host-side collectives of the same group: agreement, barriers, small sums, with deadlines.
  virtual Communicator& control() = 0;
  /// Alike on all ranks.
  virtual KernelTransfers kernel_transfers() const { return {}; }

  /// Null: ranks meet over control() before they make something together. Alike on all ranks.
  virtual Agreement* agreement() { return nullptr; }
  /// Whether any two ranks have one GPU, where the transport knows; alike on all ranks.
  virtual std::optional<bool> shares_gpus() const { return std::nullopt; }

  /// Collective, unless ranks have agreed on the spec (DevicePassSpec::agreed); may wait for peers and allocates.
  /// Throws InvalidArgument on every rank, before anything is sent, when the ranks' specs do not fit together;
  /// NotAvailable for sizes that this device cannot hold. Never call it while work that waits for peers is under way on
  /// the device. The pass must not outlive the communicator.
  virtual std::shared_ptr<DevicePass> prepare_pass(const DevicePassSpec& spec) = 0;

  /// Collective, allocates. Passes whose tables change under captured epochs (buffered_pass.hpp); null, alike on all
  /// ranks, where the transport has none. Throws InvalidArgument on every rank unless all give the same spec.
  virtual std::unique_ptr<BufferedPass> make_buffered_pass(const BufferedPassSpec& spec);

  /// Sets the call to which the following epochs belong, like Communicator::set_call_fingerprint. If two ranks open an
  /// epoch for different calls, check() throws InvalidArgument that names the difference. On GPUs ranks compare 19 bits
  /// of a hash.
  virtual void set_call_fingerprint(const CallFingerprint& fingerprint) = 0;

  /// Reduces in place over all ranks, on the device, in rank order: kSum or kMax of at most kMaxReduceValues float32.
  /// Capturable. Calls must come in the same order on all ranks, but are no epochs.
  virtual void all_reduce(float* device_values, int count, ReduceOp op, void* stream) = 0;
  static constexpr int kMaxReduceValues = 8192;

  /// Throws what has gone wrong so far: Timeout or CommError, naming rank, operation and stage. Does not wait and does
  /// not touch the device: call it after synchronising with the stream whose results are to be trusted. After an error
  /// the communicator is broken and repeats it; the CUDA context stays usable.
  virtual void check() = 0;
  /// Gives up: waits on this rank and on its peers end, their check() throws CommError with this rank and `reason`.
  virtual void abort(std::string_view reason) noexcept = 0;

  /// Rows and bytes that casts and reduces enqueued on this rank moved over links, as Communicator::counters: equal to
  /// the sums over the tables. Captured work counts once, at capture.
  virtual TrafficCounters counters() const = 0;
  /// Rows that this rank really sent and received inside its node and between nodes, with the rows that it forwards
  /// (DeviceCommunicatorConfig::ranks_per_node). Nothing over one node.
  virtual TrafficCounters within_node() const { return {}; }
  virtual TrafficCounters across_nodes() const { return {}; }
  virtual void reset_counters() = 0;

  /// GPU memory of this rank that passes share to receive into (DevicePassSpec::shares_memory). Slots of receive
  /// buffers and returned rows, each tensor aligned to 1 KiB.
  virtual int64_t shared_bytes() const { return 0; }
  /// GPU memory of this rank for passes without a workspace of their own, one at a time; as large as the largest needs.
  /// Throws NotAvailable in a build without CUDA.
  cuda::Workspace& workspace();

 private:
  std::shared_ptr<cuda::Workspace> workspace_;
};

enum class DeviceTransport : int {
  kCopyEngine = 0,  ///< copy engines push rows into the peers' memory; one host, no SM
  kNccl = 1,        ///< grouped send and receive of NCCL
};
/// `copy_engine`, `nccl`.
std::string_view to_string(DeviceTransport transport);
/// Throws InvalidArgument for anything else, with the list.
DeviceTransport parse_device_transport(std::string_view name);

struct DeviceCommunicatorConfig {
  DeviceTransport transport = DeviceTransport::kCopyEngine;
  /// Bounds every wait for a peer, on host and device; 0: Env::timeout_s.
  double timeout_s = 0;
  /// Most thread blocks of a transfer, and so multiprocessors; 0: 16. nccl only.
  int max_ctas = 0;
  /// Passes all copies of a stage to the driver in one call, and all its flags in a second. That takes less host time;
  /// no peer sees its rows before all have been sent. copy_engine only. One call per copy if false, during graph
  /// capture, if ranks share a GPU, and if the driver lacks the call.
  bool batch_copies = true;
  /// copy_engine only: a host barrier (Communicator::barrier of `control`) after each enqueue that waits for a peer or
  /// that a peer waits for. Needed if ranks are threads that share a GPU. They share its hardware queues, where waiting
  /// work of one rank can block the work it waits for. No effect on replayed graphs.
  bool lockstep = false;
  /// Memory that passes share (DevicePassSpec::shares_memory) is what the largest of them wants, to the byte, on every
  /// rank: for masks that stay. Otherwise there is headroom for other masks of their shapes, so that memory hardly ever
  /// grows. copy_engine: 3/8 for received rows and for returned gradients; nccl: up to a power of two. If it is exact,
  /// a mask that wants more than all before grows it; so prepare the largest mask first, if it is known. Alike on all
  /// ranks.
  bool exact_memory = false;
  /// Ranks [n * ranks_per_node, (n + 1) * ranks_per_node) are node n. `transport` moves each row to another node once;
  /// copy engines forward it there. Partial gradients of a node are added before they cross. Must divide the number of
  /// ranks; all of them: one node. 0: nodes as they are found, by hosts or Env::node_id. With several nodes NCCL moves
  /// rows between them, copy_engine inside them if `transport` says so. Transport nccl forwards nothing: each row goes
  /// from its owner to every rank that needs it.
  int ranks_per_node = 0;
  /// Numbers by which errors name the ranks; empty: 0, 1, ...
  std::vector<int> rank_names = {};
  /// Names of the ranks' nodes in errors, by rank; empty: nodes have no names.
  std::vector<std::string> node_names = {};
};

/// Collective over `control`, which must outlive the result and whose ranks may be threads of one process or processes,
/// of one node or several. Uses the current CUDA device. Over several nodes the ranks of each must be numbered one
/// after the other: else InvalidArgument. Throws NotAvailable with the reason: no GPU, a build without CUDA, NCCL not
/// found (Env::nccl_library), or two ranks on one GPU. Also if GPUs of a node cannot reach each other.
///
/// Between nodes ranks connect by TCP, at the addresses of `control`. They prove to each other that they know
/// Env::secret, or else one that rank 0 draws and distributes over `control`.
std::unique_ptr<DeviceCommunicator> make_device_communicator(Communicator& control,
                                                             const DeviceCommunicatorConfig& config = {});

}  // namespace tangram
