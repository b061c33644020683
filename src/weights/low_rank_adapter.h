// A fine-tune as low-rank terms beside some of a model's products (LoRA, arXiv 2106.09685), from the folder
// that Hugging Face's PEFT saves:
//   y = x W^T + s (x A^T) B^T   with A [rank, in], B [out, rank], s = lora_alpha / rank
//                               (or lora_alpha / sqrt(rank): "use_rslora", arXiv 2312.03732)
// The term is added to the weights when these are loaded, y = x (W + s B A)^T. So a step takes no longer
// for it, and every path and weight format takes it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "weights/weight_spec.h"

namespace gapless {

class LowRankAdapter {
 public:
  // Reads `folder` (adapter_config.json, adapter_model.safetensors) and finds the product of each term in the
  // list. The error names the file and what of it is not known or does not fit: nothing is left out silently.
  static StatusOr<LowRankAdapter> open(const std::filesystem::path& folder,
                                       std::span<const WeightSpec> tensors);

  // Adds the tensor's elements [first, first + out.size()) of s B A, in float32 and in the order of the rank; nothing
  // where it has no term. The range must lie in the tensor. Any thread.
  void add(std::string_view name, std::span<float> out, std::int64_t first) const;

  bool has_term(std::string_view name) const { return terms_.contains(name); }
  int num_terms() const { return static_cast<int>(terms_.size()); }
  int max_rank() const;

 private:
  struct Term {
    std::int64_t rank = 0, in = 0;
    std::vector<float> a;         // [rank, in]
    std::vector<float> scaled_b;  // [out, rank]: s B
  };
  std::map<std::string, Term, std::less<>> terms_;  // by WeightSpec::name
};

}  // namespace gapless
