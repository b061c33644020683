#include "model/tensor_layout.h"

#include <gtest/gtest.h>

namespace gapless {
namespace {

std::vector<WeightSpec> small_list() {
  return {{.name = "a.weight",
           .shape = {3, 5},
           .fp8 = Fp8Use::kMultiplied,
           .padded_rows = 16,
           .padded_row_size = 16},
          {.name = "a.bias", .shape = {3}, .role = TensorRole::kBias, .padded_row_size = 16},
          {.name = "b.weight", .shape = {16, 16}, .fp8 = Fp8Use::kRounded},
          {.name = "positions", .shape = {1, 7, 4}},
          {.name = "c.weight", .shape = {16, 32}, .fp8 = Fp8Use::kMultiplied}};
}

TEST(TensorLayout, EachTensorAsAPaddedMatrixOneBehindTheOther) {
  const TensorLayout layout = lay_out_tensors(small_list(), DType::kF32);
  ASSERT_EQ(layout.tensors.size(), 5u);
  const TensorPlacement& a = layout.tensors[0];
  EXPECT_EQ(a.num_rows, 3);
  EXPECT_EQ(a.row_size, 5);
  EXPECT_EQ(a.device_rows, 16);
  EXPECT_EQ(a.row_stride, 16);
  EXPECT_EQ(layout.tensors[1].offset_bytes, 16u * 16 * 4);
  EXPECT_EQ(layout.tensors[1].row_stride, 16);
  EXPECT_EQ(layout.tensors[1].num_rows, 1);
  EXPECT_EQ(layout.tensors[3].num_rows, 7);
  EXPECT_EQ(layout.tensors[3].row_stride, 4);
  EXPECT_EQ(layout.total_bytes, layout.tensors[4].offset_bytes + 16 * 32 * 4);
}

TEST(TensorLayout, ProductsAreFoundWithTheirBiasesAndCopies) {
  const TensorLayout layout = lay_out_tensors(small_list(), DType::kF32);
  std::vector<std::byte> memory(layout.total_bytes);
  TensorFinder find(layout, memory.data());
  const LinearWeights a = find.linear("a");
  EXPECT_EQ(a.weight, memory.data());
  EXPECT_EQ(a.bias, memory.data() + layout.tensors[1].offset_bytes);
  EXPECT_EQ(a.in, 16);
  EXPECT_EQ(a.out, 16);
  EXPECT_EQ(a.fp8, nullptr);
  EXPECT_EQ(find.linear("b").bias, nullptr);
  EXPECT_EQ(find.tensor("positions"), memory.data() + layout.tensors[3].offset_bytes);

  const Fp8Layout fp8 = lay_out_fp8(layout, 1, false);
  ASSERT_EQ(fp8.tensors.size(), 2u);  // b is only rounded
  std::vector<std::byte> copies(fp8.total_bytes);
  find.add_fp8(fp8, copies.data());
  EXPECT_EQ(find.linear("a").fp8, copies.data());
  EXPECT_EQ(find.linear("b").fp8, nullptr);
  const LinearWeights c = find.linear("c");
  EXPECT_EQ(c.fp8, copies.data() + fp8.tensors[1].offset_bytes);
  EXPECT_EQ(reinterpret_cast<const std::byte*>(c.fp8_scales),
            copies.data() + fp8.tensors[1].scales_offset_bytes);
  // A matrix, its scales, the next matrix: none in another's place.
  EXPECT_GE(fp8.tensors[0].scales_offset_bytes, 16u * 16);
  EXPECT_GE(fp8.tensors[1].offset_bytes, fp8.tensors[0].scales_offset_bytes + 16 * sizeof(float));
  EXPECT_GE(fp8.total_bytes, fp8.tensors[1].scales_offset_bytes + 16 * sizeof(float));
}

TEST(TensorLayout, ExpertsHaveCopiesWhereTheyAreMultiplied) {
  std::vector<WeightSpec> list = small_list();
  list.push_back({.name = "d.weight", .shape = {2, 16, 32}, .fp8 = Fp8Use::kMultipliedAsExperts});
  const TensorLayout layout = lay_out_tensors(list, DType::kF32);
  EXPECT_EQ(lay_out_fp8(layout, 1, false).tensors.size(), 2u);
  const Fp8Layout fp8 = lay_out_fp8(layout, 1, true);
  ASSERT_EQ(fp8.tensors.size(), 3u);
  EXPECT_EQ(fp8.tensors[2].name, "d.weight");
  EXPECT_GE(fp8.tensors[2].scales_offset_bytes, fp8.tensors[2].offset_bytes + 2 * 16 * 32);
  EXPECT_GE(fp8.total_bytes, fp8.tensors[2].scales_offset_bytes + 2 * 16 * sizeof(float));
}

// What there is can be told without memory too: decode_path.h asks for it.
TEST(TensorLayout, WithoutABaseThereIsWhatTheListHas) {
  const TensorLayout layout = lay_out_tensors(small_list(), DType::kF32);
  const TensorFinder find(layout, nullptr);
  EXPECT_NE(find.linear("a").weight, nullptr);
  EXPECT_NE(find.linear("a").bias, nullptr);
  EXPECT_EQ(find.linear("b").bias, nullptr);
}

// b and c share memory, of which a quarter of `large` fits at a time.
TEST(TensorLayout, AMatrixMayTakeTheMemoryOfOthersInParts) {
  std::vector<WeightSpec> list = small_list();
  list.push_back({.name = "large", .shape = {130, 16}});
  const TensorLayout plain = lay_out_tensors(list, DType::kF32);
  const TensorLayout shared = share_memory(plain, DType::kF32, [](const std::string& name) {
    if (name == "b.weight") return 0;
    if (name == "c.weight") return 1;
    return name == "large" ? TensorPlacement::kInParts : TensorPlacement::kResident;
  });
  EXPECT_EQ(shared.tensors[2].offset_bytes, shared.shared_offset);
  EXPECT_EQ(shared.tensors[4].offset_bytes, shared.shared_offset);
  EXPECT_EQ(shared.tensors[5].offset_bytes, shared.shared_offset);
  EXPECT_GE(shared.shared_offset, shared.tensors[3].offset_bytes + 7 * 4 * 4);
  EXPECT_EQ(shared.total_bytes, shared.shared_offset + 16 * 32 * 4) << "as much as c takes";
  EXPECT_EQ(tensors_of_group(shared, 0).tensors.size(), 1u);
  EXPECT_EQ(tensors_of_group(shared, TensorPlacement::kResident).tensors.size(), 3u);

  EXPECT_EQ(max_rows_in_parts(shared, DType::kF32), 32);
  EXPECT_EQ(max_rows_in_parts(plain, DType::kF32), 0);
  const TensorLayout last = rows_in_parts(shared, 128, 16);
  ASSERT_EQ(last.tensors.size(), 1u);
  EXPECT_EQ(last.tensors[0].name, "large");
  EXPECT_EQ(last.tensors[0].first_row, 128);
  EXPECT_EQ(last.tensors[0].num_rows, 2) << "there are no more";
  EXPECT_EQ(last.tensors[0].device_rows, 16);
  EXPECT_EQ(last.tensors[0].offset_bytes, shared.shared_offset);
}

}  // namespace
}  // namespace gapless
