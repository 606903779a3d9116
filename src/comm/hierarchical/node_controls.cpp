// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "comm/hierarchical/node_controls.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "comm/all_gather.hpp"
#include "tangram/error.hpp"

namespace tangram::comm {

namespace {

/// Folders of all groups, in one that rank 0 makes and removes.
class Folders {
 public:
  Folders(Communicator& world, const NodeLayout& nodes) : owned_(world.rank() == 0) {
    std::array<char, 4096> name{};
    if (owned_) make(nodes, name);
    const auto names = all_gather(world, name, "nodes: where they meet");
    path_ = names[0].data();
    if (path_.empty()) throw CommError("make_device_communicator: rank 0 must be able to make a temporary folder");
  }
  ~Folders() {
    std::error_code ignored;
    if (owned_) std::filesystem::remove_all(path_, ignored);
  }
  Folders(const Folders&) = delete;
  Folders& operator=(const Folders&) = delete;
  std::string address(const char* kind, int number) const { return fmt::format("unix:{}/{}{}", path_, kind, number); }

 private:
  static void make(const NodeLayout& nodes, std::array<char, 4096>& name) {
    std::error_code failed;
    std::string path = (std::filesystem::temp_directory_path(failed) / "tangram-XXXXXX").string();
    if (failed || path.size() >= name.size() || ::mkdtemp(path.data()) == nullptr) return;
    for (int node = 0; node < nodes.num_nodes(); ++node) {
      std::filesystem::create_directory(fmt::format("{}/n{}", path, node), failed);
    }
    for (int place = 0; place < nodes.ranks_per_node; ++place) {
      std::filesystem::create_directory(fmt::format("{}/p{}", path, place), failed);
    }
    std::memcpy(name.data(), path.data(), path.size());
  }

  const bool owned_;
  std::string path_;
};

}  // namespace

NodeControls::NodeControls(Communicator& world, const NodeLayout& nodes, double timeout_s) {
  const Folders folders(world, nodes);
  const int node = nodes.node_of(world.rank()), place = nodes.place_of(world.rank());
  node_.emplace(SocketGroupConfig{place, nodes.ranks_per_node, folders.address("n", node), timeout_s});
  across_.emplace(SocketGroupConfig{node, nodes.num_nodes(), folders.address("p", place), timeout_s});
  world.barrier("nodes: met");
}

}  // namespace tangram::comm
