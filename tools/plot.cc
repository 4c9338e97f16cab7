#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "bench.h"

namespace tutti::tools {

namespace {

constexpr double kWidth = 760, kHeight = 480, kLeft = 80, kRight = 220, kTop = 30, kBottom = 60;
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

}  // namespace

std::string plot(const std::vector<Measurement>& measurements) {
  // Several rounds of a library are drawn as the median of each size.
  std::map<std::string, std::map<size_t, std::vector<double>>> series;
  double least = 1e300, most = 0, smallest = 1e300, largest = 0;
  for (const Measurement& m : measurements) {
    series[m.library][m.bytes].push_back(m.median_us);
    least = std::min(least, m.median_us);
    most = std::max(most, m.median_us);
    smallest = std::min(smallest, double(m.bytes));
    largest = std::max(largest, double(m.bytes));
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
  for (double bytes = smallest; bytes <= largest; bytes *= 16) {
    grid(x.at(bytes), kTop, x.at(bytes), kHeight - kBottom);
    svg += text(x.at(bytes), kHeight - kBottom + 18, "middle", size_text(size_t(bytes)));
  }
  for (double us = std::pow(10, std::ceil(std::log10(least))); us <= most; us *= 10) {
    grid(kLeft, y.at(us), kWidth - kRight, y.at(us));
    svg += text(kLeft - 8, y.at(us) + 4, "end", fmt::format("{:g}", us));
  }
  svg += text((kLeft + kWidth - kRight) / 2, kHeight - 15, "middle",
              fmt::format("size of {}, {} ranks", measurements[0].op, measurements[0].ranks));
  svg += text(kLeft, kTop - 10, "middle", "time, us");
  size_t number = 0;
  for (auto& [library, sizes] : series) {
    const char* const color = kColors[number % std::size(kColors)];
    std::string points;
    for (auto& [bytes, times] : sizes) {
      std::ranges::sort(times);
      points += fmt::format("{:.1f},{:.1f} ", x.at(double(bytes)), y.at(times[times.size() / 2]));
    }
    svg += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n",
                       points, color);
    const double row = kTop + 10 + 20 * double(number++);
    svg += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"14\" height=\"4\" fill=\"{}\"/>\n",
                       kWidth - kRight + 15, row - 6, color);
    svg += text(kWidth - kRight + 35, row, "start", library);
  }
  return svg + "</svg>\n";
}

}  // namespace tutti::tools
