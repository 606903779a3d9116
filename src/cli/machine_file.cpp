// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/machine_file.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <tuple>

#include "cli/bounded_json.hpp"
#include "core/require.hpp"
#include "machine/head_dim_rates.hpp"
#include "tangram/dtype.hpp"

namespace tangram::cli {

namespace {

constexpr const char* kFormat = "tangram-machine";
constexpr int kVersion = 1;
constexpr std::array kEngines{std::string_view("copy_engine"), std::string_view("workers"),
                              std::string_view("host_threads")};

// Reads one object with known keys.
class Reader {
 public:
  Reader(const Json& object, std::string what, std::span<const std::string_view> keys)
      : object_(object), what_(std::move(what)) {
    require_known_keys(object, what_, keys);
  }

  const Json& at(const char* key) const {
    require(object_.contains(key), "{}: needs '{}'", what_, key);
    return object_[key];
  }
  std::string text(const char* key) const {
    const Json& value = at(key);
    require(value.is_string(), "{}: '{}' must be text (got {})", what_, key, brief(value));
    return value.get<std::string>();
  }
  double number(const char* key, double min = 0) const {
    const Json& value = at(key);
    require(value.is_number(), "{}: '{}' must be a number (got {})", what_, key, brief(value));
    const double number = value.get<double>();
    require(std::isfinite(number) && number >= min, "{}: '{}' must be finite and at least {} (got {})", what_, key, min,
            number);
    return number;
  }
  int64_t whole(const char* key, int64_t max, int64_t min = 1) const {
    return whole_number(at(key), what_, key, min, max);
  }
  int count(const char* key) const { return static_cast<int>(whole(key, 1 << 20)); }
  bool has(const char* key) const { return object_.contains(key); }
  bool flag(const char* key) const {
    const Json& value = at(key);
    require(value.is_boolean(), "{}: '{}' must be true or false (got {})", what_, key, brief(value));
    return value.get<bool>();
  }
  const std::string& what() const { return what_; }

 private:
  const Json& object_;
  std::string what_;
};

const Json& list_at(const Reader& reader, const char* key) {
  const Json& list = reader.at(key);
  require(list.is_array(), "{}: '{}' must be a list (got {})", reader.what(), key, brief(list));
  return list;
}

Json kernel_json(const KernelModel& kernel) {
  Json json = {{"tile_rows", kernel.tile_rows},
               {"tile_cols", kernel.tile_cols},
               {"item_rows", kernel.item_rows},
               {"flops_per_s", kernel.flops_per_s},
               {"masked_tile_cost", kernel.masked_tile_cost},
               {"item_s", kernel.item_s},
               {"call_s", kernel.call_s},
               {"tail", kernel.tail}};
  if (kernel.items_by_keys) json["items_by_keys"] = true;
  return json;
}

KernelModel parse_kernel(const Json& object, const std::string& what) {
  constexpr std::string_view kKeys[] = {"tile_rows", "tile_cols", "item_rows", "flops_per_s",  "masked_tile_cost",
                                        "item_s",    "call_s",    "tail",      "items_by_keys"};
  const Reader reader(object, what, kKeys);
  KernelModel kernel{reader.count("tile_rows"),         reader.count("tile_cols"),
                     reader.count("item_rows"),         reader.number("flops_per_s", 1),
                     reader.number("masked_tile_cost"), reader.number("item_s"),
                     reader.number("call_s"),           reader.number("tail")};
  if (reader.has("items_by_keys")) kernel.items_by_keys = reader.flag("items_by_keys");
  return kernel;
}

KernelEntry parse_kernel_entry(const Json& object, const std::string& what) {
  constexpr std::string_view kKeys[] = {"backend", "device", "dtype",   "head_dim", "head_dim_v",
                                        "workers", "source", "forward", "backward"};
  const Reader reader(object, what, kKeys);
  KernelEntry entry;
  entry.backend = reader.text("backend");
  entry.device = reader.text("device");
  entry.dtype = parse_dtype(reader.text("dtype"));
  entry.head_dim = reader.count("head_dim");
  entry.head_dim_v = reader.has("head_dim_v") ? reader.count("head_dim_v") : entry.head_dim;
  entry.workers = reader.count("workers");
  entry.source = reader.text("source");
  entry.forward = parse_kernel(reader.at("forward"), what + ".forward");
  entry.backward = parse_kernel(reader.at("backward"), what + ".backward");
  return entry;
}

LinkEntry parse_link_entry(const Json& object, const std::string& what) {
  constexpr std::string_view kKeys[] = {"transport",   "scope",     "engine",       "source",
                                        "bytes_per_s", "latency_s", "comm_workers", "worker_link_bytes_per_s",
                                        "sms",         "nics",      "spine"};
  const Reader reader(object, what, kKeys);
  LinkEntry entry;
  entry.transport = reader.text("transport");
  const std::string scope = reader.text("scope");
  require(scope == "inside" || scope == "between", "{}: 'scope' must be inside or between (got '{}')", what, scope);
  entry.between_nodes = scope == "between";
  entry.engine = parse_comm_engine(reader.text("engine"), what + ": 'engine'");
  entry.source = reader.text("source");
  entry.link = {reader.number("bytes_per_s", 1), reader.number("latency_s")};
  if (entry.engine == CommEngine::kWorkers) {
    entry.comm_workers = reader.count("comm_workers");
    entry.worker_link_bytes_per_s = reader.number("worker_link_bytes_per_s", 1);
  }
  for (const char* key : {"sms", "nics", "spine"}) {
    require(entry.between_nodes || !reader.has(key), "{}: '{}' is of links between nodes (got scope '{}')", what, key,
            scope);
  }
  if (reader.has("sms")) entry.sms = static_cast<int>(reader.whole("sms", 1 << 16, 0));
  if (reader.has("nics")) entry.nics_per_node = static_cast<int>(reader.whole("nics", 1 << 16, 0));
  if (reader.has("spine")) entry.spine = reader.number("spine");
  require(entry.spine > 0 && entry.spine <= 1, "{}: 'spine' must lie in (0, 1] (got {})", what, entry.spine);
  return entry;
}

// Classes of a backend's kernels; none where kernels compute any head dim alike.
std::span<const HeadDimRate> classes_of(std::string_view backend) {
  return backend == h200::kBackend ? std::span<const HeadDimRate>(h200::kHeadDimRates) : std::span<const HeadDimRate>();
}

// The dimensions that a backend's kernels compute for these.
std::pair<int, int> computed_dims(std::string_view backend, int head_dim, int head_dim_v) {
  const HeadDimRate* const rate = find_head_dim_rate(classes_of(backend), head_dim, head_dim_v);
  return rate != nullptr ? std::pair(rate->head_dim, rate->head_dim_v) : std::pair(head_dim, head_dim_v);
}

// The first entry that `fits` and is cheapest by `cost`; null when none fits.
template <class Entry, class Fits, class Cost>
const Entry* find_entry(const std::vector<Entry>& entries, const Fits& fits, const Cost& cost) {
  const Entry* best = nullptr;
  for (const Entry& entry : entries) {
    if (fits(entry) && (best == nullptr || cost(entry) < cost(*best))) best = &entry;
  }
  return best;
}

}  // namespace

std::string_view to_string(CommEngine engine) { return kEngines[static_cast<size_t>(engine)]; }

std::string head_dim_text(int head_dim, int head_dim_v) {
  return head_dim == head_dim_v ? fmt::format("head dim {}", head_dim)
                                : fmt::format("head dim {} (values {})", head_dim, head_dim_v);
}

CommEngine parse_comm_engine(std::string_view name, std::string_view what) {
  const auto found = std::find(kEngines.begin(), kEngines.end(), name);
  require(found != kEngines.end(), "{}: must be copy_engine, workers or host_threads (got '{}')", what,
          name.substr(0, 40));
  return static_cast<CommEngine>(found - kEngines.begin());
}

MachineFile builtin_machine_file() {
  const MachineModel model;
  MachineFile file;
  file.name = model.name;
  file.ranks_per_node = model.ranks_per_node;
  file.devices_per_node = model.devices_per_node;
  file.memory_bytes = model.memory_bytes;
  file.memory_bytes_per_s = model.memory_bytes_per_s;
  file.stage_overhead_s = model.stage_overhead_s;
  file.kernels.push_back({std::string(h200::kBackend), "NVIDIA H200", DType::kBFloat16, model.head_dim,
                          model.head_dim_v, model.workers, "fitted to docs/results/data/sm90_h200.csv", model.forward,
                          model.backward});
  file.links.push_back({"copy_engine", false, CommEngine::kCopyEngine, "measured", model.inside, 0, 0});
  file.links.push_back({"workers", false, CommEngine::kWorkers, "measured", model.inside, model.comm_workers,
                        model.worker_link_bytes_per_s});
  file.links.push_back({"network", true, CommEngine::kCopyEngine, "assumed", model.between, 0, 0});
  return file;
}

std::string machine_file_to_json(const MachineFile& file) {
  Json kernels = Json::array();
  for (const KernelEntry& entry : file.kernels) {
    Json kernel = {{"backend", entry.backend},
                   {"device", entry.device},
                   {"dtype", std::string(tangram::to_string(entry.dtype))},
                   {"head_dim", entry.head_dim},
                   {"workers", entry.workers},
                   {"source", entry.source},
                   {"forward", kernel_json(entry.forward)},
                   {"backward", kernel_json(entry.backward)}};
    if (entry.head_dim_v != entry.head_dim) kernel["head_dim_v"] = entry.head_dim_v;
    kernels.push_back(std::move(kernel));
  }
  Json links = Json::array();
  for (const LinkEntry& entry : file.links) {
    Json link = {{"transport", entry.transport},
                 {"scope", entry.between_nodes ? "between" : "inside"},
                 {"engine", std::string(to_string(entry.engine))},
                 {"source", entry.source},
                 {"bytes_per_s", entry.link.bytes_per_s},
                 {"latency_s", entry.link.latency_s}};
    if (entry.engine == CommEngine::kWorkers) {
      link["comm_workers"] = entry.comm_workers;
      link["worker_link_bytes_per_s"] = entry.worker_link_bytes_per_s;
    }
    if (entry.between_nodes) {
      link["sms"] = entry.sms;
      link["nics"] = entry.nics_per_node;
      link["spine"] = entry.spine;
    }
    links.push_back(std::move(link));
  }
  const Json json = {{"format", kFormat},
                     {"version", kVersion},
                     {"name", file.name},
                     {"node",
                      {{"ranks", file.ranks_per_node},
                       {"devices", file.devices_per_node},
                       {"memory_bytes", file.memory_bytes},
                       {"memory_bytes_per_s", file.memory_bytes_per_s},
                       {"stage_overhead_s", file.stage_overhead_s}}},
                     {"kernels", kernels},
                     {"links", links}};
  return json.dump(2) + "\n";
}

MachineFile parse_machine_file(std::string_view json, std::string_view what) {
  constexpr std::string_view kKeys[] = {"format", "version", "name", "node", "kernels", "links"};
  constexpr std::string_view kNodeKeys[] = {"ranks", "devices", "memory_bytes", "memory_bytes_per_s",
                                            "stage_overhead_s"};
  const Json root = parse_bounded_json(json, what, {.max_bytes = 1 << 20, .max_values = 100'000});
  const Reader reader(root, std::string(what), kKeys);
  require(reader.text("format") == kFormat, "{}: 'format' must be '{}' (got '{}')", what, kFormat,
          reader.text("format").substr(0, 40));
  require(reader.whole("version", 1 << 20) == kVersion, "{}: 'version' must be {} (got {})", what, kVersion,
          brief(reader.at("version")));
  MachineFile file;
  file.name = reader.text("name");
  const Reader node(reader.at("node"), std::string(what) + ": node", kNodeKeys);
  file.ranks_per_node = node.count("ranks");
  file.devices_per_node = node.count("devices");
  file.memory_bytes = node.whole("memory_bytes", std::numeric_limits<int64_t>::max());
  file.memory_bytes_per_s = node.number("memory_bytes_per_s", 1);
  file.stage_overhead_s = node.number("stage_overhead_s");
  for (const Json& entry : list_at(reader, "kernels")) {
    file.kernels.push_back(parse_kernel_entry(entry, fmt::format("{}: kernels[{}]", what, file.kernels.size())));
  }
  for (const Json& entry : list_at(reader, "links")) {
    file.links.push_back(parse_link_entry(entry, fmt::format("{}: links[{}]", what, file.links.size())));
  }
  return file;
}

MachineModel choose_machine(const MachineFile& file, const MachineChoice& choice, const HeadConfig& heads,
                            std::string_view what) {
  const KernelEntry* const kernel = find_entry(
      file.kernels, [&](const KernelEntry& e) { return choice.backend.empty() || e.backend == choice.backend; },
      [&](const KernelEntry& e) {
        const auto [of_entry, of_entry_v] = computed_dims(e.backend, e.head_dim, e.head_dim_v);
        const auto [wanted, wanted_v] = computed_dims(e.backend, heads.head_dim, heads.head_dim_v);
        return std::tuple(e.dtype != heads.dtype, std::abs(of_entry - wanted), std::abs(of_entry_v - wanted_v));
      });
  require(kernel != nullptr, "{}: has no kernels of backend '{}'", what, choice.backend);
  const auto link_cost = [](const LinkEntry&) { return 0; };
  const LinkEntry* const inside = find_entry(
      file.links,
      [&](const LinkEntry& e) {
        return !e.between_nodes && (choice.transport.empty() || e.transport == choice.transport);
      },
      link_cost);
  require(inside != nullptr, "{}: has no links of transport '{}' inside a node", what, choice.transport);
  const LinkEntry* const between = find_entry(
      file.links, [](const LinkEntry& e) { return e.between_nodes; },
      [&](const LinkEntry& e) { return e.transport == choice.transport ? 0 : 1; });
  MachineModel machine;
  machine.name = file.name;
  machine.kernels = fmt::format("{}, {}, {}", kernel->backend, tangram::to_string(kernel->dtype),
                                head_dim_text(kernel->head_dim, kernel->head_dim_v));
  machine.forward = kernel->forward;
  machine.backward = kernel->backward;
  machine.head_dim = kernel->head_dim;
  machine.head_dim_v = kernel->head_dim_v;
  machine.head_dim_rates = relative_rates(classes_of(kernel->backend), kernel->head_dim, kernel->head_dim_v);
  if (!machine.head_dim_rates.empty() && computed_dims(kernel->backend, kernel->head_dim, kernel->head_dim_v) !=
                                             computed_dims(kernel->backend, heads.head_dim, heads.head_dim_v)) {
    machine.kernels += ", scaled to " + head_dim_text(heads.head_dim, heads.head_dim_v);
  }
  machine.workers = kernel->workers;
  machine.devices_per_node = file.devices_per_node;
  machine.inside = inside->link;
  // A machine of which no network is known is one node.
  machine.ranks_per_node = between != nullptr ? file.ranks_per_node : std::numeric_limits<int>::max() / 2;
  machine.between = between != nullptr ? between->link : inside->link;
  if (between != nullptr) {
    machine.between_sms = between->sms;
    machine.nics_per_node = between->nics_per_node;
    machine.spine = between->spine;
  }
  machine.stage_overhead_s = file.stage_overhead_s;
  machine.memory_bytes_per_s = file.memory_bytes_per_s;
  machine.memory_bytes = file.memory_bytes;
  machine.engine = inside->engine;
  if (inside->engine == CommEngine::kWorkers) {
    machine.comm_workers = inside->comm_workers;
    machine.worker_link_bytes_per_s = inside->worker_link_bytes_per_s;
  }
  return machine;
}

}  // namespace tangram::cli
