// The whole way from a coarse path to a refined one, with a network of random weights.
#include "refine/segment_refiner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace gapless {
namespace {

const std::filesystem::path kHead = GAPLESS_SOURCE_DIR "/tests/golden/refiner/head.safetensors";
constexpr std::string_view kSquare = "M 0 0 L 1 0 L 1 1 L 0 1 Z";

Image picture(int width, int height) {
  Image image{.width = width, .height = height, .rgb = {}};
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      const bool inside = std::hypot(x - 0.5 * width, y - 0.4 * height) < 0.2 * width;
      for (const int value : {inside ? 230 : x % 256, inside ? 40 : y % 256, 90}) {
        image.rgb.push_back(static_cast<std::uint8_t>(value));
      }
    }
  }
  return image;
}

std::unique_ptr<SegmentRefiner> load_refiner() {
  const ModelSource source = find_model("random:moondream3-small:5").value();
  auto refiner = SegmentRefiner::load(source, kHead, Compute::kFloat32);
  EXPECT_TRUE(refiner.ok()) << refiner.status().to_string();
  return std::move(refiner).value();
}

TEST(SegmentRefinerTest, APathOfThePictureComesBack) {
  const auto refiner = load_refiner();
  EXPECT_GT(refiner->bytes(), 1u << 20);
  const MarkBox box{0.3f, 0.2f, 0.7f, 0.6f};
  const auto refined = refiner->refine(picture(300, 240), kSquare, box, nullptr);
  ASSERT_TRUE(refined.ok()) << refined.status().to_string();
  ASSERT_TRUE(refined->has_value()) << "these weights leave something";
  EXPECT_TRUE(flatten_svg_path((*refined)->path, 0.01).ok()) << (*refined)->path;
  const MarkBox& found = (*refined)->box;
  // Inside of the box and a quarter of it on each side, with a pixel at most.
  EXPECT_GE(found.x_min, 0.2f - 1.0f / 300);
  EXPECT_LE(found.x_max, 0.8f + 1.0f / 300);
  EXPECT_GE(found.y_min, 0.1f - 1.0f / 240);
  EXPECT_LE(found.y_max, 0.7f + 1.0f / 240);
  EXPECT_LT(found.x_min, found.x_max);
  EXPECT_LT(found.y_min, found.y_max);
  // The same again, and another one for another path.
  const auto again = refiner->refine(picture(300, 240), kSquare, box, nullptr);
  EXPECT_EQ((*again)->path, (*refined)->path);
  const auto other = refiner->refine(picture(300, 240), "M 0 0 L 0.4 0 L 0 0.4 Z", box, nullptr);
  ASSERT_TRUE(other.ok());
  EXPECT_TRUE(!other->has_value() || (*other)->path != (*refined)->path) << (*refined)->path;
  // And for another picture.
  const auto elsewhere = refiner->refine(picture(311, 240), kSquare, box, nullptr);
  EXPECT_TRUE(!elsewhere->has_value() || (*elsewhere)->path != (*refined)->path);
}

TEST(SegmentRefinerTest, WhereNothingIsInsideNothingComesBack) {
  const auto refiner = load_refiner();
  const Image image = picture(60, 50);
  // Lines without an inside, a box without one, a path outside of the picture.
  for (const auto& [path, box] : {std::pair{"M 0 0 L 1 1 Z", MarkBox{0.2f, 0.2f, 0.6f, 0.6f}},
                                  {kSquare.data(), MarkBox{0.4f, 0.4f, 0.4f, 0.4f}},
                                  {"M 4 4 L 5 4 L 5 5 Z", MarkBox{0.2f, 0.2f, 0.6f, 0.6f}}}) {
    const auto refined = refiner->refine(image, path, box, nullptr);
    ASSERT_TRUE(refined.ok()) << refined.status().to_string();
    EXPECT_FALSE(refined->has_value()) << path;
  }
}

TEST(SegmentRefinerTest, SmallPicturesAndBoxesAtTheEdgeAreRefined) {
  const auto refiner = load_refiner();
  for (const auto& [width, height] : {std::pair{1, 1}, {3, 2}, {40, 1}, {500, 379}}) {
    const auto refined = refiner->refine(picture(width, height), kSquare, {0, 0, 1, 1}, nullptr);
    ASSERT_TRUE(refined.ok()) << width << ": " << refined.status().to_string();
  }
}

TEST(SegmentRefinerTest, WhoeverStopsItGetsItBackSoon) {
  const auto refiner = load_refiner();
  const Image image = picture(200, 200);
  // Asked between the encoder's blocks and between the rounds: wherever it says so, that was the last question.
  int num_asked = 0;
  ASSERT_TRUE(refiner
                  ->refine(image, kSquare, {0.2f, 0.2f, 0.8f, 0.8f},
                           [&] {
                             ++num_asked;
                             return false;
                           })
                  .ok());
  EXPECT_GE(num_asked, SegmentRefiner::kRounds + 2);
  for (int last = 1; last <= num_asked; ++last) {
    int count = 0;
    const auto refined =
        refiner->refine(image, kSquare, {0.2f, 0.2f, 0.8f, 0.8f}, [&] { return ++count >= last; });
    EXPECT_EQ(refined.status().code(), StatusCode::kCancelled);
    EXPECT_EQ(count, last);
  }
}

TEST(SegmentRefinerTest, TheAreaIsTheBoxAndAQuarterOnEachSide) {
  EXPECT_EQ(area_around({0.4f, 0.25f, 0.6f, 0.75f}, 1000, 400), (PixelArea{350, 50, 650, 350}));
  EXPECT_EQ(area_around({0, 0, 1, 1}, 1000, 400), (PixelArea{0, 0, 1000, 400}));
}

TEST(SegmentRefinerTest, AModelThatDoesNotSegmentHasNothingToRefine) {
  for (const char* model : {"", "random:moondream-0.5b-small", "random:qwen3-1.7b"}) {
    const Status status =
        SegmentRefiner::load(find_model(model).value(), kHead, Compute::kFloat32).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << model;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("has no segments"));
  }
}

}  // namespace
}  // namespace gapless
