// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

// The constants of the default machine are what the committed tables give: fitted anew, each within 1 % of what is
// written (they have three digits), so that no table changes without them. benchmarks/machine/fit_kernels.cpp prints
// them.
#include <gtest/gtest.h>

#include "machine/measured_kernels.hpp"
#include "tangram/gpu_model.hpp"

namespace tangram {
namespace {

void expect_fit(const KernelModel& model, const test::KernelRows& rows) {
  SCOPED_TRACE(rows.pass);
  const auto samples = test::read_kernel_samples(support::result_path("sm90_h200.csv"), rows, model);
  EXPECT_EQ(samples.size(), 42u);
  const KernelFit fit = fit_kernel(model, samples, rows.flops(), h200::kMultiprocessors);
  const auto near = [](double written, double fitted) { EXPECT_NEAR(written, fitted, 0.01 * fitted); };
  near(model.flops_per_s, fit.model.flops_per_s);
  near(model.masked_tile_cost, fit.model.masked_tile_cost);
  near(model.item_s, fit.model.item_s);
  near(model.call_s, fit.model.call_s);
  near(model.tail, fit.model.tail);
  EXPECT_LT(fit.rms_error, 0.04);
  EXPECT_LT(fit.max_error, 0.11);
}

TEST(H200, KernelsAreThoseOfTheMeasuredTable) {
  expect_fit(h200::kForward, {.pass = "forward"});
  expect_fit(h200::kBackward, {.pass = "backward"});
}

TEST(H200, LinksAreThoseOfTheMeasuredTable) {
  const LinkFit fit = fit_link(test::read_link_samples(support::result_path("links_h200.csv"), "one_way_gb_s"));
  EXPECT_NEAR(h200::kInside.bytes_per_s, fit.link.bytes_per_s, 0.01 * fit.link.bytes_per_s);
  EXPECT_NEAR(h200::kInside.latency_s, fit.link.latency_s, 0.01 * fit.link.latency_s);
  EXPECT_LT(fit.rms_error, 0.02);
}

TEST(H200, SchedulesSeeTheSameDevice) {
  const MachineModel machine;
  EXPECT_EQ(GpuModel().multiprocessors, machine.workers);
  // A step of the forward kernel, 128 rows by 128 keys on one multiprocessor: as measured, about 1.5 us.
  EXPECT_NEAR(GpuModel().forward_tile_seconds(128 * 128, 512), 1.5e-6, 0.1e-6);
  EXPECT_EQ(GpuModel().forward_flops_per_s, machine.forward.flops_per_s);
  EXPECT_EQ(GpuModel().backward_flops_per_s, machine.backward.flops_per_s);
  EXPECT_EQ(GpuModel().link_bytes_per_s, machine.inside.bytes_per_s);
}

}  // namespace
}  // namespace tangram
