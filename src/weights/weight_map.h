// Where a checkpoint has the tensors of a model's list, and their numbers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "weights/low_rank_adapter.h"
#include "weights/safetensors.h"
#include "weights/weight_spec.h"

namespace gapless {

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

  // From now on what is read includes the adapter's terms. It was opened with the same list.
  void add_terms(LowRankAdapter adapter) { adapter_ = std::move(adapter); }
  // nullptr: none.
  const LowRankAdapter* adapter() const { return adapter_ ? &*adapter_ : nullptr; }

  // Elements [first, first + out.size()) of the tensor in its published shape, rounded to nearest
  // even, once. A value that is not a finite number afterwards is an error, which names it.
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
  // As float32, with the adapter's term.
  void read_sum(std::string_view name, const Location& tensor, std::span<float> out,
                std::int64_t first) const;
  template <typename Out, typename Convert>
  void read(const Location& tensor, std::span<Out> out, std::int64_t first, Convert convert) const;
  // The tensor, with [first, first + count) checked.
  const Location& range(std::string_view name, std::int64_t first, std::size_t count) const;
  Status not_finite(std::string_view name, std::int64_t element) const;

  Checkpoint checkpoint_;
  std::map<std::string, Location, std::less<>> locations_;
  std::map<TensorDType, std::int64_t> stored_bytes_;
  std::optional<LowRankAdapter> adapter_;
};

}  // namespace gapless
