// Prometheus' text format 0.0.4: families of samples, each announced once.
#pragma once

#include <string>
#include <string_view>

namespace gapless {

class Histogram;

class Exposition {
 public:
  // Every sample has the label model_name.
  explicit Exposition(std::string_view model) : model_(escape(model)) {}

  // Announces a family; its samples follow.
  void family(std::string_view name, std::string_view type, std::string_view help);
  // `more_labels`: `name="value",...`, escaped.
  void sample(std::string_view name, double value, std::string_view more_labels = {});
  // A family of one sample.
  void single(std::string_view name, std::string_view type, std::string_view help, double value);
  // The same without any label, for what belongs to the process and not to its model.
  void plain(std::string_view name, std::string_view type, std::string_view help, double value);
  void histogram(std::string_view name, std::string_view help, const Histogram& histogram);

  std::string take() { return std::move(text_); }

  // A label's value.
  static std::string escape(std::string_view value);

 private:
  std::string model_;
  std::string text_;
};

}  // namespace gapless
