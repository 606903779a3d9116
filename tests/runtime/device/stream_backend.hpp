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

  AttnCaps caps() const override {
    return {.name = "stream", .delta = true, .max_ready_flags = 64, .local_kv_halo = kBorder};
  }
  std::unique_ptr<MaskMetadata> build(const MaskRequest& request) const override {
    MaskRequest of_dense = request;
    of_dense.ready_flags = {};
    of_dense.local_ranges = {};
    return std::make_unique<Metadata>(dense_.build(of_dense), request.local_ranges);
  }
  std::unique_ptr<MaskSlot> make_slot(const AttnShape& shape, const MaskCapacity*) const override {
    auto slot = std::make_unique<Slot>();
    slot->dense = dense_.make_slot(shape, nullptr);
    return slot;
  }
  void install(MaskSlot& slot, std::unique_ptr<MaskMetadata> metadata, void*) const override {
    auto& built = dynamic_cast<Metadata&>(*metadata);
    dynamic_cast<Slot&>(slot).install(dense_, built);
  }
  /// Sets the ranges of a slot without ranges of its own, as a call of a padded slot finds them in its table.
  void set_local_ranges(MaskSlot& slot, std::vector<LocalKvRange> ranges) const {
    dynamic_cast<Slot&>(slot).local_ranges = std::move(ranges);
  }

  void forward(MaskSlot& slot, const AttnForwardArgs& args, void*) const override {
    auto& prepared = dynamic_cast<Slot&>(slot);
    AttnForwardArgs call = args;
    const HostTensor k = keys(prepared, args.k, args.k_local), v = keys(prepared, args.v, args.v_local);
    call.k = k, call.v = v;
    dense_.forward(*prepared.dense, call, nullptr);
  }
  void backward(MaskSlot& slot, const AttnBackwardArgs& args, void*) const override {
    auto& prepared = dynamic_cast<Slot&>(slot);
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
  struct Metadata final : MaskMetadata {
    Metadata(std::unique_ptr<MaskMetadata> of, std::span<const LocalKvRange> ranges)
        : MaskMetadata(of->parts()), dense(std::move(of)), local_ranges(ranges.begin(), ranges.end()) {}

    std::unique_ptr<MaskMetadata> dense;
    std::vector<LocalKvRange> local_ranges;
  };
  struct Slot final : MaskSlot {
    void install(const DenseBackend& backend, Metadata& built) {
      add_parts(built.parts());
      local_ranges = built.local_ranges;
      backend.install(*dense, std::move(built.dense), nullptr);
    }

    std::unique_ptr<MaskSlot> dense;
    std::vector<LocalKvRange> local_ranges;
  };

  /// The keys of a call: of a range those at its ends from the buffer, all others from where they lie.
  static HostTensor keys(const Slot& mask, const ConstTensorView& buffer, const ConstTensorView& elsewhere) {
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
