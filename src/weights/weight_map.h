// The tensors of a model, under their published names, and where a checkpoint has them.
//
// A family has one list of its tensors (model/moondream/tensors.h). Where they lie on the device, loading,
// random weights and 8-bit weights are derived from it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "weights/safetensors.h"

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
  kRounded,     // its numbers are rounded to 8 bits
  kMultiplied,  // and products of many rows may be computed in 8 bits
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

// A checkpoint in which every tensor of a list was found, with the right shape and a dtype that can be
// read (F16, BF16, F32; F8_E4M3 where the list knows the scales' name), and no other tensor but the buffers that
// the reference model's code may save.
// Names are the published ones (WeightSpec::name), whatever naming the file has.
//
// Any thread may read. A name that is not in the list, or a range outside of its tensor, is a bug of
// the caller and checked.
class WeightSource {
 public:
  // `path`: as for Checkpoint::open. The error names the tensor and the file, and says what was
  // expected and what was found.
  static StatusOr<WeightSource> open(const std::filesystem::path& path,
                                     std::span<const WeightSpec> tensors);

  // Elements [first, first + out.size()) of the tensor in its published shape, rounded to nearest
  // even. A value that is not a finite number afterwards is an error, which names it.
  Status read_as_f32(std::string_view name, std::span<float> out, std::int64_t first = 0) const;
  Status read_as_bf16(std::string_view name, std::span<std::uint16_t> out,
                      std::int64_t first = 0) const;

  std::int64_t num_elements(std::string_view name) const;

  // For printing: bytes of the model's own tensors by stored dtype (scales count with what they scale), and of the
  // files.
  const std::map<TensorDType, std::int64_t>& stored_bytes() const { return stored_bytes_; }
  const Checkpoint& checkpoint() const { return checkpoint_; }

 private:
  struct Location {
    TensorDType dtype = TensorDType::kF32;
    std::span<const std::byte> data;
    std::vector<std::int64_t> shape;  // published
    std::int64_t num_elements = 0;
    std::size_t file = 0;  // of Checkpoint::files()
    // By row; empty: the numbers are stored as they are. Not aligned.
    std::span<const std::byte> row_scales = {};
    // The stored matrix is the transpose, [transposed_rows, transposed_columns]; 0: it is not.
    std::int64_t transposed_rows = 0, transposed_columns = 0;
  };
  using StoredNames = std::map<std::string, std::string>;  // by parameter_name
  // Takes the tensor out of stored_names.
  Status locate(const WeightSpec& spec, StoredNames& stored_names);
  // The same where it is a part of a larger one, which stays; false: it is not.
  StatusOr<bool> locate_part(const WeightSpec& spec, const StoredNames& stored_names);
  Status locate_scales(const WeightSpec& spec, StoredNames& stored_names, Location& location);
  Status refuse_surplus(const StoredNames& stored_names) const;
  const Location& location(std::string_view name) const;
  template <typename Out, typename Convert>
  void read(const Location& tensor, std::span<Out> out, std::int64_t first, Convert convert) const;
  // The tensor, with [first, first + count) checked.
  const Location& range(std::string_view name, std::int64_t first, std::size_t count) const;
  Status not_finite(std::string_view name, std::int64_t element) const;

  Checkpoint checkpoint_;
  std::map<std::string, Location, std::less<>> locations_;
  std::map<TensorDType, std::int64_t> stored_bytes_;
};

}  // namespace gapless
