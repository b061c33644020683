// The list of a model's tensors, under their published names.
//
// A family has one list of its tensors (model/moondream/tensors.h). Where they lie on the device, loading,
// random weights and 8-bit weights are derived from it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gapless {

// What a tensor is to the model. Its random values follow from it (random_model.h).
enum class TensorRole {
  kProduct,          // the matrix of a product
  kResidualProduct,  // of one whose result is added to a residual stream
  kLogits,           // of one whose results compete: logits, bins
  kBias,
  kNormGain,
  kTokenEmbedding,
  kPositionEmbedding,
  kFrequencies,    // of Fourier features
  kPositionSlope,  // how fast something grows with the position
};

// How a matrix takes part in weights of 8 bits (model/weight_format.h).
enum class Fp8Use {
  kNone,
  kRounded,              // its numbers are rounded to 8 bits
  kMultiplied,           // and products of many rows may be computed in 8 bits
  kMultipliedAsExperts,  // the same, where Kernels::multiplies_fp8_experts()
};

// Matrices are [out, in], row-major. The Fourier matrices of the legacy naming are transposed.
struct WeightSpec {
  std::string name;         // "model.text.blocks.0.attn.qkv.weight": the Hugging Face naming
  std::string legacy_name;  // "text_model.transformer.h.0.mixer.Wqkv.weight"; empty: none
  std::vector<std::int64_t> shape;
  TensorRole role = TensorRole::kProduct;
  Fp8Use fp8 = Fp8Use::kNone;
  int num_layers = 0;  // kResidualProduct: of its residual stream
  bool legacy_transposed = false;
  // On the device: rows, and elements from one row to the next, with zeros behind what is published; 0: no padding.
  std::int64_t padded_rows = 0;
  std::int64_t padded_row_size = 0;
  // It lies right behind the tensor before it: the parts of one product, or of its bias. Their rows are equally long.
  bool joins_previous = false;
  // A file may hold the same tensor once more under this name; that copy is not read. Empty: none.
  std::string stored_again_as = {};
  // The legacy naming may have this tensor's rows from a certain one on in a larger tensor of so many rows. Empty:
  // it has not.
  std::string legacy_whole = {};
  std::int64_t legacy_whole_rows = 0, legacy_first_row = 0;
  // The legacy naming may have this tensor in F8_E4M3, each row (num_rows() of them) times a factor of F32 in
  // this tensor. Empty: it has not.
  std::string legacy_row_scales = {};

  std::int64_t num_elements() const;
  // As a matrix: all but the last side are rows. A vector is one row.
  std::int64_t num_rows() const { return shape.size() == 1 ? 1 : num_elements() / shape.back(); }
  std::int64_t row_size() const { return shape.back(); }
  std::int64_t device_rows() const { return padded_rows > 0 ? padded_rows : num_rows(); }
  std::int64_t device_row_size() const {
    return padded_row_size > 0 ? padded_row_size : row_size();
  }
};

// A stored tensor's name without what files add to it: a leading "model.", and the "._orig_mod" that
// torch.compile leaves in names. "text.wte", or a legacy name as it is.
std::string parameter_name(std::string_view stored);

}  // namespace gapless
