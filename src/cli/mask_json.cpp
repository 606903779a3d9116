// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/mask_json.hpp"

#include <vector>

#include "cli/bounded_json.hpp"
#include "core/require.hpp"

namespace tangram::cli {

namespace {

constexpr int64_t kMaxSeqlen = int64_t{1} << 31;

constexpr std::string_view kCaseKeys[] = {
    "seqlen", "seqlen_q", "seqlen_k", "q_ranges", "k_ranges", "attn_types", "bands",
    // What describes a case without changing it.
    "mask", "name", "about", "meta", "area", "doc_lens", "cu_seqlens", "window", "block", "seed"};

constexpr std::string_view kTypeNames[] = {"full", "causal", "inv_causal", "bi_causal"};

const Json& list_at(const Json& object, const char* key, std::string_view what) {
  require(object.contains(key), "{}: needs '{}'", what, key);
  require(object[key].is_array(), "{}: '{}' must be a list (got {})", what, key, brief(object[key]));
  return object[key];
}

Range range_at(const Json& list, const char* key, size_t i, std::string_view what) {
  const Json& pair = list[i];
  require(pair.is_array() && pair.size() == 2, "{}: {}[{}] must be [begin, end] (got {})", what, key, i, brief(pair));
  const auto bound = [&](size_t side) {
    return whole_number(pair[side], what, fmt::format("{}[{}][{}]", key, i, side), -kMaxSeqlen, kMaxSeqlen);
  };
  return {bound(0), bound(1)};
}

MaskType type_at(const Json& value, size_t i, std::string_view what) {
  if (value.is_string()) {
    const std::string& name = value.get_ref<const std::string&>();
    for (int type = 0; type < 4; ++type) {
      if (name == kTypeNames[type]) return static_cast<MaskType>(type);
    }
    require(false, "{}: attn_types[{}] must be 0..3, full, causal, inv_causal or bi_causal (got '{}')", what, i,
            name.substr(0, 40));
  }
  return static_cast<MaskType>(whole_number(value, what, fmt::format("attn_types[{}]", i), 0, 3));
}

// A slice with its band, null for an open side.
AttnSlice banded(const Json& band, size_t i, Range q, Range k, std::string_view what) {
  require(band.is_array() && band.size() == 2, "{}: bands[{}] must be [min, max], null for an open side (got {})", what,
          i, brief(band));
  AttnSlice slice = AttnSlice::full(q, k);
  const auto side = [&](size_t s) {
    return whole_number(band[s], what, fmt::format("bands[{}][{}]", i, s), -kMaxSeqlen, kMaxSeqlen);
  };
  if (!band[0].is_null()) slice.min_diag = side(0);
  if (!band[1].is_null()) slice.max_diag = side(1);
  require(slice.min_diag <= slice.max_diag, "{}: bands[{}] must not be reversed (got [{}, {}])", what, i,
          slice.min_diag, slice.max_diag);
  return slice;
}

int64_t length_at(const Json& object, const char* key, std::string_view what) {
  return whole_number(object[key], what, key, 0, kMaxSeqlen);
}

Mask parse_case(const Json& object, std::string_view what) {
  require_known_keys(object, what, kCaseKeys);
  const bool has_both = object.contains("seqlen_q") && object.contains("seqlen_k");
  require(object.contains("seqlen") != (object.contains("seqlen_q") || object.contains("seqlen_k")) &&
              (object.contains("seqlen") || has_both),
          "{}: needs either 'seqlen' or both 'seqlen_q' and 'seqlen_k'", what);
  const int64_t seqlen_q = length_at(object, has_both ? "seqlen_q" : "seqlen", what);
  const int64_t seqlen_k = length_at(object, has_both ? "seqlen_k" : "seqlen", what);

  const Json& q_ranges = list_at(object, "q_ranges", what);
  const Json& k_ranges = list_at(object, "k_ranges", what);
  require(q_ranges.size() == k_ranges.size(), "{}: q_ranges and k_ranges must be equally long (got {} and {})", what,
          q_ranges.size(), k_ranges.size());
  require(!(object.contains("attn_types") && object.contains("bands")),
          "{}: 'attn_types' and 'bands' exclude each other", what);
  const char* shape_key = object.contains("bands") ? "bands" : object.contains("attn_types") ? "attn_types" : nullptr;
  const Json* shapes = shape_key == nullptr ? nullptr : &list_at(object, shape_key, what);
  require(shapes == nullptr || shapes->size() == q_ranges.size(), "{}: {} must be as long as q_ranges (got {} and {})",
          what, shape_key == nullptr ? "" : shape_key, shapes == nullptr ? 0 : shapes->size(), q_ranges.size());

  std::vector<AttnSlice> slices;
  slices.reserve(q_ranges.size());
  for (size_t i = 0; i < q_ranges.size(); ++i) {
    const Range q = range_at(q_ranges, "q_ranges", i, what);
    const Range k = range_at(k_ranges, "k_ranges", i, what);
    if (shapes == nullptr) {
      slices.push_back(AttnSlice::full(q, k));
    } else if (object.contains("bands")) {
      slices.push_back(banded((*shapes)[i], i, q, k, what));
    } else {
      slices.push_back(AttnSlice::from_type(type_at((*shapes)[i], i, what), q, k));
    }
  }
  Mask mask(seqlen_q, seqlen_k, std::move(slices));
  if (object.contains("area")) {
    const int64_t stated = whole_number(object["area"], what, "area", 0, int64_t{1} << 62);
    require(stated == mask.area(), "{}: 'area' must be the number of visible cells (got {}, the slices show {})", what,
            stated, mask.area());
  }
  return mask;
}

std::string name_of(const Json& entry) {
  for (const char* key : {"mask", "name"}) {
    if (entry.is_object() && entry.contains(key) && entry[key].is_string()) return entry[key].get<std::string>();
  }
  return "?";
}

int64_t seqlen_of(const Json& entry) {
  for (const char* key : {"seqlen", "seqlen_q"}) {
    if (entry.is_object() && entry.contains(key) && entry[key].is_number_integer()) return entry[key].get<int64_t>();
  }
  return -1;
}

const Json& find_case(const Json& cases, const std::string& which, std::string_view what) {
  require(cases.is_array() && !cases.empty(), "{}: 'cases' must be a list that is not empty", what);
  std::string names;
  const Json* found = nullptr;
  size_t num_found = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::string name = name_of(cases[i]);
    const std::string full_name = fmt::format("{}:{}", name, seqlen_of(cases[i]));
    if (which == full_name || which == name) {
      found = &cases[i];
      ++num_found;
    }
    if (i < 60) names += (i == 0 ? "" : ", ") + full_name;
    if (i == 60) names += ", ...";
  }
  require(!which.empty(), "{}: has several cases; choose one by --case NAME:SEQLEN out of {}", what, names);
  require(num_found > 0, "{}: has no case '{}'; there are {}", what, which, names);
  require(num_found == 1, "{}: --case '{}' must name one case (got {}); use NAME:SEQLEN out of {}", what, which,
          num_found, names);
  return *found;
}

// The only mask of a file, or the case of it that is wanted.
Mask one_mask(const Json& root, const std::string& which, std::string_view what) {
  require(root.is_object(), "{}: must be a JSON object (got {})", what, brief(root));
  if (!root.contains("cases")) {
    require(which.empty(), "{}: --case needs a file with 'cases'", what);
    return parse_case(root, what);
  }
  static constexpr std::string_view kFileKeys[] = {"cases", "meta", "about"};
  require_known_keys(root, what, kFileKeys);
  const Json& chosen = find_case(root["cases"], which, what);
  return parse_case(chosen, fmt::format("{}: case '{}:{}'", what, name_of(chosen), seqlen_of(chosen)));
}

}  // namespace

std::vector<Mask> parse_masks_json(std::string_view text, const std::string& which, std::string_view what) {
  const Json root = parse_bounded_json(text, what);
  if (!root.is_object() || !root.contains("head_masks")) return {one_mask(root, which, what)};
  static constexpr std::string_view kFileKeys[] = {"head_masks", "meta", "about"};
  require_known_keys(root, what, kFileKeys);
  require(which.empty(), "{}: --case needs a file with 'cases'", what);
  const Json& list = list_at(root, "head_masks", what);
  require(!list.empty(), "{}: 'head_masks' must not be empty", what);
  std::vector<Mask> masks;
  for (const Json& entry : list) {
    const std::string name = fmt::format("{}: head_masks[{}]", what, masks.size());
    require(entry.is_object(), "{}: must be a JSON object (got {})", name, brief(entry));
    masks.push_back(parse_case(entry, name));
  }
  return masks;
}

}  // namespace tangram::cli
