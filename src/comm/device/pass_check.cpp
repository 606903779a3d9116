// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/device/pass_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "comm/all_gather.hpp"
#include "comm/operation.hpp"
#include "comm/wire.hpp"
#include "core/require.hpp"
#include "tangram/error.hpp"

namespace tangram::comm {

namespace {

constexpr size_t kMaxPassTensors = 4;
constexpr int kMaxStages = 512;
constexpr int kMaxSlots = 256;

/// Tables are checked as those of host operations, with tensors that are never read.
char dummy;

ConstTensorView shape_only(DType dtype, int64_t rows, int heads, int dim) {
  return {&dummy, dtype, rows, heads, dim, int64_t{heads} * dim, dim};
}
TensorView writable(const ConstTensorView& view) {
  return {{&dummy, view.dtype, view.rows, view.heads, view.dim, view.row_stride, view.head_stride}};
}

void check_row(const std::string& label, const char* what, int heads, int dim, DType dtype) {
  require(heads > 0 && dim > 0 && int64_t{heads} * dim * static_cast<int64_t>(size_of(dtype)) % 16 == 0,
          "prepare_pass '{}': rows of {} must be multiples of 16 bytes (got heads={}, dim={}, {})", label, what, heads,
          dim, to_string(dtype));
}

void check_own(int size, const DevicePassSpec& spec, int max_ranks) {
  const std::string& label = spec.label;
  require(size <= max_ranks, "prepare_pass '{}': at most {} ranks (got {})", label, max_ranks, size);
  require(spec.casts.size() <= kMaxStages && spec.reduces.size() <= kMaxStages,
          "prepare_pass '{}': at most {} stages (got {} and {})", label, kMaxStages, spec.casts.size(),
          spec.reduces.size());
  require(spec.recv_buffers.size() <= kMaxPassTensors && spec.returns.size() <= kMaxPassTensors,
          "prepare_pass '{}': at most {} tensors (got {} and {})", label, kMaxPassTensors, spec.recv_buffers.size(),
          spec.returns.size());
  for (size_t i = 0; i < spec.credited.size(); ++i) {
    const int stage = spec.credited[i];
    require(stage > (i == 0 ? 0 : spec.credited[i - 1]) && stage < std::ssize(spec.casts),
            "prepare_pass '{}': credited must be casts in ascending order, not the first (got {} of {})", label, stage,
            spec.casts.size());
  }
  require(spec.casts.empty() || !spec.recv_buffers.empty(), "prepare_pass '{}': casts need receive buffers", label);
  require(spec.reduces.empty() || !spec.returns.empty(), "prepare_pass '{}': reduces need return tensors", label);
  require(spec.num_slots >= 1 && spec.num_slots <= kMaxSlots && spec.num_return_slots >= 1 &&
              spec.num_return_slots <= kMaxSlots,
          "prepare_pass '{}': num_slots and num_return_slots must lie in [1, {}] (got {} and {})", label, kMaxSlots,
          spec.num_slots, spec.num_return_slots);
  for (const RecvTensor& tensor : spec.recv_buffers) {
    check_row(label, "a receive buffer", tensor.heads, tensor.dim, tensor.dtype);
    require(tensor.rows >= 0 && tensor.rows == spec.recv_buffers[0].rows,
            "prepare_pass '{}': receive buffers must have equally many rows (got {} and {})", label, tensor.rows,
            spec.recv_buffers[0].rows);
  }
  for (const LocalKvRange& rows : spec.own_rows) {
    require(!spec.recv_buffers.empty() && rows.row >= 0 && rows.keys.begin >= 0 && rows.keys.begin <= rows.keys.end &&
                rows.keys.end <= spec.recv_buffers[0].rows,
            "prepare_pass '{}': own_rows must be rows of the receive buffers (got [{}, {}) from row {} on)", label,
            rows.keys.begin, rows.keys.end, rows.row);
  }
  for (const ReturnTensor& tensor : spec.returns) {
    check_row(label, "a return tensor", tensor.heads, tensor.dim, tensor.reduce_dtype);
    // Rows are summed eight elements at a time, whatever the dtypes of own rows and sums.
    require(int64_t{tensor.heads} * tensor.dim % 8 == 0,
            "prepare_pass '{}': rows of a return tensor must be multiples of 8 elements (got heads={}, dim={})", label,
            tensor.heads, tensor.dim);
    require(tensor.partial_rows >= 0 && tensor.owned_rows >= 0 && tensor.partial_rows == spec.returns[0].partial_rows &&
                tensor.owned_rows == spec.returns[0].owned_rows,
            "prepare_pass '{}': return tensors must have equally many rows", label);
    require(
        tensor.reduce_dtype != DType::kFloat16 &&
            (tensor.partial_dtype == DType::kFloat32 || tensor.partial_dtype == tensor.reduce_dtype),
        "prepare_pass '{}': reduce_dtype must be float32 or bfloat16, partial_dtype float32 or the same (got {}, {})",
        label, to_string(tensor.reduce_dtype), to_string(tensor.partial_dtype));
  }
}

/// Everything but rows and tables, which must be alike on all ranks.
std::string common_text(const DevicePassSpec& spec, int recv_buffer_number) {
  std::string text =
      fmt::format("{};{};{};{};{};{};{};{}", spec.label, spec.casts.size(), spec.reduces.size(), spec.num_slots,
                  spec.num_return_slots, recv_buffer_number, spec.shares_memory, spec.opens_beside);
  for (const int stage : spec.credited) text += fmt::format(";credit {}", stage);
  for (const RecvTensor& tensor : spec.recv_buffers) {
    text += fmt::format(";{}x{} {}", tensor.heads, tensor.dim, to_string(tensor.dtype));
  }
  for (const ReturnTensor& tensor : spec.returns) {
    text += fmt::format(";{}x{} {}", tensor.heads, tensor.dim, to_string(tensor.reduce_dtype));
  }
  return text;
}

std::vector<Signature> sign_stages(Caller caller, const DevicePassSpec& spec) {
  std::vector<Signature> signatures;
  for (size_t stage = 0; stage < spec.casts.size(); ++stage) {
    int64_t source_rows = 0;
    for (const RowCopy& copy : spec.casts[stage].sends) source_rows = std::max(source_rows, copy.rows.end);
    std::vector<CastTensor> tensors;
    for (const RecvTensor& tensor : spec.recv_buffers) {
      tensors.push_back({shape_only(tensor.dtype, source_rows, tensor.heads, tensor.dim),
                         writable(shape_only(tensor.dtype, tensor.rows, tensor.heads, tensor.dim))});
    }
    const std::string label = fmt::format("{} stage {}", spec.label, stage);
    signatures.push_back(make_group_cast(caller, spec.casts[stage], tensors, label).signature);
  }
  for (size_t stage = 0; stage < spec.reduces.size(); ++stage) {
    std::vector<ReduceTensor> tensors;
    for (const ReturnTensor& tensor : spec.returns) {
      const ConstTensorView owned = shape_only(tensor.reduce_dtype, tensor.owned_rows, tensor.heads, tensor.dim);
      tensors.push_back(
          {shape_only(tensor.reduce_dtype, tensor.partial_rows, tensor.heads, tensor.dim), writable(owned)});
    }
    const std::string label = fmt::format("{} stage {}", spec.label, stage);
    signatures.push_back(make_group_reduce(caller, spec.reduces[stage], tensors, ReduceOp::kSum, label).signature);
  }
  return signatures;
}

void compare_stages(Communicator& control, const std::vector<Signature>& own) {
  const size_t size = static_cast<size_t>(control.size()), num_bytes = encoded_size(control.size());
  std::vector<char> sent;
  for (const Signature& signature : own) {
    const std::vector<char> bytes = encode(signature, control.size());
    sent.insert(sent.end(), bytes.begin(), bytes.end());
  }
  const std::vector<char> all = all_gather(control, sent, "prepare_pass: tables");
  for (size_t stage = 0; stage < own.size(); ++stage) {
    std::vector<Signature> signatures;
    for (size_t rank = 0; rank < size; ++rank) {
      const auto begin = all.begin() + static_cast<ptrdiff_t>(rank * sent.size() + stage * num_bytes);
      signatures.push_back(decode({begin, begin + static_cast<ptrdiff_t>(num_bytes)}, control.size()));
    }
    std::vector<const Signature*> pointers;
    for (const Signature& signature : signatures) pointers.push_back(&signature);
    const std::string disagreement = find_disagreement(pointers);
    require(disagreement.empty(), "{}", disagreement);
  }
}

}  // namespace

void require_group_size(int size, int ranks_per_node) {
  const bool has_levels = ranks_per_node > 0 && ranks_per_node < size;
  const int num_nodes = has_levels ? size / ranks_per_node : 1;
  const int largest = std::max(num_nodes, has_levels ? ranks_per_node : size);
  require(
      largest <= kMaxRanksOfLevel,
      "make_device_communicator: at most {} ranks, or as many nodes of as many ranks where copy engines hand rows on "
      "(got {} ranks on {} nodes); use smaller groups{}",
      kMaxRanksOfLevel, size, num_nodes, has_levels ? "" : ", or transport copy_engine inside nodes");
}

void check_pass_spec(Communicator& control, const DevicePassSpec& spec, int recv_buffer_number, int max_ranks) {
  std::vector<Signature> signatures;
  try {
    check_own(control.size(), spec, max_ranks);
    signatures = sign_stages({control.rank(), control.size()}, spec);
  } catch (const InvalidArgument& error) {
    control.refuse(error.what());
    throw;
  }
  control.require_agreement(std::hash<std::string>{}(common_text(spec, recv_buffer_number)),
                            fmt::format("stages, tensors and slots of pass '{}'", spec.label));
  compare_stages(control, signatures);
}

void require_valid(int size, const DevicePassSpec& spec, int max_ranks) { check_own(size, spec, max_ranks); }

void check_all_reduce(const float* device_values, int count, ReduceOp op) {
  constexpr int kMost = DeviceCommunicator::kMaxReduceValues;
  require(device_values != nullptr && count >= 1 && count <= kMost,
          "all_reduce: needs 1 to {} values on the device (got {})", kMost, count);
  require(op == ReduceOp::kSum || op == ReduceOp::kMax, "all_reduce: op must be kSum or kMax (got {})",
          static_cast<int>(op));
}

}  // namespace tangram::comm
