// The oracle's view of one image, several or none, as tools/make_goldens.py wrote it: NAME.json
// says what was asked and answered, NAME.safetensors holds the stages in float32, NAME.png is the
// image.
//
// Stages are thinned: a tensor is seen as rows (all but its last dimension), and every
// row_stride-th row is kept, from row 0 on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"

namespace gapless {

struct GoldenTensor {
  std::vector<std::int64_t> shape;  // of the whole tensor
  std::int64_t row_stride = 1;
  std::int64_t row_size = 0;
  std::vector<float> rows;  // the kept ones, [num_kept, row_size]

  std::int64_t num_kept() const { return static_cast<std::int64_t>(rows.size()) / row_size; }
};

struct GoldenRequest {
  std::string skill;                     // "query", "caption", "point", "detect", "segment"
  bool reasons = false;                  // of a query: reasoning up to answer_id comes first
  std::vector<std::int32_t> prompt_ids;  // after BOS and the images
  std::vector<std::int32_t> token_ids;   // greedy, without the final eos
  // The gap between the best and the second allowed logit, per decision: one per token of a text
  // (the final eos included), of reasoning and of a path, one per object and one for the end of points and boxes.
  std::vector<double> margins;
  std::vector<std::int32_t>
      bins;  // of the region heads, in order: x, y, then width, height for boxes
  std::vector<double> bin_margins;
  bool ended_at_limit = false;  // the oracle stopped at its own limit, not at eos

  bool is_spatial() const { return skill == "point" || skill == "detect"; }
  bool is_segment() const { return skill == "segment"; }
  bool has_regions() const { return is_spatial() || is_segment() || reasons; }
};

struct GoldenCase {
  std::string name;
  std::vector<std::filesystem::path> images;  // in the prompt's order; none: text alone
  // Of one image alone; several have only the text's stages.
  int tile_rows = 0;
  int tile_cols = 0;
  std::vector<std::uint32_t> crop_crc32;  // of each crop's bytes; a 1x1 tiling lists the crop twice
  std::vector<GoldenRequest> requests;
  std::map<std::string, GoldenTensor> tensors;
};

// Names of the cases in a folder: every NAME.json with a NAME.safetensors that has "tensors".
std::vector<std::string> golden_case_names(const std::filesystem::path& folder);

StatusOr<GoldenCase> load_golden_case(const std::filesystem::path& folder, const std::string& name);

}  // namespace gapless
