// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "bench.h"

namespace tutti::tools {

namespace {

constexpr double kWidth = 800, kHeight = 520, kLeft = 70, kRight = 30, kTop = 60, kBottom = 60;
constexpr const char* kColors[] = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd",
                                   "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f"};

// A logarithmic axis from the least to the largest value.
struct Axis {
  double low, high, from, to;
  double at(double value) const {
    return from + (to - from) * (std::log(value) - low) / std::max(high - low, 1e-9);
  }
};

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text)
    result += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  return result;
}

std::string text(double x, double y, const char* anchor, const std::string& words) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor,
                     escaped(words));
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace

std::string plot(const std::vector<Measurement>& measurements, PlotTitle title) {
  // Each point is the median over a library's rounds.
  struct Point {
    std::vector<double> times, lows, highs;
  };
  std::map<std::string, std::map<size_t, Point>> series;
  bool spread = false;
  for (const Measurement& m : measurements) {
    Point& point = series[m.library][m.bytes];
    const bool known = m.p10_us > 0 && m.p90_us > 0;  // other libraries' files may lack them
    spread |= known;
    point.times.push_back(m.median_us);
    point.lows.push_back(known ? m.p10_us : m.median_us);
    point.highs.push_back(known ? m.p90_us : m.median_us);
  }
  double least = 1e300, most = 0, smallest = 1e300, largest = 0;
  for (const auto& [library, sizes] : series)
    for (const auto& [bytes, point] : sizes) {
      least = std::min(least, median(point.lows));
      most = std::max(most, median(point.highs));
      smallest = std::min(smallest, double(bytes));
      largest = std::max(largest, double(bytes));
    }
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" "
      "fill=\"white\"/>\n",
      kWidth, kHeight);
  if (series.empty()) return svg + "</svg>\n";
  const Axis x{std::log(smallest), std::log(largest), kLeft, kWidth - kRight};
  const Axis y{std::log(least), std::log(most), kHeight - kBottom, kTop};
  const auto grid = [&](double x1, double y1, double x2, double y2) {
    svg += fmt::format(
        "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#ddd\"/>\n", x1, y1,
        x2, y2);
  };
  // Draws as many labels as have room.
  const double steps = std::log(largest / smallest) / std::log(4.0);
  const double factor = steps > 10 ? 16 : 4;
  for (double bytes = smallest; bytes <= largest; bytes *= factor) {
    grid(x.at(bytes), kTop, x.at(bytes), kHeight - kBottom);
    svg += text(x.at(bytes), kHeight - kBottom + 18, "middle", size_text(size_t(bytes)));
  }
  const bool few = most / least < 100;  // a decade is too coarse
  for (double decade = std::pow(10, std::floor(std::log10(least))); decade <= most; decade *= 10)
    for (const double us : {decade, 2 * decade, 5 * decade}) {
      if (us < least || us > most || (us != decade && !few)) continue;
      grid(kLeft, y.at(us), kWidth - kRight, y.at(us));
      svg += text(kLeft - 8, y.at(us) + 4, "end", fmt::format("{:g}", us));
    }
  const Measurement& first = measurements[0];
  if (title.title.empty())
    title = {fmt::format("{}{}, {} ranks", first.op,
                         first.dtype.empty() ? "" : " of " + first.dtype, first.ranks),
             spread ? "medians, and the spread from the 10th to the 90th percentile" : "medians"};
  svg +=
      fmt::format("<text x=\"{:.1f}\" y=\"22\" text-anchor=\"middle\" font-size=\"16\">{}</text>\n",
                  kWidth / 2, escaped(title.title));
  svg += text(kWidth / 2, 42, "middle", title.subtitle);
  svg += text((kLeft + kWidth - kRight) / 2, kHeight - 15, "middle", "size");
  svg += text(kLeft, kTop - 10, "middle", "time, us");
  size_t number = 0;
  for (auto& [library, sizes] : series) {
    const char* const color = kColors[number % std::size(kColors)];
    std::string points, lower, upper;
    for (auto& [bytes, point] : sizes) {
      const double at = x.at(double(bytes));
      points += fmt::format("{:.1f},{:.1f} ", at, y.at(median(point.times)));
      lower += fmt::format("{:.1f},{:.1f} ", at, y.at(median(point.lows)));
      upper = fmt::format("{:.1f},{:.1f} ", at, y.at(median(point.highs))) + upper;
    }
    svg += fmt::format("<polygon points=\"{}{}\" fill=\"{}\" fill-opacity=\"0.2\"/>\n", lower,
                       upper, color);
    svg += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n",
                       points, color);
    // The legend is in the upper left corner: large sizes take longer, so no line gets there.
    const double row = kTop + 20 + 20 * double(number++);
    svg += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"14\" height=\"4\" fill=\"{}\"/>\n",
                       kLeft + 15, row - 6, color);
    svg += text(kLeft + 35, row, "start", library);
  }
  return svg + "</svg>\n";
}

}  // namespace tutti::tools
