// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/report/timeline_svg.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/report/page.hpp"
#include "cli/text_table.hpp"

namespace tangram::cli {

namespace {

constexpr size_t kMaxRanks = 16;
constexpr double kWidth = 920, kLeft = 58, kRight = 14, kTop = 56, kRow = 40, kFoot = 46;
constexpr double kComputeHeight = 16, kTransferHeight = 6;
constexpr const char* kColors[] = {"#8a93a8", "#3563cf", "#e07b39", "#1f9d77",
                                   "#d6456b", "#8e6bd8", "#b08a12", "#2a9fc0"};
constexpr const char* kReturnColor = "#6b7280";
constexpr const char* kMemoryColor = "#3d4456";

constexpr const char* kStyle =
    "<style>.tl{--ink:#1d2230;--dim:#697084;--line:#e2dfd6;--bg:#fff;font:12px system-ui,-apple-system,'Segoe UI',"
    "Roboto,'DejaVu Sans',sans-serif}"
    "@media(prefers-color-scheme:dark){.tl{--ink:#e7e9f0;--dim:#9aa2b5;--line:#2f3646;--bg:#161a22}}"
    ".tl text{fill:var(--ink)}.tl .d{fill:var(--dim)}.tl .g{stroke:var(--line)}.tl .b{fill:var(--bg)}"
    ".tl .h{font-weight:640;font-size:15px}</style>";

const char* color_of(int stage) { return kColors[static_cast<size_t>(stage) % std::size(kColors)]; }

struct Scale {
  double end_s = 1;
  double x(double seconds) const { return kLeft + seconds / end_s * (kWidth - kLeft - kRight); }
};

// About six ticks, at 1, 2 or 5 times a power of ten.
double tick_step(double end_s) {
  const double raw = end_s / 6, magnitude = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * magnitude >= raw) return factor * magnitude;
  }
  return 10 * magnitude;
}

std::string tick_text(double seconds) {
  if (seconds == 0) return "0";
  if (seconds >= 1) return fmt::format("{:g} s", seconds);
  return seconds >= 1e-3 ? fmt::format("{:g} ms", seconds * 1e3) : fmt::format("{:g} µs", seconds * 1e6);
}

void draw_axis(const Scale& scale, double bottom, std::string& out) {
  const double step = tick_step(scale.end_s);
  for (int i = 0; i * step <= scale.end_s; ++i) {
    const double x = scale.x(i * step);
    out += fmt::format("<line class=\"g\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/>", x, kTop - 4, bottom);
    out += fmt::format("<text class=\"d\" x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", x, bottom + 15,
                       tick_text(i * step));
  }
}

void draw_event(const TimelineEvent& event, int place, const Scale& scale, std::string& out) {
  const double row = kTop + place * kRow;
  const bool is_thick = event.lane == Lane::kCompute || event.lane == Lane::kMemory;
  const double y = is_thick                        ? row
                   : event.lane == Lane::kTransfer ? row + kComputeHeight + 2
                                                   : row + kComputeHeight + 3 + kTransferHeight;
  const double width = std::max(0.7, scale.x(event.end_s) - scale.x(event.begin_s));
  out += fmt::format(
      "<rect x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\" rx=\"1.5\" fill=\"{}\"{}><title>rank {}, {}, "
      "{} {}: {}</title></rect>\n",
      scale.x(event.begin_s), y, width, is_thick ? kComputeHeight : kTransferHeight,
      event.lane == Lane::kReturn   ? kReturnColor
      : event.lane == Lane::kMemory ? kMemoryColor
                                    : color_of(event.stage),
      event.lane == Lane::kTransfer ? " fill-opacity=\".6\"" : "", event.rank, event.backward ? "backward" : "forward",
      event.lane == Lane::kMemory ? "copies of"
      : is_thick                  ? "compute"
                                  : "transfer",
      event.stage, html_escaped(seconds_text(event.end_s - event.begin_s)));
}

void draw_legend(int num_stages, double y, std::string& out) {
  double x = kLeft;
  const auto item = [&](const char* color, double opacity, double height, const std::string& text) {
    out +=
        fmt::format("<rect x=\"{}\" y=\"{}\" width=\"12\" height=\"{}\" rx=\"1.5\" fill=\"{}\" fill-opacity=\"{}\"/>",
                    x, y - height, height, color, opacity);
    out += fmt::format("<text x=\"{}\" y=\"{}\">{}</text>\n", x + 17, y, text);
    x += 30 + 6.6 * static_cast<double>(text.size());
  };
  for (int stage = 0; stage < std::min<int>(num_stages, std::size(kColors)); ++stage) {
    item(color_of(stage), 1, 9, fmt::format("compute {}", stage));
  }
  item(color_of(num_stages > 1 ? 1 : 0), 0.6, kTransferHeight, "its inputs move");
  item(kReturnColor, 1, kTransferHeight, "results move");
  item(kMemoryColor, 1, 9, "copies and sums");
}

}  // namespace

std::string svg_timeline(const std::vector<TimelineEvent>& events, const std::string& title) {
  Scale scale;
  int num_ranks = 0, num_stages = 0;
  double end_s = 1e-9, backward_s = -1;
  for (const TimelineEvent& event : events) {
    num_ranks = std::max(num_ranks, event.rank + 1);
    num_stages = std::max(num_stages, event.stage + 1);
    end_s = std::max(end_s, event.end_s);
    if (event.backward && (backward_s < 0 || event.begin_s < backward_s)) backward_s = event.begin_s;
  }
  scale.end_s = end_s;
  const std::vector<int> ranks = slowest_ranks(events, kMaxRanks);
  const int shown = static_cast<int>(ranks.size());
  const double bottom = kTop + shown * kRow;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"tl\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
      "role=\"img\">{2}<rect class=\"b\" width=\"{0}\" height=\"{1}\"/>\n",
      kWidth, bottom + kFoot, kStyle);
  svg += fmt::format("<text class=\"h\" x=\"{}\" y=\"20\">{}</text>\n", kLeft, html_escaped(title));
  draw_axis(scale, bottom, svg);
  for (int place = 0; place < shown; ++place) {
    const int rank = ranks[static_cast<size_t>(place)];
    svg += fmt::format("<text class=\"d\" x=\"4\" y=\"{}\">rank {}</text>\n", kTop + place * kRow + 13, rank);
    for (const TimelineEvent& event : events) {
      if (event.rank == rank) draw_event(event, place, scale, svg);
    }
  }
  if (backward_s >= 0) {
    const double x = scale.x(backward_s);
    svg += fmt::format(
        "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\" stroke=\"var(--dim)\" "
        "stroke-dasharray=\"3 3\"/><text class=\"d\" x=\"{3:.1f}\" y=\"{4}\" text-anchor=\"end\">forward"
        "</text><text class=\"d\" x=\"{5:.1f}\" y=\"{4}\">backward</text>\n",
        x, kTop - 14, bottom, x - 6, kTop - 10, x + 6);
  }
  draw_legend(num_stages, bottom + 36, svg);
  if (num_ranks > shown) {
    svg += fmt::format("<text class=\"d\" x=\"{}\" y=\"20\" text-anchor=\"end\">the {} slowest of {} ranks</text>\n",
                       kWidth - kRight, shown, num_ranks);
  }
  return svg + "</svg>\n";
}

}  // namespace tangram::cli
