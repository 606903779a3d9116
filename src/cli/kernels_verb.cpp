// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// `tangram kernels`: the GPU kernels of this build, and what head dims cost that they hold with room to spare.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "attn/sm90/common/shapes.hpp"
#include "attn/sm90/kernel_list.hpp"
#include "cli/exit_code.hpp"
#include "cli/measure/head_dims.hpp"
#include "cli/text_file.hpp"
#include "cli/text_table.hpp"
#include "cli/verbs.hpp"
#include "core/require.hpp"
#include "machine/head_dim_rates.hpp"
#include "tangram/backends.hpp"
#include "tangram/version.hpp"

namespace tangram::cli {

namespace {

using sm90::KernelFamily;
using sm90::KernelSet;

struct KernelsVerbOptions {
  bool json = false;
  std::string head_dims;
};

// What a pass computes for these dims: all columns of their class.
struct PassCost {
  double padding = 0;     // share of its operations; forward that of the columns of q, k and v
  double class_rate = 0;  // FLOP/s of the class's own dims beside those of head dim 128
  double rate = 0;        // of these, whose operations alone count
};

PassCost cost_of(const HeadDims& dims, AttnPass pass) {
  const sm90::ShapeClass& row = sm90::shape_class(dims.head_dim, dims.head_dim_v);
  return {1 - flops_per_cell(dims.head_dim, dims.head_dim_v, pass) / flops_per_cell(row.head_dim, row.head_dim_v, pass),
          head_dim_factor(h200::kHeadDimRates, row.head_dim, row.head_dim_v, pass),
          head_dim_factor(h200::kHeadDimRates, dims.head_dim, dims.head_dim_v, pass)};
}

std::string dims_text(int head_dim, int head_dim_v) {
  return head_dim == head_dim_v ? fmt::format("{}", head_dim) : fmt::format("{}:{}", head_dim, head_dim_v);
}

std::vector<HeadDims> asked_head_dims(const std::string& list) {
  if (list.empty()) return {};
  const std::vector<HeadDims> asked = parse_head_dims(list, "--head-dims");
  for (const HeadDims& dims : asked) {
    require(sm90::find_shape_class(dims.head_dim, dims.head_dim_v) != nullptr,
            "--head-dims: no GPU kernel holds these: they must be multiples of 8 up to {}; backend cpu takes any (got "
            "{})",
            sm90::kLargestHeadDim, dims_text(dims.head_dim, dims.head_dim_v));
  }
  return asked;
}

int total_kernels(const std::vector<KernelFamily>& list, KernelSet held) {
  int total = 0;
  for (const KernelFamily& family : list) total += num_kernels(family, held);
  return total;
}

// Whether this build has them, and whether this machine can run them.
std::string held_text(KernelSet held) {
  const std::vector<KernelFamily> list = sm90::list_kernels();
  const int all = total_kernels(list, KernelSet::kAll);
  switch (held) {
    case KernelSet::kNone:
      return fmt::format("This build has no GPU code and none of the {} kernels that others have.\n", all);
    case KernelSet::kSample:
      return fmt::format(
          "This build has a sample of {} of {} kernels (TANGRAM_SM90_KERNELS): of those for any head dims only "
          "bfloat16 without softcap.\n",
          total_kernels(list, held), all);
    case KernelSet::kAll: break;
  }
  return fmt::format("This build has all {} kernels. They are part of it: nothing is compiled when it runs.\n", all);
}

AttnBackendInfo sm90_backend() {
  for (const AttnBackendInfo& info : list_attn_backends()) {
    if (info.name == "sm90") return info;
  }
  return {"sm90", false, "not in this build"};
}

std::string family_dims_text(const KernelFamily& family) {
  const std::string dims = dims_text(family.head_dim, family.head_dim_v);
  return family.exact ? dims + " exactly" : "up to " + dims;
}

std::string with_softcap(int plain, int softcap) {
  return plain == softcap ? fmt::format("{}", plain) : fmt::format("{} ({})", plain, softcap);
}

std::string remark_text(const KernelFamily& family) {
  if (family.min_rows > 0) return fmt::format("from {} rows times heads", with_commas(family.min_rows));
  if (family.gathered) return "also gathers blocks of keys";
  return family.kernels_a_call > 1 ? fmt::format("{} kernels a call", family.kernels_a_call) : "";
}

std::string pass_text(AttnPass pass, KernelSet held) {
  const bool forward = pass == AttnPass::kForward;
  TextTable table({"head dims", forward ? "rows of an item" : "keys of an item",
                   forward ? "keys of a step" : "queries of a step", "warpgroups", "kernels", ""});
  for (const KernelFamily& family : sm90::list_kernels()) {
    if (family.pass != pass) continue;
    const int all = family.num_kernels, here = num_kernels(family, held);
    table.add({family_dims_text(family), fmt::format("{}", family.work_tile),
               with_softcap(family.step, family.step_softcap), fmt::format("{}", family.warpgroups),
               held == KernelSet::kSample && here < all ? fmt::format("{} of {}", here, all) : fmt::format("{}", all),
               remark_text(family)});
  }
  return fmt::format("\n{}\n{}",
                     forward ? "forward: with and without softcap, of whole tiles and of parts of them"
                             : "backward: with and without softcap, deterministic and not",
                     table.text());
}

std::string list_text(KernelSet held) {
  const AttnBackendInfo backend = sm90_backend();
  std::string text = held_text(held);
  if (held != KernelSet::kNone) {
    text += fmt::format("Backend sm90 {}: {}\n", backend.available ? "runs here" : "cannot run here", backend.detail);
  }
  text += pass_text(AttnPass::kForward, held) + pass_text(AttnPass::kBackward, held);
  text += fmt::format(
      "\nHead dims are those of q and k, and of v where these are narrower (192:128); \"up to\" holds all multiples of "
      "8\nbelow too. All are in bfloat16 and float16; in parentheses: with softcap. Rows are query rows times the "
      "heads "
      "that\nshare a key head. What head dims cost: tangram kernels --head-dims 80\n");
  return text;
}

std::string costs_text(const std::vector<HeadDims>& asked, KernelSet held) {
  TextTable table({"head dims", "kernels", "padding forward", "backward", "rate forward", "backward"});
  for (const HeadDims& dims : asked) {
    const sm90::ShapeClass& row = sm90::shape_class(dims.head_dim, dims.head_dim_v);
    const bool exact = sm90::has_exact_kernels(dims.head_dim, dims.head_dim_v);
    const PassCost forward = cost_of(dims, AttnPass::kForward), backward = cost_of(dims, AttnPass::kBackward);
    const auto rate = [](const PassCost& cost) { return fmt::format("{:.2f} of {:.2f}", cost.rate, cost.class_rate); };
    const auto share = [](double of) { return fmt::format("{:.1f} %", 100 * of); };
    table.add({dims_text(dims.head_dim, dims.head_dim_v),
               (exact ? "" : "up to ") + dims_text(row.head_dim, row.head_dim_v) + (exact ? " exactly" : ""),
               share(forward.padding), share(backward.padding), rate(forward), rate(backward)});
  }
  return held_text(held) + "\n" + table.text() +
         "\nA kernel computes all columns of its class. Padding is the share of a pass's operations that is not yours, "
         "forward\nthat of the columns of q, k and v. Rates are FLOP/s on an H200 beside those of head dim 128: yours, "
         "with the\noperations of your columns alone, of what the class reaches without padding.\n";
}

const char* set_name(KernelSet held) {
  return held == KernelSet::kNone ? "none" : held == KernelSet::kSample ? "sample" : "all";
}

nlohmann::json families_json(KernelSet held) {
  nlohmann::json list = nlohmann::json::array();
  for (const KernelFamily& family : sm90::list_kernels()) {
    const bool forward = family.pass == AttnPass::kForward;
    const bool sampled = held == KernelSet::kSample && !family.exact;
    list.push_back({{"pass", forward ? "forward" : "backward"},
                    {"head_dim", family.head_dim},
                    {"head_dim_v", family.head_dim_v},
                    {"exact", family.exact},
                    {"min_rows", family.min_rows},
                    {forward ? "work_tile_rows" : "work_tile_keys", family.work_tile},
                    {forward ? "step_keys" : "step_queries", family.step},
                    {forward ? "step_keys_softcap" : "step_queries_softcap", family.step_softcap},
                    {"warpgroups", family.warpgroups},
                    {"kernels_a_call", family.kernels_a_call},
                    {"dtypes", sampled ? nlohmann::json{"bfloat16"} : nlohmann::json{"bfloat16", "float16"}},
                    {"softcap", !sampled},
                    {"deterministic", !forward},
                    {"parts", forward},
                    {"gathered", family.gathered},
                    {"num_kernels", num_kernels(family, held)},
                    {"num_kernels_of_all", family.num_kernels}});
  }
  return list;
}

nlohmann::json cost_json(const HeadDims& dims) {
  const sm90::ShapeClass& row = sm90::shape_class(dims.head_dim, dims.head_dim_v);
  const auto pass = [&](AttnPass which) -> nlohmann::json {
    const PassCost cost = cost_of(dims, which);
    return {{"padding", cost.padding}, {"class_rate", cost.class_rate}, {"rate", cost.rate}};
  };
  return {{"head_dim", dims.head_dim},
          {"head_dim_v", dims.head_dim_v},
          {"class", {{"head_dim", row.head_dim}, {"head_dim_v", row.head_dim_v}}},
          {"exact", sm90::has_exact_kernels(dims.head_dim, dims.head_dim_v)},
          {"forward", pass(AttnPass::kForward)},
          {"backward", pass(AttnPass::kBackward)}};
}

nlohmann::json kernels_json(const std::vector<HeadDims>& asked, KernelSet held) {
  const AttnBackendInfo backend = sm90_backend();
  nlohmann::json json{{"version", kVersion},
                      {"backend", {{"name", backend.name}, {"available", backend.available}}},
                      {"held", set_name(held)},
                      {"num_kernels", total_kernels(sm90::list_kernels(), held)},
                      {"kernels", families_json(held)}};
  json["backend"]["detail"] = backend.detail;
  for (const HeadDims& dims : asked) json["head_dims"].push_back(cost_json(dims));
  return json;
}

int kernels_main(const KernelsVerbOptions& options) {
  const std::vector<HeadDims> asked = asked_head_dims(options.head_dims);
  const KernelSet held = sm90::kernels_of_build();
  print_text(options.json    ? kernels_json(asked, held).dump(2) + "\n"
             : asked.empty() ? list_text(held)
                             : costs_text(asked, held));
  return kOk;
}

}  // namespace

Verb add_kernels_verb(CLI::App& app) {
  auto options = std::make_shared<KernelsVerbOptions>();
  CLI::App* verb = app.add_subcommand("kernels", "List the compiled GPU kernels, and which one a head dim uses");
  verb->add_flag("--json", options->json, "print JSON instead of text");
  verb->add_option("--head-dims", options->head_dims,
                   "say which kernels these take and what padding costs, as 80,192:128 (values of 128)")
      ->type_name("LIST");
  return {verb,
          [options] { return kernels_main(*options); },
          {"tangram kernels", "tangram kernels --head-dims 80,192:128", "tangram kernels --json"}};
}

}  // namespace tangram::cli
