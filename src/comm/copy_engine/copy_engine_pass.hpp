// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// CopyEnginePass: one pass over copy engines, prepared.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "comm/copy_engine/copy_engine_communicator.hpp"
#include "comm/copy_engine/slot_area.hpp"
#include "comm/device/pass_layout.hpp"
#include "cuda/packed_arrays.hpp"

namespace tangram::comm {

/// NOTE [small ranges]: a copy engine takes over 2 us for each copy, however short. A stage of many short ranges
/// is moved by a kernel of few thread blocks instead, on the caller's stream. The kernel must end before the attention
/// kernel starts: behind one that fills the device and polls for peers' rows, it might never start.
class CopyEnginePass final : public DevicePass {
 public:
  /// Collective, unless the spec is agreed and memory is enough; the specs of all ranks fit together.
  CopyEnginePass(std::shared_ptr<CopyEngineGroup> group, const DevicePassSpec& spec);

  using DevicePass::begin;
  int begin(std::span<const ConstTensorView> own, void* stream) override;
  int begin_kept(KeptSlot kept, void* stream) override;
  TensorView recv_buffers(int tensor, int slot) const override;
  int num_slots() const override { return (*recv_buffers_)->num_slots(); }
  int64_t own_bytes() const override;
  void cast(int stage, std::span<const ConstTensorView> sources, void* stream) override;
  void wait_group_cast(int stage, void* stream) override;
  void wait_send(int stage, void* stream) override;
  void release_credit(int stage, void* stream) override;
  KvReadyFlags ready_flags() const override;
  void reduce(int stage, std::span<const ConstTensorView> partials, void* stream) override;
  std::vector<ReturnTarget> return_targets(int stage, int tensor, int return_slot) const override;
  int return_slot() const override { return return_slot_; }
  void signal_returned(int stage, void* stream) override;
  void finish_reduce(std::span<const ConstTensorView> own, std::span<const TensorView> sums, void* stream) override;
  bool leave_rows(std::span<const Range> rows, std::span<const Range> absent) override;
  void finish_reduce_and_end(std::span<const ConstTensorView> own, std::span<const TensorView> sums,
                             void* stream) override;
  void end(void* stream) override;
  KeptSlot end_kept(void* stream) override;
  void drop_kept(KeptSlot kept) override;

  int number() const { return number_; }
  bool shares_recv_buffer(const CopyEngineGroup& group, const std::vector<RecvTensor>& recv_buffers) const {
    return &group == group_.get() && recv_buffers == spec_.recv_buffers;
  }

 private:
  /// A range of one tensor for one peer.
  struct Copy {
    int tensor = 0;
    int64_t from = 0;  // byte in the source
    int64_t to = 0;    // byte in the peer's slot
    int64_t num_bytes = 0;
  };
  struct Target {
    int peer = 0;
    std::vector<Copy> copies;
  };
  /// Rows that a stage moves out of this rank, and the ranks for which it waits.
  struct Transfer {
    std::vector<Target> targets;
    uint64_t peers = 0;
    bool by_kernel = false;
    cuda::PackedArray chunks;  // by_kernel
    int num_chunks = 0;
    int64_t rows_sent = 0, bytes_sent = 0, rows_received = 0, bytes_received = 0;
    int first_wait = 0, num_waits = 0;  // in the list of waits
    int first_signal = 0;               // in the list of signals, one for each target
    // Group-casts with credits: ranges in credit_gives_ (peers to release to) and credit_takes_ (peers to wait for).
    bool is_credited = false;
    int first_give = 0, num_gives = 0;
    int first_take = 0, num_takes = 0;
  };

  /// Slots that are kept stay this pass's while others come and go, and graphs write to theirs at any time: not shared.
  bool shares_memory() const { return spec_.shares_memory && spec_.num_slots <= 2; }
  /// Arrays that are uploaded together, as long as they are on the host.
  struct HostTables {
    std::deque<std::vector<Chunk>> chunks;
    std::deque<std::vector<uint32_t>> words;
    std::vector<char*> bases;
  };
  cuda::PackedArray add(HostTables& tables, std::vector<Chunk> chunks);
  cuda::PackedArray add(HostTables& tables, std::vector<uint32_t> words);
  std::vector<Transfer> plan_casts(HostTables& tables);
  std::vector<Transfer> plan_returns(HostTables& tables);
  void plan_credits(HostTables& tables);
  /// Fills in what follows from a stage's copies, `layout`, and from the rows of each tensor that come.
  void finish_plan(HostTables& tables, Transfer& transfer, int64_t rows_received, const std::vector<PeerPieces>& layout,
                   const SlotTensors& area, const std::vector<int64_t>& row_bytes);
  void plan_conversions(HostTables& tables);
  void plan_own_rows(HostTables& tables);
  /// Uploads the tables: those of the merge with all others, or later by themselves.
  void plan_merge(const MergeTable& table, const std::vector<int32_t>* rows);
  void before_call(cudaStream_t stream) const;
  /// Rows agreed in advance, or exchanged now (collective).
  std::shared_ptr<const AgreedRows> rows_of_ranks(Caller caller) const;
  bool meets() const { return spec_.agreed == nullptr || !group_->agrees_later; }
  static void append_waits(Transfer& transfer, size_t stage, const std::vector<int>& sources,
                           std::vector<uint32_t>& list);

  /// Sends a stage of `area`'s slot and raises entry (stage, rank) of the peers' flags, which begin at `first_flag`.
  void send(const Transfer& transfer, size_t stage, const SlotTensors& area, int slot, int64_t first_flag,
            const void* const* sources, const OwnedStream& own_stream, bool& used, cudaStream_t stream);
  /// The stage's copies, one call for each or two for all.
  void copy(const Transfer& transfer, const SlotTensors& area, int slot, int64_t flag, const void* const* sources,
            cudaStream_t stream) const;
  void copy_batched(const Transfer& transfer, const SlotTensors& area, int slot, int64_t flag,
                    const void* const* sources, cudaStream_t stream) const;
  WaitParams return_wait() const;
  /// A wait without peers, for credits; also signals the releases that release_credit() deferred.
  WaitParams credit_wait();
  void add_gives(WaitParams& params);
  /// `params` and before that what signal_returned has put off: to tell owners.
  WaitParams with_signals(WaitParams params);
  /// The wait that the merge kernel does before it sums gradients.
  WaitParams wait_in_merge(cudaStream_t stream);
  void open(std::span<const ConstTensorView> own, cudaStream_t stream);
  std::vector<MergeParams> merges(std::span<const ConstTensorView> own, std::span<const TensorView> sums,
                                  cudaStream_t stream) const;
  /// Whether kernels that open and close epochs are launched before those in front of them have ended. Not in graphs,
  /// nor where ranks share a GPU.
  bool may_get_ready(cudaStream_t stream) const;
  /// Whether the epoch may be closed before the own transfers have ended: not if these read what peers may then write.
  bool may_join_last(cudaStream_t stream) const;
  /// Instead of join(), for the kernel that closes the epoch, where casts alone were sent.
  SentWord sent_word();
  void note_sources(const Transfer& transfer, const void* const* sources);
  /// Later work on `stream` finds sources and partials read, and the epoch's cell free to advance.
  void join(cudaStream_t stream);
  void close(cudaStream_t stream);
  void give_slots_back();
  EpochParams epoch_params() const;

  const std::shared_ptr<CopyEngineGroup> group_;
  const DevicePassSpec spec_;
  const int number_;
  PassLayout layout_;
  EpochState epoch_;
  std::shared_ptr<SlotTensors> recv_buffers_;
  /// Its own flags: arrivals [casts, size], then returned [reduces, size], then credits [casts, size], if any.
  std::unique_ptr<SlotTensors> returns_;
  std::vector<Transfer> casts_;
  std::vector<Transfer> reduces_;
  std::unique_ptr<HostTables> host_tables_;  // until they are uploaded
  cuda::PackedArrays tables_;
  cuda::PackedArray cast_waits_, credit_gives_, credit_takes_, return_waits_, return_signals_;
  std::vector<std::unique_ptr<OwnedEvent>> sent_;  // by cast, of passes that reuse sources
  int num_return_waits_ = 0;
  std::unique_ptr<cuda::PackedArrays> merge_apart_;  // merge tables, if leave_rows() changes them after the upload
  cuda::PackedArray merge_begin_, merge_entries_, merge_before_;
  cuda::PackedArray merge_rows_;   // the rows that are merged, unless all
  int64_t num_merge_rows_ = -1;    // -1: all
  cuda::PackedArray merge_ended_;  // a count of thread blocks
  cuda::PackedArray own_chunks_;   // of own_rows
  int num_own_chunks_ = 0;
  /// Partial rows in reduce_dtype, for tensors that come in another.
  std::vector<std::shared_ptr<cuda::DeviceBuffer>> converted_;
  cuda::PackedArray converted_bases_;
  std::vector<cuda::PackedArray> conversions_;  // chunks, by stage
  std::vector<int> num_conversions_;

  uint32_t fingerprint_tag_ = 0;  // of the call whose epoch is open
  int slot_ = -1;
  int return_slot_ = -1;
  int first_signal_ = 0, num_signals_ = 0;  // put off until finish_reduce, in the list of signals
  int first_give_ = 0, num_gives_ = 0;      // put off until the next kernel that waits
  bool cast_used_ = false;
  bool return_used_ = false;
  bool sends_recv_buffer_ = false;  // rows of the slot, which are free to be written once the epoch has been closed
};

}  // namespace tangram::comm
