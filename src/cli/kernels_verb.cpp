// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// `tangram kernels`: the GPU kernels of this build, and what head dims cost that they hold with room to spare.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "attn/kernel_catalog.hpp"
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

struct KernelsVerbOptions {
  bool json = false;
  std::string backend;
  std::string head_dims;
};

// What a pass computes for these dims: all columns of their class.
struct PassCost {
  double padding = 0;     // share of its operations; forward that of the columns of q, k and v
  double class_rate = 0;  // FLOP/s of the class's own dims beside those of head dim 128
  double rate = 0;        // of these, whose operations alone count
};

PassCost cost_of(const KernelCatalog& catalog, const HeadDims& dims, AttnPass pass) {
  const HeadDimClass row = *catalog.class_of(dims.head_dim, dims.head_dim_v);
  return {1 - flops_per_cell(dims.head_dim, dims.head_dim_v, pass) / flops_per_cell(row.head_dim, row.head_dim_v, pass),
          head_dim_factor(catalog.rates, row.head_dim, row.head_dim_v, pass),
          head_dim_factor(catalog.rates, dims.head_dim, dims.head_dim_v, pass)};
}

std::string dims_text(int head_dim, int head_dim_v) {
  return head_dim == head_dim_v ? fmt::format("{}", head_dim) : fmt::format("{}:{}", head_dim, head_dim_v);
}

std::vector<HeadDims> asked_head_dims(const KernelCatalog& catalog, const std::string& list) {
  if (list.empty()) return {};
  const std::vector<HeadDims> asked = parse_head_dims(list, "--head-dims");
  for (const HeadDims& dims : asked) {
    require(catalog.class_of(dims.head_dim, dims.head_dim_v).has_value(),
            "--head-dims: no GPU kernel holds these: they must be multiples of 8 up to {}; backend cpu takes any (got "
            "{})",
            catalog.largest_head_dim, dims_text(dims.head_dim, dims.head_dim_v));
  }
  return asked;
}

int total_kernels(const KernelCatalog& catalog, KernelSet held) {
  int total = 0;
  for (const KernelFamily& family : catalog.families) total += num_kernels(family, held);
  return total;
}

// Whether this build has them, and whether this machine can run them.
std::string held_text(const KernelCatalog& catalog) {
  const int all = total_kernels(catalog, KernelSet::kAll);
  switch (catalog.held) {
    case KernelSet::kNone:
      return fmt::format("This build has no GPU code and none of the {} kernels that others have.\n", all);
    case KernelSet::kSample:
      return fmt::format(
          "This build has a sample of {} of {} kernels ({}), in bfloat16: of those for any head dims only one class "
          "without softcap.\n",
          total_kernels(catalog, catalog.held), all, catalog.option);
    case KernelSet::kAll: break;
  }
  return fmt::format("This build has all {} kernels. They are part of it: nothing is compiled when it runs.\n", all);
}

AttnBackendInfo info_of(const KernelCatalog& catalog) {
  for (const AttnBackendInfo& info : list_attn_backends()) {
    if (info.name == catalog.backend) return info;
  }
  return {std::string(catalog.backend), false, "not in this build"};
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

std::string pass_text(const KernelCatalog& catalog, AttnPass pass) {
  const bool forward = pass == AttnPass::kForward;
  TextTable table({"head dims", forward ? "rows of an item" : "keys of an item",
                   forward ? "keys of a step" : "queries of a step", "warpgroups", "kernels", ""});
  for (const KernelFamily& family : catalog.families) {
    if (family.pass != pass) continue;
    const int all = family.num_kernels, here = num_kernels(family, catalog.held);
    table.add(
        {family_dims_text(family), fmt::format("{}", family.work_tile), with_softcap(family.step, family.step_softcap),
         fmt::format("{}", family.warpgroups),
         catalog.held == KernelSet::kSample && here < all ? fmt::format("{} of {}", here, all) : fmt::format("{}", all),
         remark_text(family)});
  }
  return fmt::format("\n{}\n{}",
                     forward ? "forward: with and without softcap, of whole tiles and of parts of them"
                             : "backward: with and without softcap, deterministic and not",
                     table.text());
}

std::string list_text(const KernelCatalog& catalog) {
  const AttnBackendInfo backend = info_of(catalog);
  std::string text = held_text(catalog);
  if (catalog.held != KernelSet::kNone) {
    text += fmt::format("Backend {} {}: {}\n", catalog.backend, backend.available ? "runs here" : "cannot run here",
                        backend.detail);
  }
  text += pass_text(catalog, AttnPass::kForward) + pass_text(catalog, AttnPass::kBackward);
  text += fmt::format(
      "\nHead dims are those of q and k, and of v where these are narrower (192:128); \"up to\" holds all multiples of "
      "8\nbelow too. All are in bfloat16 and float16; in parentheses: with softcap. Rows are query rows times the "
      "heads "
      "that\nshare a key head. What head dims cost: tangram kernels --head-dims 80\n");
  return text;
}

std::string costs_text(const KernelCatalog& catalog, const std::vector<HeadDims>& asked) {
  TextTable table({"head dims", "kernels", "padding forward", "backward", "rate forward", "backward"});
  for (const HeadDims& dims : asked) {
    const auto [head_dim, head_dim_v, exact] = *catalog.class_of(dims.head_dim, dims.head_dim_v);
    const PassCost forward = cost_of(catalog, dims, AttnPass::kForward);
    const PassCost backward = cost_of(catalog, dims, AttnPass::kBackward);
    const auto rate = [](const PassCost& cost) { return fmt::format("{:.2f} of {:.2f}", cost.rate, cost.class_rate); };
    const auto share = [](double of) { return fmt::format("{:.1f} %", 100 * of); };
    table.add({dims_text(dims.head_dim, dims.head_dim_v),
               (exact ? "" : "up to ") + dims_text(head_dim, head_dim_v) + (exact ? " exactly" : ""),
               share(forward.padding), share(backward.padding), rate(forward), rate(backward)});
  }
  return held_text(catalog) + "\n" + table.text() +
         "\nA kernel computes all columns of its class. Padding is the share of a pass's operations that is not yours, "
         "forward\nthat of the columns of q, k and v. Rates are FLOP/s on an H200 beside those of head dim 128: yours, "
         "with the\noperations of your columns alone, of what the class reaches without padding.\n";
}

const char* set_name(KernelSet held) {
  return held == KernelSet::kNone ? "none" : held == KernelSet::kSample ? "sample" : "all";
}

nlohmann::json families_json(const KernelCatalog& catalog) {
  nlohmann::json list = nlohmann::json::array();
  for (const KernelFamily& family : catalog.families) {
    const bool forward = family.pass == AttnPass::kForward;
    const bool sampled = catalog.held == KernelSet::kSample;
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
                    {"softcap", !sampled || family.exact},
                    {"deterministic", !forward},
                    {"parts", forward},
                    {"gathered", family.gathered},
                    {"num_kernels", num_kernels(family, catalog.held)},
                    {"num_kernels_of_all", family.num_kernels}});
  }
  return list;
}

nlohmann::json cost_json(const KernelCatalog& catalog, const HeadDims& dims) {
  const HeadDimClass row = *catalog.class_of(dims.head_dim, dims.head_dim_v);
  const auto pass = [&](AttnPass which) -> nlohmann::json {
    const PassCost cost = cost_of(catalog, dims, which);
    return {{"padding", cost.padding}, {"class_rate", cost.class_rate}, {"rate", cost.rate}};
  };
  return {{"head_dim", dims.head_dim},
          {"head_dim_v", dims.head_dim_v},
          {"class", {{"head_dim", row.head_dim}, {"head_dim_v", row.head_dim_v}}},
          {"exact", row.exact},
          {"forward", pass(AttnPass::kForward)},
          {"backward", pass(AttnPass::kBackward)}};
}

nlohmann::json kernels_json(const KernelCatalog& catalog, const std::vector<HeadDims>& asked) {
  const AttnBackendInfo backend = info_of(catalog);
  nlohmann::json json{{"version", kVersion},
                      {"backend", {{"name", backend.name}, {"available", backend.available}}},
                      {"held", set_name(catalog.held)},
                      {"num_kernels", total_kernels(catalog, catalog.held)},
                      {"kernels", families_json(catalog)}};
  json["backend"]["detail"] = backend.detail;
  for (const HeadDims& dims : asked) json["head_dims"].push_back(cost_json(catalog, dims));
  return json;
}

int kernels_main(const KernelsVerbOptions& options) {
  const std::vector<KernelCatalog> catalogs = kernel_catalogs();
  const KernelCatalog* const named = find_catalog(catalogs, options.backend);
  std::string names;
  for (const KernelCatalog& catalog : catalogs) names += (names.empty() ? "" : ", ") + std::string(catalog.backend);
  require(options.backend.empty() || named != nullptr,
          "--backend: must be one whose kernels are compiled with Tangram: {} (got '{}')", names, options.backend);
  const KernelCatalog& catalog = named == nullptr ? catalogs.front() : *named;
  const std::vector<HeadDims> asked = asked_head_dims(catalog, options.head_dims);
  print_text(options.json    ? kernels_json(catalog, asked).dump(2) + "\n"
             : asked.empty() ? list_text(catalog)
                             : costs_text(catalog, asked));
  return kOk;
}

}  // namespace

Verb add_kernels_verb(CLI::App& app) {
  auto options = std::make_shared<KernelsVerbOptions>();
  CLI::App* verb = app.add_subcommand("kernels", "List the compiled GPU kernels, and which one a head dim uses");
  verb->add_flag("--json", options->json, "print JSON instead of text");
  verb->add_option("--backend", options->backend, "of this backend (default: the first of those that have kernels)")
      ->type_name("NAME");
  verb->add_option("--head-dims", options->head_dims,
                   "say which kernels these take and what padding costs, as 80,192:128 (values of 128)")
      ->type_name("LIST");
  return {verb,
          [options] { return kernels_main(*options); },
          {"tangram kernels", "tangram kernels --head-dims 80,192:128", "tangram kernels --json"}};
}

}  // namespace tangram::cli
