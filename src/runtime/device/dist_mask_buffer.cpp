// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "tangram/dist_mask_buffer.hpp"

#include <fmt/format.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "core/require.hpp"
#include "core/rounding.hpp"
#include "runtime/device/buffered_shape.hpp"
#include "runtime/device/buffered_tables.hpp"
#include "runtime/pass_plan.hpp"
#include "runtime/rank_context.hpp"
#include "schedule/local_kv_table.hpp"
#include "tangram/buffered_pass.hpp"
#include "tangram/dkv_scatter_map.hpp"
#include "tangram/env.hpp"

namespace tangram {

namespace {

constexpr int64_t kWorkAlignment = 256;
constexpr int64_t kMostRows = (int64_t{1} << kGradientRowBits) - kUnusedRows;  // that a place can name
constexpr uint64_t kOptions = 0x646d62;  // of what ranks agree on, unlike those of a DistAttention

TensorView rows_at(char* data, DType dtype, int64_t rows, int heads, int dim) {
  return {{data, dtype, rows, heads, dim, int64_t{heads} * dim, dim}};
}

}  // namespace

class DistMaskBuffer::Impl {
 public:
  Impl(const Plan& like, const DistMaskCapacity& capacity, DeviceCommunicator& communicator, const AttnBackend& backend)
      : communicator_(communicator), backend_(backend), shape_(shape_of(like)), capacity_(capacity) {
    Communicator& control = communicator.control();
    if (communicator.agreement() != nullptr) communicator.agreement()->meet();  // on all before, so that all can meet
    check_for_all(control, control.size() > 1, [&] {
      check(like);
      const HeadConfig& heads = shape_.heads;
      const MaskCapacity lists{.max_documents = capacity_.documents,
                               .max_slices = capacity_.slices,
                               .deterministic = capacity_.deterministic,
                               .passes = capacity_.passes,
                               .allow_fully_masked_rows = capacity_.allow_fully_masked_rows};
      mask_shape_ = {shape_.q_rows,  capacity_.kv_rows, heads.num_heads_q, heads.num_heads_kv,
                     heads.head_dim, heads.head_dim_v,  heads.dtype};
      mask_ = backend_.make_slot(mask_shape_, &lists);
    });
    try {
      pass_ = communicator_.make_buffered_pass(pass_spec());
    } catch (const CudaError& error) {  // of this rank alone
      communicator_.abort(error.what());
      if (control.size() > 1) control.refuse(error.what());
      throw;
    }
    if (pass_ == nullptr) {
      throw NotAvailable(fmt::format(
          "DistMaskBuffer: needs the transport copy_engine within one host, each rank with a GPU of its own "
          "(got {})",
          communicator_.name()));
    }
    base_.communicator = &control;
    base_.backend = &backend_;
    base_.rank = communicator_.rank();
  }

  void set(std::shared_ptr<const Plan> plan, void* stream) {
    Agreement* const agreement = communicator_.agreement();
    Communicator& control = communicator_.control();
    std::string refused;
    RankTables tables;
    const auto prepare = [&] {
      require(plan != nullptr, "DistMaskBuffer::set: plan must be given (got null)");
      refused = misfit(*plan, shape_, capacity_);
      if (!refused.empty()) return;
      tables = tables_of_rank(*plan, base_.rank, caps_.local_kv_halo);
      const RankPlan& own = plan->ranks()[static_cast<size_t>(base_.rank)];
      const std::span<const AttnSlice> slices = own.slices;
      backend_.install(*mask_,
                       backend_.build({.masks = {&slices, 1},
                                       .shape = mask_shape_,
                                       .gpu = caps_.gpu,
                                       .into = mask_.get(),
                                       .num_keys = own.kv_rows}),
                       stream);
    };
    CallFingerprint fingerprint;
    if (agreement != nullptr) {
      check_for_all(*agreement, prepare);
      fingerprint = fingerprint_of(*plan);
      agreement->agree(fingerprint, kOptions);
    } else {
      check_for_all(control, control.size() > 1, prepare);
      fingerprint = fingerprint_of(*plan);
      agree_on_plan(control, fingerprint);
    }
    require(refused.empty(), "{}", refused);
    const SharedFingerprint shared(communicator_, fingerprint);
    pass_->set(tables.moves, [&](std::byte* to) { write_user(*plan, tables, to); }, stream);
    base_.plan = std::move(plan);
    base_.shape = rank_shape(*base_.plan, base_.rank);
    base_.fingerprint = fingerprint;
    ++num_plans_;
  }

  void forward(const DistForwardArgs& args, void* stream) {
    const char* const function = "DistMaskBuffer::forward";
    check_call(function, args, forward_workspace_bytes());
    run(args, [&] {
      const std::array<ConstTensorView, 2> keys = {args.k, args.v};
      pass_->begin(AttnPass::kForward, keys, stream);
      AttnForwardArgs call;
      call.q = args.q, call.out = args.out, call.lse = args.lse, call.max_logits = args.max_logits;
      call.sink = args.sink;
      call.workspace = args.workspace;
      give_keys(call, AttnPass::kForward, args);
      backend_.forward(*mask_, call, stream);
      pass_->end(stream);
      if (args.max_logits != nullptr && communicator_.size() > 1) {
        communicator_.all_reduce(args.max_logits, args.q.heads, ReduceOp::kMax, stream);
      }
    });
  }

  void backward(const DistBackwardArgs& args, void* stream) {
    const char* const function = "DistMaskBuffer::backward";
    require(capacity_.passes == AttnPasses::kBoth, "{}: needs a buffer for both passes (got one for forward alone)",
            function);
    check_call(function, args, backward_workspace_bytes());
    require(args.dsink == nullptr || args.dsink_reduce != DsinkReduce::kAvg,
            "{}: dsink_reduce must be none or sum (got avg)", function);
    require(args.dk.contiguous() && args.dv.contiguous(), "{}: dk and dv must be contiguous (got {} and {})", function,
            shape_text(args.dk), shape_text(args.dv));
    run(args, [&] {
      const std::array<ConstTensorView, 2> keys = {args.k, args.v};
      // Beside the kernel that reads out and dout alone.
      void* const keys_ready = pass_->begin_beside(AttnPass::kBackward, keys, stream);
      char* const work = static_cast<char*>(args.workspace.data);
      const HeadConfig& heads = shape_.heads;
      const int64_t rows = shape_.k_rows + kUnusedRows;
      AttnBackwardArgs call;
      call.keys_ready = keys_ready;
      call.q = args.q, call.out = args.out, call.lse = args.lse, call.dout = args.dout, call.dq = args.dq;
      call.dk = rows_at(work, shape_.reduce_dtype, rows, heads.num_heads_kv, heads.head_dim);
      call.dv =
          rows_at(work + part_bytes(heads.head_dim), shape_.reduce_dtype, rows, heads.num_heads_kv, heads.head_dim_v);
      call.sink = args.sink, call.dsink = args.dsink;
      call.places = {reinterpret_cast<const uint32_t*>(pass_->user_data()), args.dk, args.dv, pass_->return_areas(0),
                     pass_->return_areas(1)};
      const int64_t parts = part_bytes(heads.head_dim) + part_bytes(heads.head_dim_v);
      call.workspace = {work + parts, args.workspace.bytes - parts};
      give_keys(call, AttnPass::kBackward, args);
      backend_.backward(*mask_, call, stream);
      const Range shard{0, shape_.k_rows};
      const std::array<ConstTensorView, 2> own = {slice_rows(call.dk, shard), slice_rows(call.dv, shard)};
      const std::array<TensorView, 2> sums = {args.dk, args.dv};
      pass_->finish_reduce_and_end(own, sums, stream);
      if (args.dsink != nullptr && args.sink.layout != SinkLayout::kSsh && args.dsink_reduce == DsinkReduce::kSum &&
          communicator_.size() > 1) {
        const int count = static_cast<int>(args.sink.seqlen_sink) * args.q.heads;
        communicator_.all_reduce(args.dsink, count, ReduceOp::kSum, stream);
      }
    });
  }

  const BufferShape& shape() const { return shape_; }
  const DistMaskCapacity& capacity() const { return capacity_; }
  int64_t num_plans() const { return num_plans_; }
  int64_t forward_workspace_bytes() const { return backend_.workspace_bytes(*mask_, AttnPass::kForward); }
  int64_t backward_workspace_bytes() const {
    if (capacity_.passes != AttnPasses::kBoth) return 0;
    return part_bytes(shape_.heads.head_dim) + part_bytes(shape_.heads.head_dim_v) +
           backend_.workspace_bytes(*mask_, AttnPass::kBackward);
  }
  int64_t device_bytes() const { return mask_->device_bytes() + pass_->device_bytes(); }

 private:
  void check(const Plan& like) const {
    require(backend_.memory() == MemoryKind::kDevice,
            "DistMaskBuffer: backend must work on the memory of GPUs, as the communicator (got {})", backend_.name());
    check_plan(like, communicator_.size());
    require(capacity_.passes != AttnPasses::kBackward, "DistMaskBuffer: passes must be both or forward (got backward)");
    require(shape_.reduce_dtype == DType::kFloat32 || shape_.reduce_dtype == shape_.heads.dtype,
            "DistMaskBuffer: reduce_dtype must be float32 or the heads' (got {})", to_string(shape_.reduce_dtype));
    require(caps_.padded_slots && caps_.max_ready_flags > 0,
            "DistMaskBuffer: backend must have padded slots, and store gradients at their owners (got {})",
            backend_.name());
    for (const auto& [name, value] :
         {std::pair("kv_rows", capacity_.kv_rows), {"local_ranges", capacity_.local_ranges}}) {
      require(0 < value && value <= kMostRows, "DistMaskBuffer: {} must be positive and at most {} (got {})", name,
              kMostRows, value);
    }
    require(0 <= capacity_.sent_rows && capacity_.sent_rows <= kMostRows && shape_.k_rows <= kMostRows,
            "DistMaskBuffer: sent_rows and rows a rank must be at most {} (got {} and {})", kMostRows,
            capacity_.sent_rows, shape_.k_rows);
  }

  int64_t places_bytes() const {
    return round_up(capacity_.kv_rows * static_cast<int64_t>(sizeof(uint32_t)), kWorkAlignment);
  }
  /// Workspace bytes of one gradient.
  int64_t part_bytes(int dim) const {
    const int64_t elements = (shape_.k_rows + kUnusedRows) * shape_.heads.num_heads_kv * dim;
    return round_up(elements * static_cast<int64_t>(size_of(shape_.reduce_dtype)), kWorkAlignment);
  }

  BufferedPassSpec pass_spec() const {
    const HeadConfig& heads = shape_.heads;
    BufferedPassSpec spec;
    spec.label = "a mask buffer";
    for (const int dim : {heads.head_dim, heads.head_dim_v}) {
      spec.recv_buffers.push_back({capacity_.kv_rows, heads.num_heads_kv, dim, heads.dtype});
      if (capacity_.passes == AttnPasses::kForward) continue;
      spec.returns.push_back({.partial_rows = capacity_.kv_rows,
                              .owned_rows = shape_.k_rows,
                              .heads = heads.num_heads_kv,
                              .dim = dim,
                              .partial_dtype = shape_.reduce_dtype,
                              .reduce_dtype = shape_.reduce_dtype});
    }
    spec.own_rows = shape_.k_rows;
    spec.sent_rows = capacity_.sent_rows;
    spec.local_ranges = capacity_.local_ranges;
    spec.user_bytes = places_bytes() + table_bytes_;
    return spec;
  }

  void write_user(const Plan& plan, const RankTables& tables, std::byte* to) const {
    const auto rows = static_cast<size_t>(capacity_.kv_rows);
    write_places(plan, base_.rank, tables.moves, {reinterpret_cast<uint32_t*>(to), rows});
    if (table_bytes_ > 0) write_local_kv_table(tables.elsewhere, capacity_.kv_rows, to + places_bytes());
  }

  template <class Args>
  void check_call(const char* function, const Args& args, int64_t needed) const {
    require(num_plans_ > 0, "{}: set() must come first (got none)", function);
    require(args.kept == nullptr, "{}: kept must be null, as the plans keep nothing (got one)", function);
    validate(base_, args);
    for (const auto& [name, view] : {std::pair("k", &args.k), std::pair("v", &args.v)}) {
      require(view->contiguous(), "{}: {} must be contiguous (got {})", function, name, shape_text(*view));
    }
    require(needed == 0 || (args.workspace.data != nullptr && args.workspace.bytes >= needed &&
                            reinterpret_cast<uintptr_t>(args.workspace.data) % kWorkAlignment == 0),
            "{}: the workspace must have at least {} bytes, aligned to {} (got {} bytes at {})", function, needed,
            kWorkAlignment, args.workspace.bytes, args.workspace.data);
    if (Env::get().sanity_check && communicator_.size() > 1) {
      agree_on_call(communicator_.control(), fingerprint_of(base_.fingerprint, *base_.plan, args));
    }
  }

  template <class Args, class Body>
  void run(const Args& args, const Body& body) {
    try {
      // Facts of the plan stand in the tables: those of a graph that is captured now are of all plans.
      const SharedFingerprint shared(communicator_, fingerprint_of(CallFingerprint(), *base_.plan, args));
      body();
    } catch (const std::exception& error) {
      // Peers wait for what this rank does not put on its stream, so they are told when it cannot go on.
      communicator_.abort(error.what());
      throw;
    }
  }

  template <class Call, class Args>
  void give_keys(Call& call, AttnPass pass, const Args& args) const {
    call.k = pass_->recv_buffers(pass, 0);
    call.v = pass_->recv_buffers(pass, 1);
    call.options = args.options;
    if (table_bytes_ == 0) return;
    call.k_local = args.k;
    call.v_local = args.v;
    call.local_kv_table = pass_->user_data() + places_bytes();
  }

  DeviceCommunicator& communicator_;
  const AttnBackend& backend_;
  const BufferShape shape_;
  const DistMaskCapacity capacity_;
  const AttnCaps caps_ = backend_.caps();
  const int64_t table_bytes_ =
      caps_.local_kv_halo < 0 ? 0 : round_up(local_kv_table_bytes(capacity_.kv_rows), kWorkAlignment);
  AttnShape mask_shape_;
  std::unique_ptr<MaskSlot> mask_;
  std::unique_ptr<BufferedPass> pass_;
  RankContext base_;  // of the plan that is set
  int64_t num_plans_ = 0;
};

DistMaskBuffer::DistMaskBuffer(const Plan& like, const DistMaskCapacity& capacity, DeviceCommunicator& communicator,
                               const AttnBackend& backend)
    : impl_(std::make_unique<Impl>(like, capacity, communicator, backend)) {}
DistMaskBuffer::~DistMaskBuffer() = default;
DistMaskBuffer::DistMaskBuffer(DistMaskBuffer&&) noexcept = default;
DistMaskBuffer& DistMaskBuffer::operator=(DistMaskBuffer&&) noexcept = default;

void DistMaskBuffer::set(std::shared_ptr<const Plan> plan, void* stream) { impl_->set(std::move(plan), stream); }
void DistMaskBuffer::forward(const DistForwardArgs& args, void* stream) { impl_->forward(args, stream); }
void DistMaskBuffer::backward(const DistBackwardArgs& args, void* stream) { impl_->backward(args, stream); }

const DistMaskCapacity& DistMaskBuffer::capacity() const { return impl_->capacity(); }
int64_t DistMaskBuffer::num_plans() const { return impl_->num_plans(); }
int64_t DistMaskBuffer::q_rows() const { return impl_->shape().q_rows; }
int64_t DistMaskBuffer::k_rows() const { return impl_->shape().k_rows; }
int64_t DistMaskBuffer::forward_workspace_bytes() const { return impl_->forward_workspace_bytes(); }
int64_t DistMaskBuffer::backward_workspace_bytes() const { return impl_->backward_workspace_bytes(); }
int64_t DistMaskBuffer::device_bytes() const { return impl_->device_bytes(); }

}  // namespace tangram
