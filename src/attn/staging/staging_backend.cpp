// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "attn/staging/staging_backend.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "attn/arguments.hpp"
#include "core/require.hpp"

namespace tangram {

namespace {

/// The arguments of a call that lie in memory, each with a buffer of its own.
enum Argument { kQ, kK, kV, kOut, kLse, kMaxLogits, kSink, kDout, kDq, kDk, kDv, kDsink, kDelta, kNumSlots };

struct StagedMetadata final : MaskMetadata {
  StagedMetadata(std::unique_ptr<MaskMetadata> of, std::vector<Range> keys)
      : MaskMetadata(of->parts()), inner(std::move(of)), seen_keys(std::move(keys)) {}

  std::unique_ptr<MaskMetadata> inner;
  std::vector<Range> seen_keys;  // sorted, apart: rows that some slice shows
};

struct StagedSlot final : MaskSlot {
  void add(MaskParts parts) { add_parts(parts); }

  std::unique_ptr<MaskSlot> inner;
  AttnShape shape;
  std::vector<Range> seen_keys;  // sorted, apart: rows that some slice shows
  std::vector<Range> all_keys;
  std::vector<Range> all_queries;
};

std::vector<Range> whole(int64_t rows) { return rows > 0 ? std::vector<Range>{{0, rows}} : std::vector<Range>{}; }

std::vector<Range> seen_keys(std::span<const std::span<const AttnSlice>> masks) {
  std::vector<Range> ranges;
  for (const std::span<const AttnSlice> slices : masks) {
    for (const AttnSlice& slice : slices) {
      const Range keys = canonical(slice).k_range;
      if (!keys.empty()) ranges.push_back(keys);
    }
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  std::vector<Range> joined;
  for (const Range& range : ranges) {
    if (!joined.empty() && range.begin <= joined.back().end) {
      joined.back().end = std::max(joined.back().end, range.end);
    } else {
      joined.push_back(range);
    }
  }
  return joined;
}

StagedSlot& as_staged(MaskSlot& slot) {
  auto* staged = dynamic_cast<StagedSlot*>(&slot);
  require(staged != nullptr, "StagingBackend: the slot must be of this backend (got another's)");
  return *staged;
}

}  // namespace

/// Device memory by argument, and the copies of host tensors in it: always contiguous.
class StagingBackend::Buffers {
 public:
  explicit Buffers(DeviceMemory& memory) : memory_(memory) {}
  ~Buffers() {
    for (const Buffer& buffer : buffers_) {
      if (buffer.data != nullptr) memory_.release(buffer.data);
    }
  }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  /// The device's copy of `host`, whose rows `rows` are copied now.
  TensorView stage(Argument slot, const ConstTensorView& host, const std::vector<Range>& rows) {
    const TensorView device = view_like(slot, host);
    for (const Range& range : rows) {
      for_each_block(host, device, range, [&](size_t host_at, size_t device_at, size_t pitch, const Pitched& block) {
        memory_.upload(static_cast<char*>(device.data) + device_at, pitch,
                       static_cast<const char*>(host.data) + host_at, block);
      });
    }
    return device;
  }
  void fetch(const TensorView& host, const TensorView& device, const std::vector<Range>& rows) {
    for (const Range& range : rows) {
      for_each_block(host, device, range, [&](size_t host_at, size_t device_at, size_t pitch, const Pitched& block) {
        memory_.download(static_cast<char*>(host.data) + host_at, block,
                         static_cast<const char*>(device.data) + device_at, pitch);
      });
    }
  }

  /// The device's copy of `count` floats, copied now if `upload`; null for null.
  float* stage(Argument slot, const float* host, int64_t count, bool upload) {
    if (host == nullptr) return nullptr;
    const size_t bytes = static_cast<size_t>(count) * sizeof(float);
    auto* device = static_cast<float*>(at_least(slot, bytes));
    if (upload && bytes > 0) memory_.upload(device, bytes, host, {bytes, bytes, 1});
    return device;
  }
  void fetch(float* host, const float* device, int64_t count) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(float);
    if (host != nullptr && bytes > 0) memory_.download(host, {bytes, bytes, 1}, device, bytes);
  }

 private:
  struct Buffer {
    void* data = nullptr;
    size_t bytes = 0;
  };

  void* at_least(Argument slot, size_t bytes) {
    Buffer& buffer = buffers_[slot];
    if (buffer.data == nullptr || buffer.bytes < bytes) {
      if (buffer.data != nullptr) memory_.release(buffer.data);
      buffer = {};
      buffer.data = memory_.allocate(std::max<size_t>(bytes, 256));
      buffer.bytes = bytes;
    }
    return buffer.data;
  }

  TensorView view_like(Argument slot, const ConstTensorView& host) {
    const auto bytes = static_cast<size_t>(host.rows * host.row_bytes());
    return {
        {at_least(slot, bytes), host.dtype, host.rows, host.heads, host.dim, int64_t{host.heads} * host.dim, host.dim}};
  }

  /// Calls `copy(host offset, device offset, device pitch, host block)` in bytes for the blocks that rows consist of:
  /// one where heads touch, else one for each head.
  template <class Copy>
  static void for_each_block(const ConstTensorView& host, const ConstTensorView& device, const Range& rows,
                             const Copy& copy) {
    if (host.empty() || rows.empty()) return;
    const size_t element = size_of(host.dtype);
    const auto bytes = [element](int64_t elements) { return static_cast<size_t>(elements) * element; };
    const bool heads_touch = host.heads == 1 || (host.head_stride == host.dim && host.row_stride >= device.row_stride);
    const int num_blocks = heads_touch ? 1 : host.heads;
    const size_t width = bytes(heads_touch ? device.row_stride : device.dim);
    // A single row may have any stride.
    const size_t pitch = rows.size() == 1 ? width : bytes(host.row_stride);
    for (int head = 0; head < num_blocks; ++head) {
      copy(bytes(rows.begin * host.row_stride + head * host.head_stride),
           bytes(rows.begin * device.row_stride + head * device.head_stride), bytes(device.row_stride),
           Pitched{pitch, width, static_cast<size_t>(rows.size())});
    }
  }

  DeviceMemory& memory_;
  std::array<Buffer, kNumSlots> buffers_;
};

namespace {

int64_t sink_size(const Sink& sink, const AttnShape& shape) {
  return (sink.layout == SinkLayout::kSsh ? shape.seqlen_q : 1) * sink.seqlen_sink * shape.num_heads_q;
}

void require_no_stream(const void* stream) {
  require(stream == nullptr, "StagingBackend: stream must be null, calls on host memory return when done (got {})",
          stream);
}

}  // namespace

StagingBackend::StagingBackend(std::unique_ptr<AttnBackend> backend, std::unique_ptr<DeviceMemory> memory)
    : backend_(std::move(backend)), memory_(std::move(memory)), buffers_(std::make_unique<Buffers>(*memory_)) {}

StagingBackend::~StagingBackend() = default;

AttnCaps StagingBackend::caps() const {
  const AttnCaps of = backend_->caps();
  return {.name = of.name, .gpu = of.gpu, .delta = of.delta, .head_masks = of.head_masks};
}

std::unique_ptr<MaskMetadata> StagingBackend::build(const MaskRequest& request) const {
  for (const std::span<const AttnSlice> slices : request.masks) {
    validate_mask("StagingBackend::build", slices, request.shape);
  }
  return std::make_unique<StagedMetadata>(backend_->build(request), seen_keys(request.masks));
}

std::unique_ptr<MaskSlot> StagingBackend::make_slot(const AttnShape& shape, const MaskCapacity* capacity) const {
  require(capacity == nullptr, "StagingBackend::make_slot: capacity needs tensors on the device (got host memory)");
  auto slot = std::make_unique<StagedSlot>();
  slot->inner = backend_->make_slot(shape);
  slot->shape = shape;
  slot->all_keys = whole(shape.seqlen_k);
  slot->all_queries = whole(shape.seqlen_q);
  return slot;
}

void StagingBackend::install(MaskSlot& slot, std::unique_ptr<MaskMetadata> metadata, void* stream) const {
  StagedSlot& staged = as_staged(slot);
  require_no_stream(stream);
  auto* built = dynamic_cast<StagedMetadata*>(metadata.get());
  require(built != nullptr, "StagingBackend::install: the metadata must be of this backend (got another's)");
  staged.seen_keys = std::move(built->seen_keys);
  staged.add(built->parts());
  backend_->install(*staged.inner, std::move(built->inner));
}

void StagingBackend::forward(MaskSlot& slot, const AttnForwardArgs& args, void* stream) const {
  StagedSlot& staged = as_staged(slot);
  require_no_stream(stream);
  validate_forward("StagingBackend::forward", staged.shape, args);
  const std::lock_guard lock(mutex_);
  Buffers& on_device = *buffers_;
  const int64_t num_lse = staged.shape.seqlen_q * staged.shape.num_heads_q;
  const std::vector<Range>& queries = staged.all_queries;
  AttnForwardArgs call = args;
  call.q = on_device.stage(kQ, args.q, queries);
  call.k = on_device.stage(kK, args.k, staged.seen_keys);
  call.v = on_device.stage(kV, args.v, staged.seen_keys);
  call.out = on_device.stage(kOut, args.out, args.accumulate ? queries : std::vector<Range>{});
  call.lse = on_device.stage(kLse, args.lse, num_lse, args.accumulate);
  call.max_logits = on_device.stage(kMaxLogits, args.max_logits, staged.shape.num_heads_q, args.accumulate);
  if (!args.sink.empty()) {
    call.sink.data = on_device.stage(kSink, args.sink.data, sink_size(args.sink, staged.shape), true);
  }
  backend_->forward(*staged.inner, call, memory_->stream());
  on_device.fetch(args.out, call.out, queries);
  on_device.fetch(args.lse, call.lse, num_lse);
  on_device.fetch(args.max_logits, call.max_logits, staged.shape.num_heads_q);
  memory_->synchronize();
}

void StagingBackend::backward(MaskSlot& slot, const AttnBackwardArgs& args, void* stream) const {
  StagedSlot& staged = as_staged(slot);
  require_no_stream(stream);
  validate_backward("StagingBackend::backward", staged.shape, args);
  require(args.delta == nullptr || caps().delta,
          "StagingBackend::backward: delta must be null, {} computes it from out (got memory)", name());
  const std::lock_guard lock(mutex_);
  Buffers& on_device = *buffers_;
  const std::vector<Range>& queries = staged.all_queries;
  const std::vector<Range> nothing;
  const std::vector<Range>& gradients = args.accumulate_dkv ? staged.seen_keys : nothing;
  AttnBackwardArgs call = args;
  call.q = on_device.stage(kQ, args.q, queries);
  call.k = on_device.stage(kK, args.k, staged.seen_keys);
  call.v = on_device.stage(kV, args.v, staged.seen_keys);
  const int64_t num_lse = staged.shape.seqlen_q * staged.shape.num_heads_q;
  if (args.delta == nullptr) call.out = on_device.stage(kOut, args.out, queries);
  call.dout = on_device.stage(kDout, args.dout, queries);
  call.lse = on_device.stage(kLse, args.lse, num_lse, true);
  if (args.delta != nullptr) call.delta = on_device.stage(kDelta, args.delta, num_lse, true);
  call.dq = on_device.stage(kDq, args.dq, args.accumulate_dq ? queries : nothing);
  call.dk = on_device.stage(kDk, args.dk, gradients);
  call.dv = on_device.stage(kDv, args.dv, gradients);
  const int64_t num_sinks = sink_size(args.sink, staged.shape);
  if (!args.sink.empty()) call.sink.data = on_device.stage(kSink, args.sink.data, num_sinks, true);
  call.dsink = on_device.stage(kDsink, args.dsink, num_sinks, false);
  backend_->backward(*staged.inner, call, memory_->stream());
  on_device.fetch(args.dq, call.dq, queries);
  on_device.fetch(args.dk, call.dk, args.accumulate_dkv ? staged.seen_keys : staged.all_keys);
  on_device.fetch(args.dv, call.dv, args.accumulate_dkv ? staged.seen_keys : staged.all_keys);
  on_device.fetch(args.dsink, call.dsink, num_sinks);
  memory_->synchronize();
}

}  // namespace tangram
