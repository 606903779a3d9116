// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What the small kernels before and after a backward pass are told of the tensors of a call, alike for all passes.
#pragma once

#include "attn/sm90/backward/params.hpp"
#include "tangram/attention.hpp"

namespace tangram::sm90::backward {

inline GradType grad_type(const TensorView& view) {
  return view.dtype == DType::kFloat32 ? GradType::kFloat32 : GradType::kInput;
}

/// What rows of queries have: out, dout and lse.
template <typename Edge>
void fill_rows(Edge& edge, const AttnBackwardArgs& args) {
  edge.out = args.out.data;
  edge.dout = args.dout.data;
  edge.lse = args.lse;
  edge.out_row_stride = args.out.row_stride;
  edge.out_head_stride = args.out.head_stride;
  edge.dout_row_stride = args.dout.row_stride;
  edge.dout_head_stride = args.dout.head_stride;
  edge.out_float32 = args.delta == nullptr && args.out.dtype == DType::kFloat32;
}

/// Where the gradients of keys go, for kernels that make them of sums.
template <typename Edge>
void fill_key_gradients(Edge& edge, const AttnBackwardArgs& args) {
  edge.dk = args.dk.data;
  edge.dv = args.dv.data;
  edge.dk_row_stride = args.dk.row_stride;
  edge.dk_head_stride = args.dk.head_stride;
  edge.dv_row_stride = args.dv.row_stride;
  edge.dv_head_stride = args.dv.head_stride;
  edge.dkv_type = grad_type(args.dk);
}

}  // namespace tangram::sm90::backward
