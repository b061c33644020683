#include "server/exposition.h"

#include <fmt/format.h>

#include <iterator>

#include "server/metrics.h"

namespace gapless {

void Exposition::family(std::string_view name, std::string_view type, std::string_view help) {
  fmt::format_to(std::back_inserter(text_), "# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

void Exposition::sample(std::string_view name, double value, std::string_view more_labels) {
  fmt::format_to(std::back_inserter(text_), "{}{{model_name=\"{}\"{}{}}} {}\n", name, model_,
                 more_labels.empty() ? "" : ",", more_labels, value);
}

void Exposition::single(std::string_view name, std::string_view type, std::string_view help,
                        double value) {
  family(name, type, help);
  sample(name, value);
}

void Exposition::plain(std::string_view name, std::string_view type, std::string_view help,
                       double value) {
  family(name, type, help);
  fmt::format_to(std::back_inserter(text_), "{} {}\n", name, value);
}

void Exposition::histogram(std::string_view name, std::string_view help,
                           const Histogram& histogram) {
  family(name, "histogram", help);
  const std::string bucket_name = fmt::format("{}_bucket", name);
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < histogram.bounds().size(); ++i) {
    count += histogram.count_in(i);
    sample(bucket_name, static_cast<double>(count),
           fmt::format("le=\"{}\"", histogram.bounds()[i]));
  }
  count += histogram.count_in(histogram.bounds().size());
  sample(bucket_name, static_cast<double>(count), "le=\"+Inf\"");
  sample(fmt::format("{}_sum", name), histogram.sum());
  sample(fmt::format("{}_count", name), static_cast<double>(count));
}

std::string Exposition::escape(std::string_view value) {
  std::string out;
  for (const char c : value) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

}  // namespace gapless
