// Where the tensors of a list lie in one device allocation, and the products and norms that they make.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels/kernels.h"
#include "weights/weight_map.h"

namespace gapless {

// A tensor of a list, as a matrix, and where it lies.
struct TensorPlacement {
  std::string name;           // published name, "model.text.blocks.0.ln.weight"
  std::int64_t num_rows = 0;  // the published shape as a matrix; 1 row for a vector
  std::int64_t row_size = 0;
  std::int64_t device_rows = 0;  // >= num_rows
  std::int64_t row_stride = 0;   // elements between rows, >= row_size
  std::int64_t first_row = 0;    // of the published tensor, where this is a part of it
  Fp8Use fp8 = Fp8Use::kNone;
  std::size_t offset_bytes = 0;  // into the allocation
  bool joins_previous = false;
  // Tensors of different groups share memory: only one group's are there at a time. kResident: always there. kInParts: in that
  // memory too, as many rows at a time as it holds.
  int group = kResident;
  static constexpr int kResident = -1;
  static constexpr int kInParts = -2;

  std::int64_t num_parameters() const { return num_rows * row_size; }
};

// Every tensor of the list, in its order.
struct TensorLayout {
  std::vector<TensorPlacement> tensors;
  std::size_t total_bytes = 0;
  std::size_t shared_offset =
      0;  // where the groups' memory begins, up to the end; 0: there are none

  std::int64_t num_parameters() const;
};

// A tensor's group, by its name; TensorPlacement::kResident for most.
using GroupOfTensor = std::function<int(const std::string& name)>;

// Gives tensors groups; those of each group lie behind all residents, group over group. One that is kInParts gets no room of its own.
TensorLayout share_memory(const TensorLayout& layout, DType dtype, const GroupOfTensor& group_of);

// Those of one group, in place.
TensorLayout tensors_of_group(const TensorLayout& layout, int group);

// Some rows of the tensor that is kInParts, at the begin of the groups' memory.
TensorLayout rows_in_parts(const TensorLayout& layout, std::int64_t first_row,
                           std::int64_t num_rows);
// How many the memory holds at a time, a multiple of kRowsOfPart; 0: no tensor is kInParts.
inline constexpr std::int64_t kRowsOfPart = 16;
std::int64_t max_rows_in_parts(const TensorLayout& layout, DType dtype);

TensorLayout lay_out_tensors(std::span<const WeightSpec> specs, DType dtype);

// The copies in 8 bits of the matrices with Fp8Use::kMultiplied (LinearWeights::fp8), in their order; `experts`: of those with
// kMultipliedAsExperts too.
struct Fp8Placement {
  std::string name;
  std::size_t offset_bytes = 0;
  std::size_t scales_offset_bytes = 0;
};
struct Fp8Layout {
  std::vector<Fp8Placement> tensors;
  std::size_t total_bytes = 0;
};
Fp8Layout lay_out_fp8(const TensorLayout& layout, std::size_t element_bytes, bool experts);

// Finds products and norms by name in an allocation. Without a base only which of them there are means
// something, and their sizes. A name that is not in the list is a bug and checked.
class TensorFinder {
 public:
  TensorFinder(const TensorLayout& layout, void* base);
  // From now on products come with their copies in 8 bits.
  void add_fp8(const Fp8Layout& layout, void* base);

  const void* tensor(const std::string& name) const;
  // NAME.weight, and NAME.bias if there is one.
  LinearWeights linear(const std::string& name) const;
  // The products of these names as one, their outputs one behind the other. They were joined in the list
  // (WeightSpec::joins_previous) and have biases all or none.
  LinearWeights joined(const std::vector<std::string>& names) const;
  NormWeights layer_norm(const std::string& name) const;
  NormWeights rms_norm(const std::string& name, float eps) const;

 private:
  struct Fp8 {
    const void* matrix;
    const float* scales;
  };
  const TensorPlacement& find(const std::string& name) const;
  const void* at(std::size_t offset_bytes) const;

  const TensorLayout& layout_;
  void* base_;
  std::unordered_map<std::string_view, const TensorPlacement*> by_name_;
  std::unordered_map<std::string, Fp8> fp8_;
};

}  // namespace gapless
