// SPDX-FileCopyrightText: 2026 The Tangram authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/report/chart.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/report/page.hpp"
#include "cli/text_table.hpp"

namespace tangram::cli {

namespace {

constexpr double kPanelWidth = 440, kPanelHeight = 300;
constexpr double kLeft = 62, kRight = 16, kTop = 40, kBottom = 44;
constexpr double kHead = 62;  // title and a line of the legend
constexpr double kLegendLine = 18;
constexpr const char* kColors[] = {"#3563cf", "#8e6bd8", "#e07b39", "#1f9d77", "#d6456b",
                                   "#b08a12", "#2a9fc0", "#8a6350", "#6b8e23", "#9a5f8f"};
constexpr const char* kDashes[] = {"", "7 3", "", "3 3", "", "7 3", "", "3 3", "", "7 3"};

constexpr const char* kStyle =
    "<style>.tg{--ink:#1d2230;--dim:#697084;--line:#e2dfd6;--bg:#fff;font:12px system-ui,-apple-system,'Segoe UI',"
    "Roboto,'DejaVu Sans',sans-serif}"
    "@media(prefers-color-scheme:dark){.tg{--ink:#e7e9f0;--dim:#9aa2b5;--line:#2f3646;--bg:#161a22}}"
    ":root[data-theme=dark] .tg{--ink:#e7e9f0;--dim:#9aa2b5;--line:#2f3646;--bg:#1a1e28}"
    ":root[data-theme=light] .tg{--ink:#1d2230;--dim:#697084;--line:#e2dfd6;--bg:#fff}"
    ".tg text{fill:var(--ink)}.tg .d{fill:var(--dim)}.tg .g{stroke:var(--line)}.tg .b{fill:var(--bg)}"
    ".tg .t{font-weight:640;font-size:13px}.tg .h{font-weight:640;font-size:16px}</style>";

std::string tick_text(double value, AxisUnit unit) {
  switch (unit) {
    case AxisUnit::kSeconds:
      if (value >= 1) return fmt::format("{:g} s", value);
      if (value >= 1e-3) return fmt::format("{:g} ms", value * 1e3);
      return fmt::format("{:g} µs", value * 1e6);
    case AxisUnit::kBytes: {
      const char* const names[] = {"B", "KB", "MB", "GB", "TB", "PB"};
      int unit_idx = 0;
      for (; value >= 1000 && unit_idx < 5; ++unit_idx) value /= 1000;
      return fmt::format("{:g} {}", value, names[unit_idx]);
    }
    case AxisUnit::kPercent: return fmt::format("{:g} %", value * 100);
    case AxisUnit::kNumber: break;
  }
  return fmt::format("{:g}", value);
}

std::string x_text(double value) {
  const int64_t whole = std::llround(value);
  if (whole >= 1 << 20 && whole % (1 << 20) == 0) return fmt::format("{}M", whole >> 20);
  if (whole >= 1 << 13 && whole % (1 << 10) == 0) return fmt::format("{}K", whole >> 10);
  return fmt::format("{}", whole);
}

// Maps values of one panel to its pixels.
struct Scale {
  double x_min = 1, x_max = 2, y_min = 1, y_max = 10;
  bool y_linear = false;

  double x(double value) const {
    return kLeft + (std::log2(value) - std::log2(x_min)) / (std::log2(x_max) - std::log2(x_min)) *
                       (kPanelWidth - kLeft - kRight);
  }
  double y(double value) const {
    const double fraction = y_linear
                                ? (value - y_min) / (y_max - y_min)
                                : (std::log10(value) - std::log10(y_min)) / (std::log10(y_max) - std::log10(y_min));
    return kPanelHeight - kBottom - std::clamp(fraction, 0.0, 1.0) * (kPanelHeight - kTop - kBottom);
  }
};

Scale scale_of(const Chart& chart) {
  double x_min = 1e300, x_max = 0, y_min = 1e300, y_max = 0;
  for (const ChartSeries& series : chart.series) {
    for (const auto& [x, y] : series.points) {
      x_min = std::min(x_min, x);
      x_max = std::max(x_max, x);
      if (y > 0) y_min = std::min(y_min, y);
      y_max = std::max(y_max, y);
    }
  }
  if (y_max <= 0) y_min = y_max = 1;
  Scale scale;
  scale.x_min = x_min > x_max ? 1 : x_min;
  scale.x_max = std::max(scale.x_min * 2, x_max);
  scale.y_linear = chart.y_unit == AxisUnit::kPercent;
  if (scale.y_linear) {
    scale.y_min = 0;
    scale.y_max = std::max(1.0, std::ceil(y_max * 10) / 10);
    return scale;
  }
  if (chart.limit > 0) y_max = std::max(y_max, chart.limit);
  scale.y_min = std::pow(10, std::floor(std::log10(y_min)));
  scale.y_max = std::pow(10, std::max(std::ceil(std::log10(y_max)), std::log10(scale.y_min) + 1));
  return scale;
}

std::string axes(const Chart& chart, const Scale& scale) {
  std::string text = fmt::format("<text class='t' x='{:g}' y='22'>{}</text>", kLeft, html_escaped(chart.title));
  const auto y_line = [&](double value) {
    text += fmt::format(
        "<line class='g' x1='{0:.1f}' x2='{1:.1f}' y1='{2:.1f}' y2='{2:.1f}'/>"
        "<text class='d' x='{3:.1f}' y='{4:.1f}' text-anchor='end'>{5}</text>",
        kLeft, kPanelWidth - kRight, scale.y(value), kLeft - 7, scale.y(value) + 4, tick_text(value, chart.y_unit));
  };
  if (scale.y_linear) {
    for (int i = 0; i <= 4; ++i) y_line(scale.y_max * i / 4);
  } else {
    const double decades = std::log10(scale.y_max / scale.y_min);
    const double step = std::max(1.0, std::round(decades / 5));
    for (double d = 0; d <= decades + 0.01; d += step) y_line(scale.y_min * std::pow(10, d));
  }
  const double octaves = std::log2(scale.x_max / scale.x_min);
  const double step = std::max(1.0, std::ceil(octaves / 6));
  for (double o = 0; o <= octaves + 0.01; o += step) {
    const double value = scale.x_min * std::exp2(o);
    text += fmt::format("<text class='d' x='{:.1f}' y='{:.1f}' text-anchor='middle'>{}</text>", scale.x(value),
                        kPanelHeight - kBottom + 18, x_text(value));
  }
  text += fmt::format("<text class='d' x='{:.1f}' y='{:.1f}' text-anchor='middle'>{}</text>",
                      (kLeft + kPanelWidth - kRight) / 2, kPanelHeight - 8, html_escaped(chart.x_label));
  if (chart.limit > 0) {
    text += fmt::format(
        "<line x1='{0:.1f}' x2='{1:.1f}' y1='{2:.1f}' y2='{2:.1f}' stroke='#b3541e' stroke-dasharray='2 3'/>"
        "<text class='d' x='{1:.1f}' y='{3:.1f}' text-anchor='end'>{4}</text>",
        kLeft, kPanelWidth - kRight, scale.y(chart.limit), scale.y(chart.limit) - 5, html_escaped(chart.limit_name));
  }
  return text;
}

std::string line(const ChartSeries& series, const Scale& scale, size_t color, AxisUnit unit) {
  std::string path;
  std::string dots;
  for (const auto& [x, y] : series.points) {
    if (y <= 0 && !scale.y_linear) continue;
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", scale.x(x), scale.y(y));
    dots += fmt::format("<circle cx='{:.1f}' cy='{:.1f}' r='2.6' fill='{}'><title>{}, {}: {}</title></circle>",
                        scale.x(x), scale.y(y), kColors[color], html_escaped(series.name), x_text(x),
                        unit == AxisUnit::kBytes     ? bytes_text(y)
                        : unit == AxisUnit::kSeconds ? seconds_text(y)
                                                     : tick_text(std::round(y * 1000) / 1000, unit));
  }
  if (path.empty()) return "";
  return fmt::format("<path d='{}' fill='none' stroke='{}' stroke-width='2' stroke-dasharray='{}'/>{}", path,
                     kColors[color], kDashes[color], dots);
}

}  // namespace

std::string svg_charts(const std::vector<Chart>& charts, const std::string& title, int columns) {
  std::vector<std::string> names;
  for (const Chart& chart : charts) {
    for (const ChartSeries& series : chart.series) {
      if (std::find(names.begin(), names.end(), series.name) == names.end()) names.push_back(series.name);
    }
  }
  const auto color_of = [&](const std::string& name) {
    return static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin()) % std::size(kColors);
  };
  const int rows = (static_cast<int>(charts.size()) + columns - 1) / columns;
  const double width = kPanelWidth * columns;
  std::string legend;
  double x = 20, y = 48;
  for (const std::string& name : names) {
    const size_t color = color_of(name);
    const double entry = 44 + 7.2 * static_cast<double>(name.size());
    if (x > 20 && x + entry > width) {
      x = 20;
      y += kLegendLine;
    }
    legend += fmt::format(
        "<line x1='{0:g}' x2='{1:g}' y1='{6:g}' y2='{6:g}' stroke='{2}' stroke-width='3' stroke-dasharray='{3}'/>"
        "<text class='d' x='{4:g}' y='{7:g}'>{5}</text>",
        x, x + 22, kColors[color], kDashes[color], x + 28, html_escaped(name), y, y + 4);
    x += entry;
  }
  const double head = kHead + y - 48, height = head + kPanelHeight * rows;
  std::string svg = fmt::format(
      "<svg class='tg' xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {0:g} {1:g}' role='img' aria-label='{2}'>{3}"
      "<rect class='b' width='{0:g}' height='{1:g}' rx='10'/><text class='h' x='20' y='28'>{2}</text>",
      width, height, html_escaped(title), kStyle);
  svg += legend;
  for (size_t i = 0; i < charts.size(); ++i) {
    const Scale scale = scale_of(charts[i]);
    const int column = static_cast<int>(i) % columns, row = static_cast<int>(i) / columns;
    svg += fmt::format("<g transform='translate({:g} {:g})'>{}", kPanelWidth * column, head + kPanelHeight * row,
                       axes(charts[i], scale));
    for (const ChartSeries& series : charts[i].series)
      svg += line(series, scale, color_of(series.name), charts[i].y_unit);
    svg += "</g>";
  }
  return svg + "</svg>\n";
}

}  // namespace tangram::cli
