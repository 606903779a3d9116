// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/sequences_file.hpp"

#include <algorithm>
#include <numeric>
#include <string>

#include "cli/bounded_json.hpp"
#include "core/require.hpp"

namespace tangram::cli {

namespace {

constexpr int64_t kMaxRows = int64_t{1} << 31;
constexpr int64_t kDefaultMinShared = 64;
constexpr std::string_view kSequenceKeys[] = {"sequences", "min_shared", "lengths", "parents", "name", "about"};

struct TreeNode {
  int64_t length = 0;
  int64_t parent = -1;
  int64_t order = 0;  // among its siblings
};
using Forest = std::vector<TreeNode>;

const Json& array_at(const Json& object, const char* key, std::string_view what) {
  require(object.contains(key), "{}: needs '{}'", what, key);
  require(object[key].is_array(), "{}: '{}' must be a list (got {})", what, key, brief(object[key]));
  return object[key];
}

// Names are made for wrong values alone: files hold millions.
int64_t element(const Json& list, size_t i, std::string_view what, const std::string& name, int64_t min, int64_t max) {
  const Json& value = list[i];
  const bool fits =
      value.is_number_unsigned() ? value.get<uint64_t>() <= uint64_t{INT64_MAX} : value.is_number_integer();
  if (fits && min <= value.get<int64_t>() && value.get<int64_t>() <= max) return value.get<int64_t>();
  return whole_number(value, what, fmt::format("{}[{}]", name, i), min, max);
}

std::vector<std::vector<int64_t>> read_sequences(const Json& lists, std::string_view what) {
  std::vector<std::vector<int64_t>> sequences(lists.size());
  int64_t total = 0;
  for (size_t s = 0; s < lists.size(); ++s) {
    const std::string name = fmt::format("sequences[{}]", s);
    require(lists[s].is_array(), "{}: {} must be a list of tokens (got {})", what, name, brief(lists[s]));
    for (size_t i = 0; i < lists[s].size(); ++i) {
      sequences[s].push_back(element(lists[s], i, what, name, INT64_MIN, INT64_MAX));
    }
    total += static_cast<int64_t>(sequences[s].size());
  }
  require(total > 0, "{}: sequences must hold a token (got {} sequences without)", what, lists.size());
  return sequences;
}

// Sequences in lexical order are together as long as they share prefixes. A group becomes a node of the tokens that all
// its sequences share. Then it is cut where neighbours share less than `min_shared` tokens more.
Forest shared_prefixes(const std::vector<std::vector<int64_t>>& sequences, int64_t min_shared) {
  const size_t n = sequences.size();
  std::vector<int64_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return sequences[a] < sequences[b]; });
  const auto length = [&](size_t i) { return static_cast<int64_t>(sequences[order[i]].size()); };
  std::vector<int64_t> common(n, 0);  // tokens shared with the sequence before it in the order
  for (size_t i = 1; i < n; ++i) {
    const auto& a = sequences[order[i - 1]];
    const auto& b = sequences[order[i]];
    common[i] = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
  }

  struct Group {
    size_t begin = 0, end = 0;  // in `order`
    int64_t depth = 0;          // tokens up to and with the node above
    int64_t parent = -1;
  };
  Forest forest;
  std::vector<Group> open{{0, n, 0, -1}};
  while (!open.empty()) {
    const Group group = open.back();
    open.pop_back();
    for (size_t begin = group.begin, end = begin; begin < group.end; begin = end) {
      int64_t depth = length(begin), first = order[begin];
      for (end = begin + 1; end < group.end && common[end] >= group.depth + min_shared; ++end) {
        depth = std::min(depth, common[end]);
        first = std::min(first, order[end]);
      }
      int64_t node = group.parent;
      if (depth > group.depth) {
        node = static_cast<int64_t>(forest.size());
        forest.push_back({depth - group.depth, group.parent, first});
      }
      if (end - begin > 1) open.push_back({begin, end, depth, node});
    }
  }
  return forest;
}

Forest read_forest(const Json& object, std::string_view what) {
  const Json& lengths = array_at(object, "lengths", what);
  const Json& parents = array_at(object, "parents", what);
  require(lengths.size() == parents.size(), "{}: lengths and parents must be equally long (got {} and {})", what,
          lengths.size(), parents.size());
  const int64_t n = static_cast<int64_t>(lengths.size());
  Forest forest(lengths.size());
  for (int64_t i = 0; i < n; ++i) {
    forest[i] = {element(lengths, i, what, "lengths", 0, kMaxRows), element(parents, i, what, "parents", -1, n - 1), i};
  }
  return forest;
}

// Nodes without a way to a root are on a cycle or below one.
void require_no_cycle(const Forest& forest, size_t num_reached, const std::vector<bool>& reached,
                      std::string_view what) {
  if (num_reached == forest.size()) return;
  int64_t node = std::find(reached.begin(), reached.end(), false) - reached.begin();
  for (size_t step = 0; step < forest.size(); ++step) node = forest[node].parent;
  require(false,
          "{}: parents must not form a cycle; give one of its nodes the parent -1 (got node {} among its own "
          "ancestors)",
          what, node);
}

// Rows of a node and those below it, which follow.
struct TreeRows {
  int64_t begin = 0, end = 0, below = 0;
};

// A node and its only child are one: fewer slices, the same mask.
void append_joined(std::vector<TreeRows>& joined, const TreeRows& node) {
  if (node.begin == node.end) return;
  if (!joined.empty() && joined.back().end == node.begin && joined.back().below == node.below) {
    joined.back().end = node.end;
  } else {
    joined.push_back(node);
  }
}

Mask mask_of(const std::vector<TreeRows>& nodes, int64_t rows) {
  std::vector<AttnSlice> slices;
  for (const TreeRows& node : nodes) {
    const Range own{node.begin, node.end};
    slices.push_back(AttnSlice::causal(own, own));
    if (node.below > node.end) slices.push_back(AttnSlice::full({node.end, node.below}, own));
  }
  return Mask(rows, rows, slices);
}

PrefixTree tree_of(const Forest& forest, std::string_view what) {
  const size_t n = forest.size();
  std::vector<int64_t> siblings(n);  // by parent, then order
  std::iota(siblings.begin(), siblings.end(), 0);
  std::sort(siblings.begin(), siblings.end(), [&](int64_t a, int64_t b) {
    return std::pair(forest[a].parent, forest[a].order) < std::pair(forest[b].parent, forest[b].order);
  });
  std::vector<size_t> first_child(n + 2, 0);  // of node i - 1 in `siblings`; of roots at 0
  for (const TreeNode& node : forest) ++first_child[node.parent + 2];
  std::partial_sum(first_child.begin(), first_child.end(), first_child.begin());

  PrefixTree tree;
  std::vector<int64_t> preorder, open, depth(n, 0);
  std::vector<bool> reached(n, false);
  std::vector<TreeRows> rows(n);
  const auto open_children = [&](int64_t parent) {
    for (size_t i = first_child[parent + 2]; i-- > first_child[parent + 1];) open.push_back(siblings[i]);
  };
  int64_t total = 0;
  open_children(-1);
  while (!open.empty()) {
    const int64_t node = open.back();
    open.pop_back();
    reached[node] = true;
    preorder.push_back(node);
    rows[node] = {total, total + forest[node].length, total + forest[node].length};
    total += forest[node].length;
    require(total <= kMaxRows, "{}: rows must be at most 2^31; split the sequences over several files (got more)",
            what);
    depth[node] = forest[node].length + (forest[node].parent < 0 ? 0 : depth[forest[node].parent]);
    const bool is_leaf = first_child[node + 1] == first_child[node + 2];
    tree.num_sequences += is_leaf ? 1 : 0;
    tree.sequence_tokens += is_leaf ? depth[node] : 0;
    open_children(node);
  }
  require_no_cycle(forest, preorder.size(), reached, what);
  require(total > 0, "{}: lengths must have a positive one (got {} nodes without rows)", what, n);
  for (size_t i = n; i-- > 0;) {
    const int64_t parent = forest[preorder[i]].parent;
    if (parent >= 0) rows[parent].below = std::max(rows[parent].below, rows[preorder[i]].below);
  }
  std::vector<TreeRows> joined;
  for (const int64_t node : preorder) append_joined(joined, rows[node]);
  tree.mask = mask_of(joined, total);
  return tree;
}

}  // namespace

PrefixTree parse_sequences_json(std::string_view json, std::string_view what) {
  const Json object = parse_bounded_json(json, what);
  require_known_keys(object, what, kSequenceKeys);
  const bool has_tokens = object.contains("sequences");
  require(has_tokens != (object.contains("lengths") || object.contains("parents")),
          "{}: needs either 'sequences' or both 'lengths' and 'parents'", what);
  require(has_tokens || !object.contains("min_shared"), "{}: 'min_shared' goes with 'sequences'", what);
  if (!has_tokens) return tree_of(read_forest(object, what), what);
  const std::vector<std::vector<int64_t>> sequences = read_sequences(array_at(object, "sequences", what), what);
  const int64_t min_shared = object.contains("min_shared")
                                 ? whole_number(object["min_shared"], what, "min_shared", 1, kMaxRows)
                                 : kDefaultMinShared;
  PrefixTree tree = tree_of(shared_prefixes(sequences, min_shared), what);
  tree.num_sequences = static_cast<int64_t>(sequences.size());
  tree.sequence_tokens = 0;
  for (const auto& sequence : sequences) tree.sequence_tokens += static_cast<int64_t>(sequence.size());
  return tree;
}

}  // namespace tangram::cli
