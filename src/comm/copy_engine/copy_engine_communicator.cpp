// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/copy_engine/copy_engine_communicator.hpp"

#include <fmt/format.h>

#include "comm/copy_engine/copy_batch.hpp"
#include "comm/copy_engine/copy_engine_buffer.hpp"
#include "comm/copy_engine/copy_engine_pass.hpp"
#include "comm/device/pass_check.hpp"
#include "core/require.hpp"
#include "cuda/check.hpp"
#include "cuda/stream.hpp"
#include "tangram/env.hpp"

namespace tangram::comm {

namespace {

constexpr int kMaxRanks = 64;

/// Bytes of the control block at which the kinds of words begin.
struct ControlOffsets {
  explicit ControlOffsets(int size) : num_ranks(static_cast<size_t>(size)) {}
  size_t abort() const { return 0; }
  size_t order() const { return 1024; }
  size_t reduce_flags() const { return order() + num_ranks * kOrderLength * sizeof(uint64_t); }
  size_t inboxes() const { return (reduce_flags() + num_ranks * sizeof(uint64_t) + 1023) / 1024 * 1024; }
  size_t end() const { return inboxes() + 2 * num_ranks * DeviceCommunicator::kMaxReduceValues * sizeof(float); }

  size_t num_ranks;
};

std::optional<double> spare(const DeviceCommunicatorConfig& config, double share) {
  return config.exact_memory ? std::nullopt : std::optional(share);
}

int checked_size(int size) {
  require(size <= kMaxRanks, "make_device_communicator: at most {} ranks (got {})", kMaxRanks, size);
  return size;
}

}  // namespace

CopyEngineGroup::CopyEngineGroup(Communicator& control, const DeviceCommunicatorConfig& config)
    : state(control, config),
      heap(control, state.timeout_s()),
      recv_buffers{SharedSlotArea(spare(config, 0.375)), SharedSlotArea(spare(config, 0.375))},
      returns{SharedSlotArea(spare(config, 1)), SharedSlotArea(spare(config, 1))},
      control_block(heap.allocate(ControlOffsets(checked_size(control.size())).end(), "copy engines: control block")),
      lockstep_(config.lockstep) {
  control.require_agreement(static_cast<uint64_t>(config.lockstep), "lockstep");
  control.require_agreement(static_cast<uint64_t>(config.exact_memory), "exact_memory");
  const int size = control.size();
  const ControlOffsets offsets(size);
  std::vector<char*> pointers;
  for (const size_t offset : {offsets.abort(), offsets.order(), offsets.reduce_flags(), offsets.inboxes()}) {
    for (int rank = 0; rank < size; ++rank) pointers.push_back(control_block->peer(rank) + offset);
  }
  tables = cuda::DeviceBuffer::copy_of(pointers.data(), pointers.size() * sizeof(char*));
  counters = cuda::DeviceBuffer::zeros(2 * sizeof(uint64_t));
  const cuda::WaitContext context{
      reinterpret_cast<uint64_t*>(control_block->local()), tables.as<uint64_t*>(), state.device_control_block(),
      static_cast<uint64_t>(state.timeout_s() * 1e9),      control.rank(),         size};
  context_ = cuda::DeviceBuffer::copy_of(&context, sizeof(context));
  load_kernels();
  // NOTE [batches].
  batch_copies = config.batch_copies && !heap.shares_gpus() && driver_takes_batches(cast_stream.get()) &&
                 driver_takes_batches(return_stream.get());
  cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  float meets = lockstep_ || heap.shares_gpus() || Env::get().sanity_check ? 1 : 0;
  control.all_reduce({&meets, 1}, ReduceOp::kMax, "copy engines: ready");
  agrees_later = meets == 0;
}

CopyEngineGroup::~CopyEngineGroup() {
  // Copies read the own memory; every wait in between has a deadline.
  static_cast<void>(cudaStreamSynchronize(cast_stream.get()));
  static_cast<void>(cudaStreamSynchronize(return_stream.get()));
}

std::shared_ptr<cuda::DeviceBuffer> CopyEngineGroup::converted_rows(size_t tensor, size_t bytes) {
  std::shared_ptr<cuda::DeviceBuffer>& rows = converted_.at(tensor);
  if (rows == nullptr || rows->bytes() < bytes) rows = std::make_shared<cuda::DeviceBuffer>(bytes);
  return rows;
}

EpochParams CopyEngineGroup::epoch_params(int pass) const {
  EpochParams params;
  params.context = context();
  params.rank = state.rank();
  params.size = state.size();
  params.pass = pass;
  params.counter = counters.as<uint64_t>();
  params.order = {tables.as<uint64_t*>() + state.size(), 0};
  return params;
}

std::shared_ptr<DevicePass> CopyEngineCommunicator::prepare_pass(const DevicePassSpec& spec) {
  check();
  if (group_->agrees_later && spec.agreed != nullptr) {
    require_valid(size(), spec);
    return std::make_shared<CopyEnginePass>(group_, spec);
  }
  const auto* shared = pass_that_shares_recv_buffer<CopyEnginePass>(control(), spec, *group_);
  check_pass_spec(control(), spec, shared == nullptr ? -1 : shared->number());
  return std::make_shared<CopyEnginePass>(group_, spec);
}

std::unique_ptr<BufferedPass> CopyEngineCommunicator::make_buffered_pass(const BufferedPassSpec& spec) {
  check();
  if (group_->keeps_step() || group_->heap.shares_gpus()) return nullptr;
  control().require_agreement(hash_of(spec), "make_buffered_pass: what there is room for");
  return std::make_unique<CopyEngineBuffer>(group_, spec);
}

void CopyEngineCommunicator::all_reduce(float* device_values, int count, ReduceOp op, void* stream) {
  check_all_reduce(device_values, count, op);
  check();
  AllReduceParams params;
  params.context = group_->context();
  params.rank = rank();
  params.size = size();
  params.counter = group_->counters.as<uint64_t>() + 1;
  params.flags = {group_->tables.as<uint64_t*>() + 2 * size(), 0};
  params.inboxes = group_->tables.as<float*>() + 3 * size();
  params.values = device_values;
  params.count = count;
  params.is_max = op == ReduceOp::kMax;
  launch_all_reduce(params, cuda::as_stream(stream));
  group_->keep_step();
}

}  // namespace tangram::comm
