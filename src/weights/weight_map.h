// The tensors that a configuration needs, under their published names, and where a checkpoint has
// them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "weights/model_config.h"
#include "weights/safetensors.h"

namespace gapless {

// Linear weights are [out, in], row-major. The Fourier matrices of the legacy naming are
// transposed.
struct WeightSpec {
  std::string name;         // "model.text.blocks.0.attn.qkv.weight": the Hugging Face naming
  std::string legacy_name;  // "text_model.transformer.h.0.mixer.Wqkv.weight"
  std::vector<std::int64_t> shape;
  bool legacy_transposed = false;

  std::int64_t num_elements() const;
};

// Every tensor of the model, in a fixed order: vision, text, region.
std::vector<WeightSpec> weight_specs(const ModelConfig& config);

// A stored tensor's name without what files add to it: a leading "model.", and the "._orig_mod" that
// torch.compile leaves in names. "text.wte", or a legacy name as it is.
std::string parameter_name(std::string_view stored);

// A checkpoint in which every tensor of a configuration was found, with the right shape and a dtype
// that can be read (F16, BF16, F32), and no other tensor but the buffers that the reference model's
// code may save. Names are the published ones (WeightSpec::name), whatever naming the file has.
//
// Any thread may read. A name that is not in weight_specs(), or a range outside of its tensor, is a
// bug of the caller and checked.
class WeightSource {
 public:
  // `path`: as for Checkpoint::open. The error names the tensor and the file, and says what was
  // expected and what was found.
  static StatusOr<WeightSource> open(const std::filesystem::path& path, const ModelConfig& config);

  // Elements [first, first + out.size()) of the tensor in its published shape, rounded to nearest
  // even. A value that is not a finite number afterwards is an error, which names it.
  Status read_as_f32(std::string_view name, std::span<float> out, std::int64_t first = 0) const;
  Status read_as_bf16(std::string_view name, std::span<std::uint16_t> out,
                      std::int64_t first = 0) const;

  std::int64_t num_elements(std::string_view name) const;

  // For printing: bytes of the model's own tensors by stored dtype, and of the files.
  const std::map<TensorDType, std::int64_t>& stored_bytes() const { return stored_bytes_; }
  const Checkpoint& checkpoint() const { return checkpoint_; }

 private:
  struct Location {
    TensorDType dtype = TensorDType::kF32;
    std::span<const std::byte> data;
    std::vector<std::int64_t> shape;  // published
    std::int64_t num_elements = 0;
    std::size_t file = 0;  // of Checkpoint::files()
    // The stored matrix is the transpose, [transposed_rows, transposed_columns]; 0: it is not.
    std::int64_t transposed_rows = 0, transposed_columns = 0;
  };
  // Takes the tensor out of stored_names (by parameter_name).
  Status locate(const WeightSpec& spec, std::map<std::string, std::string>& stored_names);
  Status refuse_surplus(const std::map<std::string, std::string>& stored_names) const;
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
