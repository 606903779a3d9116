// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/figure_csv.hpp"

#include <fmt/format.h>

#include "tangram/dtype.hpp"
#include "tangram/version.hpp"

namespace tangram::cli {

namespace {

std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) result += c == '"' ? std::string("\"\"") : std::string(1, c);
  return result + "\"";
}

}  // namespace

FigureCsv::FigureCsv(std::string_view machine)
    : prefix_(fmt::format("{},{}", tangram::kVersion, quoted(machine))),
      text_(
          "version,machine,mask,seqlen_q,seqlen_k,cp_size,chunk_size,heads_q,heads_kv,head_dim,head_dim_v,dtype,"
          "backend,"
          "transport,strategy,figure,unit,value\n") {}

void FigureCsv::add(const FigureContext& context, std::string_view figure, std::string_view unit, double value) {
  const HeadConfig& heads = context.heads;
  text_ += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{:.9g}\n", prefix_, cli::quoted(context.mask),
                       context.seqlen_q, context.seqlen_k, context.cp_size, context.chunk_size, heads.num_heads_q,
                       heads.num_heads_kv, heads.head_dim, heads.head_dim_v, to_string(heads.dtype), context.backend,
                       context.transport, context.strategy, figure, unit, value);
}

}  // namespace tangram::cli
