#include "model/tensor_layout.h"

#include <algorithm>

#include "base/check.h"
#include "device/bump_layout.h"

namespace gapless {

TensorLayout lay_out_tensors(std::span<const WeightSpec> specs, DType dtype) {
  TensorLayout layout;
  BumpLayout bytes;
  std::size_t group_begin = 0, group_bytes = 0;  // of tensors that are joined
  for (const WeightSpec& spec : specs) {
    if (spec.joins_previous) {
      bytes.rewind(group_begin);
    } else {
      group_begin = bytes.mark();
      group_bytes = 0;
    }
    layout.tensors.push_back({.name = spec.name,
                              .num_rows = spec.num_rows(),
                              .row_size = spec.row_size(),
                              .device_rows = spec.device_rows(),
                              .row_stride = spec.device_row_size(),
                              .fp8 = spec.fp8,
                              .offset_bytes = group_begin + group_bytes,
                              .joins_previous = spec.joins_previous});
    const std::int64_t elements = spec.device_rows() * spec.device_row_size();
    group_bytes += static_cast<std::size_t>(elements) * dtype_bytes(dtype);
    bytes.take(group_bytes);
  }
  layout.total_bytes = bytes.peak_bytes();
  return layout;
}

namespace {

// Takes tensors one after the other; joined ones keep their distance from the first of them.
class RankCloser {
 public:
  explicit RankCloser(DType dtype) : dtype_(dtype) {}

  void place(TensorPlacement& tensor) {
    if (tensor.joins_previous) {
      bytes_.rewind(joined_to_);
    } else {
      joined_from_ = tensor.offset_bytes;
      joined_to_ = bytes_.mark();
      joined_bytes_ = 0;
    }
    tensor.offset_bytes = tensor.offset_bytes - joined_from_ + joined_to_;
    joined_bytes_ +=
        static_cast<std::size_t>(tensor.device_rows * tensor.row_stride) * dtype_bytes(dtype_);
    bytes_.take(joined_bytes_);
  }

  BumpLayout& bytes() { return bytes_; }

 private:
  const DType dtype_;
  BumpLayout bytes_;
  std::size_t joined_from_ = 0, joined_to_ = 0, joined_bytes_ = 0;
};

}  // namespace

TensorLayout share_memory(const TensorLayout& layout, DType dtype, const GroupOfTensor& group_of) {
  TensorLayout shared = layout;
  RankCloser closer(dtype);
  for (TensorPlacement& tensor : shared.tensors) {
    tensor.group = group_of(tensor.name);
    if (tensor.group == TensorPlacement::kResident) closer.place(tensor);
  }
  const std::size_t residents = closer.bytes().mark();
  shared.shared_offset = residents;
  int group = TensorPlacement::kResident;
  for (TensorPlacement& tensor : shared.tensors) {
    if (tensor.group == TensorPlacement::kInParts) tensor.offset_bytes = residents;
    if (tensor.group < 0) continue;
    if (tensor.group != group) closer.bytes().rewind(residents);
    group = tensor.group;
    closer.place(tensor);
  }
  shared.total_bytes = closer.bytes().peak_bytes();
  return shared;
}

TensorLayout tensors_of_group(const TensorLayout& layout, int group) {
  TensorLayout part;
  part.total_bytes = layout.total_bytes;
  part.shared_offset = layout.shared_offset;
  for (const TensorPlacement& tensor : layout.tensors) {
    if (tensor.group == group) part.tensors.push_back(tensor);
  }
  return part;
}

TensorLayout rows_in_parts(const TensorLayout& layout, std::int64_t first_row,
                           std::int64_t num_rows) {
  TensorLayout part = tensors_of_group(layout, TensorPlacement::kInParts);
  GAPLESS_CHECK(part.tensors.size() == 1);
  TensorPlacement& tensor = part.tensors.front();
  tensor.num_rows = std::clamp<std::int64_t>(tensor.num_rows - first_row, 0, num_rows);
  tensor.first_row = first_row;
  tensor.device_rows = num_rows;
  return part;
}

std::int64_t max_rows_in_parts(const TensorLayout& layout, DType dtype) {
  const TensorLayout whole = tensors_of_group(layout, TensorPlacement::kInParts);
  if (whole.tensors.empty()) return 0;
  const auto row_bytes =
      static_cast<std::size_t>(whole.tensors.front().row_stride) * dtype_bytes(dtype);
  const auto rows =
      static_cast<std::int64_t>((layout.total_bytes - layout.shared_offset) / row_bytes);
  GAPLESS_CHECK(rows >= kRowsOfPart);
  return rows / kRowsOfPart * kRowsOfPart;
}

std::int64_t TensorLayout::num_parameters() const {
  std::int64_t sum = 0;
  for (const TensorPlacement& tensor : tensors) sum += tensor.num_parameters();
  return sum;
}

Fp8Layout lay_out_fp8(const TensorLayout& layout, std::size_t element_bytes, bool experts) {
  Fp8Layout fp8;
  BumpLayout bytes;
  for (const TensorPlacement& tensor : layout.tensors) {
    const bool is_multiplied = tensor.fp8 == Fp8Use::kMultiplied ||
                               (experts && tensor.fp8 == Fp8Use::kMultipliedAsExperts);
    if (!is_multiplied) continue;
    Fp8Placement copy{.name = tensor.name, .offset_bytes = bytes.mark()};
    bytes.take(static_cast<std::size_t>(tensor.device_rows * tensor.row_stride) * element_bytes);
    copy.scales_offset_bytes = bytes.mark();
    bytes.take_array<float>(static_cast<std::size_t>(tensor.device_rows));
    fp8.tensors.push_back(std::move(copy));
  }
  fp8.total_bytes = bytes.peak_bytes();
  return fp8;
}

TensorFinder::TensorFinder(const TensorLayout& layout, void* base) : layout_(layout), base_(base) {
  for (const TensorPlacement& tensor : layout_.tensors) by_name_.emplace(tensor.name, &tensor);
}

void TensorFinder::add_fp8(const Fp8Layout& layout, void* base) {
  for (const Fp8Placement& copy : layout.tensors) {
    auto* bytes = static_cast<std::byte*>(base);
    fp8_[copy.name] = {bytes + copy.offset_bytes,
                       reinterpret_cast<const float*>(bytes + copy.scales_offset_bytes)};
  }
}

const TensorPlacement& TensorFinder::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  GAPLESS_CHECK_MSG(found != by_name_.end(), name);
  return *found->second;
}

const void* TensorFinder::at(std::size_t offset_bytes) const {
  // Never null, so that what there is can be told from what there is not without a base too.
  static const std::byte kSomewhere{};
  return base_ == nullptr ? &kSomewhere : static_cast<const std::byte*>(base_) + offset_bytes;
}

const void* TensorFinder::tensor(const std::string& name) const {
  return at(find(name).offset_bytes);
}

LinearWeights TensorFinder::linear(const std::string& name) const {
  const TensorPlacement& weight = find(name + ".weight");
  LinearWeights linear{.weight = at(weight.offset_bytes),
                       .in = static_cast<int>(weight.row_stride),
                       .out = static_cast<int>(weight.device_rows)};
  if (by_name_.contains(name + ".bias")) linear.bias = tensor(name + ".bias");
  if (const auto fp8 = fp8_.find(weight.name); fp8 != fp8_.end()) {
    linear.fp8 = fp8->second.matrix;
    linear.fp8_scales = fp8->second.scales;
  }
  return linear;
}

LinearWeights TensorFinder::joined(const std::vector<std::string>& names) const {
  LinearWeights all = linear(names.front());
  for (std::size_t i = 1; i < names.size(); ++i) {
    GAPLESS_CHECK_MSG(find(names[i] + ".weight").joins_previous, names[i]);
    const LinearWeights part = linear(names[i]);
    GAPLESS_CHECK_MSG(part.in == all.in && part.fp8 == nullptr, names[i]);
    GAPLESS_CHECK_MSG((part.bias == nullptr) == (all.bias == nullptr), names[i]);
    GAPLESS_CHECK_MSG(part.bias == nullptr || find(names[i] + ".bias").joins_previous, names[i]);
    all.out += part.out;
  }
  return all;
}

NormWeights TensorFinder::layer_norm(const std::string& name) const {
  return {.gamma = tensor(name + ".weight"), .beta = tensor(name + ".bias")};
}

NormWeights TensorFinder::rms_norm(const std::string& name, float eps) const {
  return {.kind = NormKind::kRms, .gamma = tensor(name + ".weight"), .eps = eps};
}

}  // namespace gapless
