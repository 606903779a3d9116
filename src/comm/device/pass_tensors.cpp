// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/device/pass_tensors.hpp"

#include "core/require.hpp"

namespace tangram::comm {

namespace {

int64_t row_bytes_of(int heads, int dim, DType dtype) {
  return int64_t{heads} * dim * static_cast<int64_t>(size_of(dtype));
}

void check_tensor(const std::string& label, const char* what, const ConstTensorView& view, int64_t min_rows, int heads,
                  int dim) {
  const bool fits = view.heads == heads && view.dim == dim && view.rows >= min_rows && view.contiguous();
  if (!fits) {
    require(fits, "{} '{}': needs a contiguous tensor of at least {} rows, {} heads, dim {} (got {})", what, label,
            min_rows, heads, dim, shape_text(view));
  }
  require(view.rows == 0 || (view.data != nullptr && reinterpret_cast<uintptr_t>(view.data) % 16 == 0),
          "{} '{}': tensors must be 16-byte aligned and not null", what, label);
}

}  // namespace

std::vector<int64_t> recv_row_bytes(const DevicePassSpec& spec) {
  std::vector<int64_t> bytes;
  for (const RecvTensor& tensor : spec.recv_buffers) {
    bytes.push_back(row_bytes_of(tensor.heads, tensor.dim, tensor.dtype));
  }
  return bytes;
}

std::vector<int64_t> return_row_bytes(const DevicePassSpec& spec) {
  std::vector<int64_t> bytes;
  for (const ReturnTensor& tensor : spec.returns) {
    bytes.push_back(row_bytes_of(tensor.heads, tensor.dim, tensor.reduce_dtype));
  }
  return bytes;
}

void check_sources(const DevicePassSpec& spec, std::span<const ConstTensorView> sources, int64_t min_rows) {
  require(sources.size() == spec.recv_buffers.size(), "cast '{}': needs one source per receive buffer (got {} for {})",
          spec.label, sources.size(), spec.recv_buffers.size());
  for (size_t t = 0; t < sources.size(); ++t) {
    const RecvTensor& shape = spec.recv_buffers[t];
    check_tensor(spec.label, "cast", sources[t], min_rows, shape.heads, shape.dim);
    require(sources[t].dtype == shape.dtype, "cast '{}': sources must be {} (got {})", spec.label,
            to_string(shape.dtype), to_string(sources[t].dtype));
  }
}

void check_partials(const DevicePassSpec& spec, std::span<const ConstTensorView> partials) {
  require(partials.size() == spec.returns.size(), "reduce '{}': needs one tensor per return tensor (got {} for {})",
          spec.label, partials.size(), spec.returns.size());
  for (size_t t = 0; t < partials.size(); ++t) {
    const ReturnTensor& shape = spec.returns[t];
    check_tensor(spec.label, "reduce", partials[t], shape.partial_rows, shape.heads, shape.dim);
    require(partials[t].dtype == shape.partial_dtype, "reduce '{}': partials must be {} (got {})", spec.label,
            to_string(shape.partial_dtype), to_string(partials[t].dtype));
  }
}

void check_sums(const DevicePassSpec& spec, std::span<const ConstTensorView> own, std::span<const TensorView> sums) {
  require(own.size() == spec.returns.size() && sums.size() == spec.returns.size(),
          "finish_reduce '{}': needs one own tensor and one sum per return tensor (got {} and {} for {})", spec.label,
          own.size(), sums.size(), spec.returns.size());
  for (size_t t = 0; t < own.size(); ++t) {
    const ReturnTensor& shape = spec.returns[t];
    check_tensor(spec.label, "finish_reduce", own[t], shape.owned_rows, shape.heads, shape.dim);
    check_tensor(spec.label, "finish_reduce", sums[t], shape.owned_rows, shape.heads, shape.dim);
    const bool share_memory = own[t].data == sums[t].data && shape.owned_rows > 0;  // without rows both may be null
    require(!share_memory || own[t].dtype == sums[t].dtype,
            "finish_reduce '{}': own and sums may share memory only with equal dtypes", spec.label);
  }
}

}  // namespace tangram::comm
