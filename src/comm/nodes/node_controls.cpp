// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/nodes/node_controls.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "comm/all_gather.hpp"
#include "comm/nodes/listener.hpp"
#include "tangram/error.hpp"

namespace tangram::comm {

namespace {

/// A folder in which a group out of `world` meets; its leader makes and removes it.
class Folder {
 public:
  /// Collective over `world`.
  Folder(Communicator& world, int leader) : owned_(world.rank() == leader) {
    std::array<char, 1024> name{};
    if (owned_) make(name);
    const auto names = all_gather(world, name, "nodes: where they meet");
    for (int rank = 0; rank < world.size(); ++rank) {
      if (names[static_cast<size_t>(rank)][0] != kFailed) continue;
      throw CommError(
          fmt::format("make_device_communicator: rank {} must be able to make a temporary folder in TMPDIR", rank));
    }
    path_ = names[static_cast<size_t>(leader)].data();
  }
  ~Folder() {
    std::error_code ignored;
    if (owned_) std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string address() const { return fmt::format("unix:{}", path_); }

 private:
  static constexpr char kFailed = '!';

  static void make(std::array<char, 1024>& name) {
    std::error_code failed;
    std::string path = (std::filesystem::temp_directory_path(failed) / "tangram-XXXXXX").string();
    if (failed || path.size() >= name.size() || ::mkdtemp(path.data()) == nullptr) path = kFailed;
    std::memcpy(name.data(), path.data(), path.size());
  }

  const bool owned_;
  std::string path_;
};

}  // namespace

NodeControls::NodeControls(Communicator& world, const NodeLayout& nodes, const NodeMap& map, double timeout_s) {
  const int node = nodes.node_of(world.rank()), place = nodes.place_of(world.rank());
  const Folder of_node(world, nodes.rank_at(node, 0)), of_rail(world, place);
  SocketGroupConfig rail{node, nodes.num_nodes(), of_rail.address(), timeout_s};
  if (map.num_nodes() > 1) {
    rail = meeting_by_tcp(world, {place, node, nodes.num_nodes()}, host_address(world), timeout_s);
  }
  node_.emplace(SocketGroupConfig{place, nodes.ranks_per_node, of_node.address(), timeout_s});
  across_.emplace(rail);
  world.barrier("nodes: met");
}

}  // namespace tangram::comm
