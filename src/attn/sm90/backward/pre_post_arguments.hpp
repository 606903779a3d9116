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

/// Sets the arguments of query rows: out, dout and lse.
template <typename Edge>
void fill_rows(Edge& pre_post, const AttnBackwardArgs& args) {
  pre_post.out = args.out.data;
  pre_post.dout = args.dout.data;
  pre_post.lse = args.lse;
  pre_post.out_row_stride = args.out.row_stride;
  pre_post.out_head_stride = args.out.head_stride;
  pre_post.dout_row_stride = args.dout.row_stride;
  pre_post.dout_head_stride = args.dout.head_stride;
  pre_post.out_float32 = args.delta == nullptr && args.out.dtype == DType::kFloat32;
}

/// Where the gradients of keys go, for kernels that make them of sums.
template <typename Edge>
void fill_key_gradients(Edge& pre_post, const AttnBackwardArgs& args) {
  pre_post.dk = args.dk.data;
  pre_post.dv = args.dv.data;
  pre_post.dk_row_stride = args.dk.row_stride;
  pre_post.dk_head_stride = args.dk.head_stride;
  pre_post.dv_row_stride = args.dv.row_stride;
  pre_post.dv_head_stride = args.dv.head_stride;
  pre_post.dkv_type = grad_type(args.dk);
}

}  // namespace tangram::sm90::backward
