// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// What `tangram doctor --measure` makes of times: these come from known constants.
#include "cli/measure/machine_measure.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>

#include "cli/measure/kernel_fit.hpp"
#include "plan/cost.hpp"
#include "tangram/error.hpp"

namespace tangram::cli {
namespace {

using ::testing::HasSubstr;

constexpr int kSampledHeads = 64;

/// Times as `entry` says, each off by up to `noise`.
std::vector<TimedCalls> timed_calls(const KernelEntry& entry, double noise) {
  const HeadConfig heads{kSampledHeads, 8, entry.head_dim, entry.head_dim_v, entry.dtype};
  std::mt19937 rng(3);
  std::uniform_real_distribution<double> error(1 - noise, 1 + noise);
  std::vector<TimedCalls> calls;
  for (std::vector<AttnSlice>& slices : gpu_sample_masks(16384)) {
    const auto keys = static_cast<double>(shape_of_call(slices, heads).seqlen_k);
    const auto seconds = [&](const KernelModel& kernel, AttnPass pass) {
      return error(rng) * call_seconds(kernel, of_one_call(count_work(slices, kernel), keys, kernel),
                                       {kSampledHeads, flops_per_head_cell(heads, pass), entry.workers});
    };
    const double forward_s = seconds(entry.forward, AttnPass::kForward);
    const double backward_s = seconds(entry.backward, AttnPass::kBackward);
    calls.push_back({std::move(slices), forward_s, backward_s});
  }
  return calls;
}

KernelEntry tiles_of(KernelEntry entry) {
  for (KernelModel* kernel : {&entry.forward, &entry.backward}) {
    *kernel = {.tile_rows = kernel->tile_rows,
               .tile_cols = kernel->tile_cols,
               .item_rows = kernel->item_rows,
               .items_by_keys = kernel->items_by_keys};
  }
  return entry;
}

void expect_near(const KernelModel& found, const KernelModel& known, double share) {
  const auto near = [&](double a, double b) { EXPECT_NEAR(a, b, share * b); };
  near(found.flops_per_s, known.flops_per_s);
  near(found.masked_tile_cost, known.masked_tile_cost);
  near(found.item_s, known.item_s);
  near(found.call_s, known.call_s);
  near(found.tail, known.tail);
  EXPECT_EQ(found.item_rows, known.item_rows);
  EXPECT_EQ(found.items_by_keys, known.items_by_keys);
}

TEST(KernelMeasurement, MasksTellAllConstantsApart) {
  const KernelEntry known = builtin_machine_file().kernels[0];
  const KernelMeasurement found = fit_entry(tiles_of(known), timed_calls(known, 0), kSampledHeads);
  expect_near(found.entry.forward, known.forward, 1e-6);
  expect_near(found.entry.backward, known.backward, 1e-6);
  EXPECT_LT(found.forward.max_error, 1e-6);
  EXPECT_THAT(errors_text(found), HasSubstr("0.0 % and 0.0 % (root mean square)"));
}

// Medians of times differ by about 1 % from run to run. Constants then differ more, which make up for each other, but
// not the times that they give.
TEST(KernelMeasurement, NoiseOfTimesMovesConstantsLittle) {
  const KernelEntry known = builtin_machine_file().kernels[0];
  const KernelMeasurement found = fit_entry(tiles_of(known), timed_calls(known, 0.01), kSampledHeads);
  expect_near(found.entry.forward, known.forward, 0.5);
  expect_near(found.entry.backward, known.backward, 0.5);
  EXPECT_LT(found.forward.max_error, 0.02);
  EXPECT_LT(found.backward.max_error, 0.02);
  const std::vector<TimedCalls> quiet = timed_calls(known, 0), fitted = timed_calls(found.entry, 0);
  for (size_t i = 0; i < quiet.size(); ++i) {
    EXPECT_NEAR(fitted[i].forward_s, quiet[i].forward_s, 0.01 * quiet[i].forward_s) << i;
    EXPECT_NEAR(fitted[i].backward_s, quiet[i].backward_s, 0.01 * quiet[i].backward_s) << i;
  }
}

/// Machine file as measured on two GPUs of that name.
MachineFile measured_on(const std::string& device) {
  MachineFile fresh;
  fresh.name = "2 x " + device;
  fresh.ranks_per_node = fresh.devices_per_node = 2;
  fresh.memory_bytes = 80'000'000'000;
  fresh.memory_bytes_per_s = 1e12;
  fresh.stage_overhead_s = 7e-6;
  for (const int head_dim : {64, 128}) {
    fresh.kernels.push_back(
        {"sm90", device, DType::kBFloat16, head_dim, head_dim, 114, "measured", h200::kForward, h200::kBackward});
  }
  fresh.links.push_back({"copy_engine", false, CommEngine::kCopyEngine, "measured", {1e11, 1e-6}, 0, 0});
  return fresh;
}

const KernelEntry* find_kernels(const MachineFile& file, const std::string& device, int head_dim) {
  const auto found = std::find_if(file.kernels.begin(), file.kernels.end(),
                                  [&](const KernelEntry& e) { return e.device == device && e.head_dim == head_dim; });
  return found == file.kernels.end() ? nullptr : &*found;
}

TEST(GpuMeasurement, StandsBesideWhatIsKnown) {
  MachineFile known;
  known.name = "my host";
  known.devices_per_node = 8;
  known.kernels.push_back({"cpu", "EPYC", DType::kFloat32, 128, 128, 1, "measured", {}, {}});
  known.links.push_back({"local", false, CommEngine::kHostThreads, "measured", {1e10, 1e-6}, 0, 0});
  const MachineFile file = merge_gpu_measurement(known, measured_on("NVIDIA H100"));
  EXPECT_EQ(file.name, "my host");
  EXPECT_EQ(file.ranks_per_node, 2);
  EXPECT_EQ(file.devices_per_node, 8);
  EXPECT_EQ(file.stage_overhead_s, 7e-6);
  EXPECT_EQ(file.kernels.size(), 3u);
  EXPECT_EQ(file.links.size(), 2u);
  ASSERT_NE(find_kernels(file, "NVIDIA H100", 64), nullptr);
  EXPECT_EQ(find_kernels(file, "NVIDIA H100", 64)->source, "measured");
  EXPECT_NE(find_kernels(file, "EPYC", 128), nullptr);
  EXPECT_EQ(merge_gpu_measurement(file, measured_on("NVIDIA H100")).kernels.size(), 3u);  // again: replaced
}

TEST(GpuMeasurement, TakesTheRestFromTheDefaultMachine) {
  const MachineFile file = merge_gpu_measurement({}, measured_on("NVIDIA H200"));
  EXPECT_EQ(file.name, "2 x NVIDIA H200");
  EXPECT_EQ(file.kernels.size(), 2u);
  EXPECT_EQ(find_kernels(file, "NVIDIA H200", 128)->source, "measured");
  EXPECT_EQ(file.links.size(), builtin_machine_file().links.size());
  // What the default machine's kernels take says nothing of another device.
  MachineFile fresh = measured_on("NVIDIA H100");
  fresh.kernels.erase(fresh.kernels.begin() + 1);
  EXPECT_EQ(merge_gpu_measurement({}, fresh).kernels.size(), 1u);
  fresh.kernels[0].device = "NVIDIA H200";
  ASSERT_NE(find_kernels(merge_gpu_measurement({}, fresh), "NVIDIA H200", 128), nullptr);
  const std::string json = machine_file_to_json(merge_gpu_measurement({}, fresh));
  EXPECT_EQ(machine_file_to_json(parse_machine_file(json, "file")), json);
}

TEST(GpuMeasurement, OfOneGpuSaysNothingOfNodes) {
  MachineFile fresh = measured_on("NVIDIA H200");
  fresh.links.clear();
  fresh.kernels.clear();
  fresh.ranks_per_node = fresh.devices_per_node = 1;
  const MachineFile file = merge_gpu_measurement({}, fresh), known = builtin_machine_file();
  EXPECT_EQ(file.ranks_per_node, known.ranks_per_node);
  EXPECT_EQ(file.devices_per_node, known.devices_per_node);
  EXPECT_EQ(file.links.size(), known.links.size());
  EXPECT_EQ(file.kernels.size(), known.kernels.size());
  EXPECT_EQ(file.stage_overhead_s, known.stage_overhead_s);
  EXPECT_EQ(file.memory_bytes_per_s, 1e12);
}

TEST(MachineFileOfNodes, KeepsWhatTransfersBetweenNodesTake) {
  MachineFile file = builtin_machine_file();
  LinkEntry& network = file.links.back();
  ASSERT_TRUE(network.between_nodes);
  network.link = {25e9, 20e-6};
  network.sms = 0;
  network.nics_per_node = 2;
  network.spine = 0.5;
  const std::string json = machine_file_to_json(file);
  const MachineFile read = parse_machine_file(json, "file");
  EXPECT_EQ(machine_file_to_json(read), json);
  const MachineModel machine = choose_machine(read, {}, {}, "file");
  EXPECT_EQ(machine.between.bytes_per_s, 25e9);
  EXPECT_EQ(machine.between.latency_s, 20e-6);
  EXPECT_EQ(machine.between_sms, 0);
  EXPECT_EQ(machine.nics_per_node, 2);
  EXPECT_EQ(machine.spine, 0.5);
}

TEST(MachineFileOfNodes, FilesWithoutTheseKeysHaveTheDefaults) {
  std::string json = machine_file_to_json(builtin_machine_file());
  for (const char* key : {"\"nics\"", "\"sms\"", "\"spine\""}) {
    const size_t at = json.find(key);
    ASSERT_NE(at, std::string::npos) << key;
    // The line, and the comma of the one before where it is the last of its object.
    const size_t begin = json.rfind('\n', at), end = json.find('\n', at);
    json.erase(begin, end - begin);
  }
  const size_t comma = json.find_last_not_of(" \n}", json.find('}', json.find("\"network\"")) + 1);
  if (comma != std::string::npos && json[comma] == ',') json.erase(comma, 1);
  const MachineModel machine = choose_machine(parse_machine_file(json, "file"), {}, {}, "file"), known;
  EXPECT_EQ(machine.between_sms, known.between_sms);
  EXPECT_EQ(machine.nics_per_node, 0);
  EXPECT_EQ(machine.spine, 1);
}

TEST(MachineFileOfNodes, RefusesKeysThatCannotBe) {
  const std::string json = machine_file_to_json(builtin_machine_file());
  const auto message_with = [&](const std::string& from, const std::string& to) {
    std::string text = json;
    text.replace(text.find(from), from.size(), to);
    try {
      parse_machine_file(text, "file");
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(message_with("\"spine\": 1.0", "\"spine\": 0").find("'spine' must lie in (0, 1] (got 0)"),
            std::string::npos);
  EXPECT_NE(message_with("\"scope\": \"between\"", "\"scope\": \"inside\"").find("is of links between nodes"),
            std::string::npos);
}

}  // namespace
}  // namespace tangram::cli
