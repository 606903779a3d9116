// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// load_mask: from options to a mask.
#include <algorithm>
#include <initializer_list>
#include <vector>

#include "cli/bounded_json.hpp"
#include "cli/doc_lengths.hpp"
#include "cli/mask_json.hpp"
#include "cli/options.hpp"
#include "cli/sequences_file.hpp"
#include "cli/text_file.hpp"
#include "core/nearest_word.hpp"
#include "core/require.hpp"
#include "tangram/mask_builders.hpp"

namespace tangram::cli {

namespace {

constexpr int64_t kMaxFileBytes = int64_t{64} << 20;
constexpr int64_t kDefaultBlock = 2048;
constexpr int64_t kDefaultWindow = 1024;

constexpr std::string_view kFamilies[] = {"full",
                                          "causal",
                                          "sliding_window",
                                          "sliding_window_causal",
                                          "block_causal",
                                          "prefix_lm",
                                          "shared_prefix",
                                          "global_window",
                                          "varlen_full",
                                          "varlen_causal",
                                          "varlen_window",
                                          "varlen_block_causal",
                                          "varlen_prefix_lm"};

// Kinds of mask apart from where documents begin.
enum class Shape { kFull, kCausal, kWindow, kBlockCausal, kPrefixLm, kSharedPrefix, kGlobalWindow };

struct Family {
  Shape shape = Shape::kCausal;
  bool needs_documents = false;
};

Family parse_family(const std::string& name) {
  if (std::find(std::begin(kFamilies), std::end(kFamilies), name) == std::end(kFamilies)) {
    const std::string_view near = nearest_word(name, kFamilies);
    std::string list;
    for (const std::string_view family : kFamilies) list += (list.empty() ? "" : ", ") + std::string(family);
    require(false, "--family: unknown name '{}'{}; known are {}", name,
            near.empty() ? std::string() : fmt::format(" (did you mean '{}'?)", near), list);
  }
  constexpr std::string_view kVarlen = "varlen_";
  const bool varlen = name.rfind(kVarlen, 0) == 0;
  const std::string shape = varlen ? name.substr(kVarlen.size()) : name;
  if (shape == "full") return {Shape::kFull, varlen};
  if (shape == "causal") return {Shape::kCausal, varlen};
  if (shape == "window" || shape == "sliding_window" || shape == "sliding_window_causal") {
    return {Shape::kWindow, varlen};
  }
  if (shape == "block_causal") return {Shape::kBlockCausal, varlen};
  if (shape == "prefix_lm") return {Shape::kPrefixLm, varlen};
  if (shape == "shared_prefix") return {Shape::kSharedPrefix, false};
  return {Shape::kGlobalWindow, false};
}

Window parse_window(const std::string& text) {
  if (text.empty()) return {kDefaultWindow, 0};
  const std::vector<int64_t> sides = parse_number_list(text, "--window");
  require(sides.size() == 2, "--window: must be L,R (got '{}')", text);
  for (const int64_t side : sides) {
    require(-1 <= side && side <= int64_t{1} << 31, "--window: sides must lie in [-1, 2^31] (got '{}')", text);
  }
  return {sides[0], sides[1]};
}

bool is_list(const std::string& text) {
  return !is_standard_stream(text) && text.find_first_not_of("0123456789-, ") == std::string::npos;
}

std::vector<int64_t> drawn_documents(const MaskOptions& options, int64_t total_seqlen) {
  const LengthHistogram histogram =
      options.length_histogram.empty()
          ? shipped_length_histogram()
          : parse_length_histogram(read_text_file(options.length_histogram, "--length-histogram", kMaxFileBytes),
                                   "--length-histogram");
  return cumulative(draw_doc_lengths(histogram, total_seqlen, static_cast<uint64_t>(options.seed)), "--total-seqlen");
}

bool draws_documents(const MaskOptions& options, const Family& family) {
  return options.cu_seqlens.empty() && options.doc_lengths.empty() &&
         (options.total_seqlen != -1 || family.needs_documents);
}

// Borders of the documents, empty when none are given.
std::vector<int64_t> load_documents(const MaskOptions& options, const Family& family) {
  if (!options.cu_seqlens.empty()) {
    const std::string text = is_list(options.cu_seqlens)
                                 ? options.cu_seqlens
                                 : read_text_file(options.cu_seqlens, "--cu-seqlens", kMaxFileBytes);
    std::vector<int64_t> cu_seqlens = parse_number_list(text, "--cu-seqlens");
    require(cu_seqlens.size() >= 2, "--cu-seqlens: must hold 0 and at least one document's end (got {} numbers)",
            cu_seqlens.size());
    return cu_seqlens;
  }
  if (!options.doc_lengths.empty()) {
    return cumulative(
        parse_doc_lengths(read_text_file(options.doc_lengths, "--doc-lengths", kMaxFileBytes), "--doc-lengths"),
        "--doc-lengths");
  }
  if (!draws_documents(options, family)) return {};
  return drawn_documents(options, options.total_seqlen != -1 ? options.total_seqlen : options.seqlen);
}

// One prefix length for every document; a shorter document is prefix as a whole.
std::vector<int64_t> prefixes_of(const std::vector<int64_t>& documents, int64_t prefix) {
  require(prefix >= 0, "--prefix: must not be negative (got {})", prefix);
  std::vector<int64_t> prefixes;
  for (size_t i = 1; i < documents.size(); ++i) prefixes.push_back(std::min(prefix, documents[i] - documents[i - 1]));
  return prefixes;
}

Mask build(const MaskOptions& options, const Family& family, const std::vector<int64_t>& documents) {
  const bool packed = !documents.empty();
  const int64_t seqlen = options.seqlen;
  switch (family.shape) {
    case Shape::kFull: return packed ? varlen_mask(documents, false) : full_mask(seqlen, seqlen);
    case Shape::kCausal: return packed ? varlen_mask(documents, true) : causal_mask(seqlen, seqlen);
    case Shape::kWindow:
      return packed ? sliding_window_mask(documents, parse_window(options.window))
                    : sliding_window_mask(seqlen, parse_window(options.window));
    case Shape::kBlockCausal: {
      const int64_t block = options.block == -1 ? kDefaultBlock : options.block;
      return packed ? block_causal_mask(documents, block) : block_causal_mask(seqlen, block);
    }
    case Shape::kPrefixLm:
      require(options.prefix != -1, "--family prefix_lm: needs --prefix N");
      return packed ? varlen_prefix_lm_mask(documents, prefixes_of(documents, options.prefix))
                    : prefix_lm_mask(seqlen, options.prefix);
    case Shape::kSharedPrefix: {
      require(options.prefix != -1 && !options.continuations.empty(),
              "--family shared_prefix: needs --prefix N and --continuations LIST");
      return shared_prefix_mask(options.prefix, parse_number_list(options.continuations, "--continuations"));
    }
    case Shape::kGlobalWindow:
      require(options.num_global != -1, "--family global_window: needs --global N");
      return global_window_mask(seqlen, options.num_global, parse_window(options.window));
  }
  return {};
}

void require_one_source(const MaskOptions& options) {
  std::string given;
  int count = 0;
  const auto see = [&](bool is_given, const char* name) {
    if (!is_given) return;
    given += (count++ == 0 ? "" : ", ") + std::string(name);
  };
  see(!options.mask_file.empty(), "--mask");
  see(!options.cu_seqlens.empty(), "--cu-seqlens");
  see(!options.doc_lengths.empty(), "--doc-lengths");
  see(!options.sequences.empty(), "--sequences");
  see(options.total_seqlen != -1, "--total-seqlen");
  see(options.seqlen != -1 || (options.family == "shared_prefix" && count == 0), "--seqlen");
  require(count > 0 || options.family.empty(),
          "--family {}: needs a length: --seqlen N, --cu-seqlens LIST, --doc-lengths FILE or --total-seqlen N",
          options.family);
  require(count > 0,
          "mask: needs a source: --mask FILE, --family NAME --seqlen N, --cu-seqlens LIST, --doc-lengths FILE, "
          "--sequences FILE or --total-seqlen N");
  require(count == 1, "mask: needs one source (got {})", given);
  require(options.mask_file.empty() || options.family.empty(), "--family: cannot be combined with --mask");
  require(options.sequences.empty() || options.family.empty(), "--family: cannot be combined with --sequences");
  require(!options.mask_file.empty() || options.case_name.empty(), "--case: needs --mask FILE");
  require(options.seqlen == -1 || !options.family.empty(), "--seqlen: needs --family NAME");
  require(options.seqlen == -1 || options.seqlen >= 1, "--seqlen: must be positive (got {})", options.seqlen);
}

// Refuses what would have no effect. `family`: null for a mask out of a file.
void require_effect(const MaskOptions& options, const Family* family) {
  const auto check = [&](bool is_given, const char* name, std::initializer_list<Shape> shapes, const char* needed) {
    const bool has_effect = family != nullptr && std::find(shapes.begin(), shapes.end(), family->shape) != shapes.end();
    require(!is_given || has_effect, "{}: needs --family {}", name, needed);
  };
  check(!options.window.empty(), "--window", {Shape::kWindow, Shape::kGlobalWindow},
        "sliding_window, varlen_window or global_window");
  check(options.block != -1, "--block", {Shape::kBlockCausal}, "block_causal or varlen_block_causal");
  check(options.prefix != -1, "--prefix", {Shape::kPrefixLm, Shape::kSharedPrefix},
        "prefix_lm, varlen_prefix_lm or shared_prefix");
  check(!options.continuations.empty(), "--continuations", {Shape::kSharedPrefix}, "shared_prefix");
  check(options.num_global != -1, "--global", {Shape::kGlobalWindow}, "global_window");
  require(options.length_histogram.empty() || (family != nullptr && draws_documents(options, *family)),
          "--length-histogram: needs documents to draw: --total-seqlen N, or --family varlen_* with --seqlen N");
  require(family == nullptr || family->shape != Shape::kSharedPrefix || options.seqlen == -1,
          "--seqlen: follows from --prefix and --continuations (got {})", options.seqlen);
}

// A file may be called anything; what is shown of it is text that moves no terminal's cursor.
std::string printable(const std::string& text) {
  std::string name = Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace)).get<std::string>();
  std::replace_if(name.begin(), name.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return name;
}

}  // namespace

NamedMask load_mask(const MaskOptions& options) {
  require_one_source(options);
  require(options.seed >= 0, "--seed: must not be negative (got {})", options.seed);
  if (!options.mask_file.empty()) {
    require_effect(options, nullptr);
    const std::string what = fmt::format("--mask '{}'", options.mask_file);
    const std::string text = read_text_file(options.mask_file, "--mask", kMaxFileBytes);
    std::vector<Mask> masks = parse_masks_json(text, options.case_name, what);
    const std::string file = is_standard_stream(options.mask_file) ? "standard input" : options.mask_file;
    NamedMask named{masks[0], printable(options.case_name.empty() ? file : options.case_name)};
    if (masks.size() > 1) named.of_heads = std::move(masks);
    return named;
  }
  if (!options.sequences.empty()) {
    require_effect(options, nullptr);
    const PrefixTree tree = parse_sequences_json(read_text_file(options.sequences, "--sequences", kMaxFileBytes),
                                                 fmt::format("--sequences '{}'", options.sequences));
    return {tree.mask, fmt::format("prefix tree, {} sequences of {} tokens in {} rows", tree.num_sequences,
                                   tree.sequence_tokens, tree.mask.seqlen_q())};
  }
  const Family family = options.family.empty() ? Family{Shape::kCausal, true} : parse_family(options.family);
  require_effect(options, &family);
  const std::vector<int64_t> documents = load_documents(options, family);
  const bool whole = family.shape == Shape::kSharedPrefix || family.shape == Shape::kGlobalWindow;
  require(documents.empty() || !whole, "--family {}: cannot be combined with documents", options.family);
  NamedMask named{build(options, family, documents), options.family.empty() ? "causal" : options.family};
  if (!documents.empty()) named.name += fmt::format(", {} documents", documents.size() - 1);
  return named;
}

}  // namespace tangram::cli
