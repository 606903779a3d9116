// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// StreamBackend: DenseBackend that does in host memory what kernels do on streams: it reads own keys where they lie,
// takes awaited keys, and stores rows of dk and dv one by one.
#pragma once

#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "runtime/dense_backend.hpp"

namespace tangram::testing {

class StreamBackend final : public AttnBackend {
 public:
  /// Tiles of keys reach so far beyond a range.
  static constexpr int64_t kBorder = 2;

  std::string_view name() const override { return "stream"; }
  std::optional<TileShape> tile_shape(const AttnShape& shape) const override { return dense_.tile_shape(shape); }
  std::unique_ptr<PreparedMask> prepare(std::span<const AttnSlice> slices, const AttnShape& shape,
                                        const TileList*) const override {
    auto prepared = std::make_unique<Prepared>();
    prepared->dense = dense_.prepare(slices, shape, nullptr);
    return prepared;
  }
  bool can_wait_for_keys() const override { return true; }
  bool supports_local_kv() const override { return true; }
  void prepare_local_kv(PreparedMask& mask, std::span<const LocalKvRange> local_ranges) const override {
    static_cast<Prepared&>(mask).local_ranges.assign(local_ranges.begin(), local_ranges.end());
  }

  void forward(PreparedMask& mask, const AttnForwardArgs& args, void*) const override {
    auto& prepared = static_cast<Prepared&>(mask);
    AttnForwardArgs call = args;
    const HostTensor k = keys(prepared, args.k, args.k_local), v = keys(prepared, args.v, args.v_local);
    call.k = k, call.v = v;
    dense_.forward(*prepared.dense, call, nullptr);
  }
  void backward(PreparedMask& mask, const AttnBackwardArgs& args, void*) const override {
    auto& prepared = static_cast<Prepared&>(mask);
    AttnBackwardArgs call = args;
    const HostTensor k = keys(prepared, args.k, args.k_local), v = keys(prepared, args.v, args.v_local);
    call.k = k, call.v = v;
    if (args.places.of_key == nullptr) return dense_.backward(*prepared.dense, call, nullptr);
    HostTensor dk(DType::kFloat32, k.rows(), k.heads(), k.dim()), dv(DType::kFloat32, v.rows(), v.heads(), v.dim());
    call.dk = dk, call.dv = dv;
    dense_.backward(*prepared.dense, call, nullptr);
    store(dk, args.dk, args.places, args.places.dk_final, args.places.dk_others);
    store(dv, args.dv, args.places, args.places.dv_final, args.places.dv_others);
  }

 private:
  struct Prepared final : PreparedMask {
    std::unique_ptr<PreparedMask> dense;
    std::vector<LocalKvRange> local_ranges;
  };

  /// The keys of a call: of a range those at its ends from the buffer, all others from where they lie.
  static HostTensor keys(const Prepared& mask, const ConstTensorView& buffer, const ConstTensorView& elsewhere) {
    HostTensor result(buffer.dtype, buffer.rows, buffer.heads, buffer.dim);
    for (int64_t row = 0; row < buffer.rows; ++row) copy_row(buffer, row, result.view(), row);
    if (elsewhere.data == nullptr) return result;
    for (const LocalKvRange& local_range : mask.local_ranges) {
      for (int64_t key = local_range.keys.begin + kBorder; key < local_range.keys.end - kBorder; ++key) {
        copy_row(elsewhere, local_range.row + key - local_range.keys.begin, result.view(), key);
      }
    }
    return result;
  }
  static void copy_row(const ConstTensorView& from, int64_t row, const TensorView& to, int64_t to_row) {
    const ConstTensorView source = slice_rows(from, {row, row + 1});
    std::memcpy(slice_rows(to, {to_row, to_row + 1}).data, source.data, static_cast<size_t>(source.row_bytes()));
  }
  static void store(const HostTensor& rows, const TensorView& own, const DkvScatterMap& places,
                    const TensorView& final_rows, void* const* others) {
    for (int64_t row = 0; row < rows.rows(); ++row) {
      const uint32_t place = places.of_key[row], tensor = place >> kGradientRowBits;
      const int64_t to = place & ((uint32_t{1} << kGradientRowBits) - 1);
      TensorView target = tensor == kFinalTensor ? final_rows : own;
      if (tensor >= kFirstOtherTensor) {
        target = {{others[tensor - kFirstOtherTensor], own.dtype, to + 1, own.heads, own.dim, own.row_stride,
                   own.head_stride}};
      }
      HostTensor rounded(DType::kFloat32, 1, rows.heads(), rows.dim());
      copy_row(rows.view(), row, rounded.view(), 0);
      rounded = rounded.to(target.dtype);
      copy_row(rounded.view(), 0, target, to);
    }
  }

  DenseBackend dense_;
};

}  // namespace tangram::testing
