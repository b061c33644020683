#include "engine/preprocess.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/file_bytes.h"
#include "base/limits.h"
#include "image/decode_image.h"
#include "image/write_png.h"

namespace gapless {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int kPoolCrops = kMaxTilesPerImage + 1;

// With the shipped model's tokenizer and crops.
class PreprocessTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    model_ = load_model(open_device("cpu").value(), "").value().release();
  }
  static void TearDownTestSuite() { delete model_; }

  void SetUp() override {
    crops_ =
        CropPool::create(*model_->device, kPoolCrops, model_->model->info().crop_bytes).value();
    preprocessor_.emplace(*model_, crops_);
  }

  static std::shared_ptr<const std::string> file(const std::string& name) {
    return std::make_shared<const std::string>(
        read_file(GAPLESS_SOURCE_DIR "/tests/golden/tiny/" + name, kMaxImageBytes).value());
  }
  static SkillRequest about(const std::vector<std::shared_ptr<const std::string>>& images) {
    SkillRequest request;
    request.text = "why?";
    request.images = images;
    return request;
  }
  static SkillRequest about_files(const std::vector<std::string>& names) {
    SkillRequest request = about({});
    for (const std::string& name : names) request.images.push_back(file(name));
    return request;
  }

  Status refusal(const SkillRequest& request) { return preprocessor_->prepare(request).status(); }

  // The crops that the image has alone.
  static void expect_crops_of(const std::string& name, const PreparedImage& image,
                              bool mirrored = false) {
    SCOPED_TRACE(name);
    expect_crops_of_bytes(*file(name), image, mirrored);
  }
  static void expect_crops_of_bytes(const std::string& bytes, const PreparedImage& image,
                                    bool mirrored = false) {
    Image decoded = decode_image(std::as_bytes(std::span(bytes))).value();
    if (mirrored) {
      const Image plain = decoded;
      for (int i = 0; i < plain.width * plain.height; ++i) {
        const int x = i % plain.width, other = i - x + plain.width - 1 - x;
        for (int c = 0; c < 3; ++c) {
          decoded.rgb[static_cast<std::size_t>(3 * i + c)] =
              plain.rgb[static_cast<std::size_t>(3 * other + c)];
        }
      }
    }
    const CropSet crops = make_crops(decoded, model_->crop_geometry()).value();
    EXPECT_EQ(image.tile_rows, crops.tiling.rows);
    EXPECT_EQ(image.tile_cols, crops.tiling.cols);
    ASSERT_EQ(static_cast<int>(image.crops_pinned.size()), crops.num_crops);
    const std::size_t crop_bytes = model_->model->info().crop_bytes;
    for (std::size_t i = 0; i < image.crops_pinned.size(); ++i) {
      EXPECT_EQ(
          std::memcmp(image.crops_pinned[i], crops.pixels.data() + i * crop_bytes, crop_bytes), 0)
          << "crop " << i;
    }
  }

  static LoadedModel* model_;
  std::shared_ptr<CropPool> crops_;
  std::optional<Preprocessor> preprocessor_;
};

LoadedModel* PreprocessTest::model_ = nullptr;

TEST_F(PreprocessTest, EachImageHasItsOwnCrops) {
  auto prompt = preprocessor_->prepare(about_files({"wide.png", "single.png", "tall.png"}));
  EXPECT_EQ(prompt.status().code(), StatusCode::kResourceExhausted) << "2048 positions take two";
  prompt = preprocessor_->prepare(about_files({"wide.png", "single.png"}));
  ASSERT_TRUE(prompt.ok()) << prompt.status().to_string();
  EXPECT_EQ(prompt->prefix_len, 1 + 2 * 729);
  ASSERT_EQ(prompt->images.size(), 2u);
  expect_crops_of("wide.png", prompt->images[0]);
  expect_crops_of("single.png", prompt->images[1]);
}

TEST_F(PreprocessTest, CropsComeBackWithTheLastImage) {
  {
    auto prompt = preprocessor_->prepare(about_files({"wide.png", "single.png"}));
    ASSERT_TRUE(prompt.ok());
    EXPECT_EQ(crops_->num_free(), kPoolCrops - 9 - 1);
    prompt->images.pop_back();
    EXPECT_EQ(crops_->num_free(), kPoolCrops - 9 - 1) << "one lease for all";
  }
  EXPECT_EQ(crops_->num_free(), kPoolCrops);
}

TEST_F(PreprocessTest, ChoicesShareTheirPicture) {
  SkillRequest request = about_files({"wide.png"});
  request.settings.logit_bias = {{TokenId(9), 1.5f}};
  auto prompts = preprocessor_->prepare_choices(request, 3);
  ASSERT_TRUE(prompts.ok()) << prompts.status().to_string();
  ASSERT_EQ(prompts->size(), 3u);
  EXPECT_EQ(crops_->num_free(), kPoolCrops - 9) << "crops of one picture";
  for (const PreparedPrompt& prompt : *prompts) {
    EXPECT_EQ(prompt.images[0].crops_pinned, prompts->front().images[0].crops_pinned);
    EXPECT_EQ(prompt.images[0].prefix_hash, prompts->front().images[0].prefix_hash);
    EXPECT_EQ(prompt.inputs.size(), prompts->front().inputs.size());
    EXPECT_EQ(prompt.token_notes.size(), 1u);
  }
  expect_crops_of("wide.png", prompts->back().images[0]);
  prompts->pop_back();
  prompts->pop_back();
  EXPECT_EQ(crops_->num_free(), kPoolCrops - 9) << "as long as one is there";
  prompts->pop_back();
  EXPECT_EQ(crops_->num_free(), kPoolCrops);
}

TEST_F(PreprocessTest, EveryChoiceHasAConstraintOfItsOwn) {
  SkillRequest request = about_files({"single.png"});
  request.skill = Skill::kDetect;
  request.constraint_mode = ConstraintMode::kHostMask;
  const auto prompts = preprocessor_->prepare_choices(request, 2);
  ASSERT_TRUE(prompts.ok()) << prompts.status().to_string();
  ASSERT_NE((*prompts)[0].host_constraint, nullptr);
  ASSERT_NE((*prompts)[1].host_constraint, nullptr);
}

// The next question about a picture: its crops are still there.
TEST_F(PreprocessTest, AKnownPictureIsNotDecodedAgain) {
  const auto mark_first_crop_of = [](const PreparedImage& image, std::uint8_t mark) {
    *const_cast<std::uint8_t*>(image.crops_pinned[0]) = mark;  // NOLINT: to know it again
  };
  const SkillRequest one = about_files({"wide.png"});
  const SkillRequest two = about_files({"single.png", "tall.png"});
  PreparedImage wide = std::move(preprocessor_->prepare(one)->images[0]);
  const std::uint8_t truth = *wide.crops_pinned[0];
  const auto mark = static_cast<std::uint8_t>(truth + 1);
  mark_first_crop_of(wide, mark);
  EXPECT_EQ(crops_->num_free(), kPoolCrops - 9);
  {
    const auto again = preprocessor_->prepare(one);
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(*again->images[0].crops_pinned[0], mark);
    EXPECT_EQ(again->images[0].crops_pinned, wide.crops_pinned);
    EXPECT_EQ(again->images[0].hash, wide.hash);
    EXPECT_EQ(crops_->num_free(), kPoolCrops - 9) << "both share the crops";
  }
  mark_first_crop_of(wide, truth);
  wide = {};
  EXPECT_EQ(crops_->num_free(), kPoolCrops);
  expect_crops_of("wide.png", preprocessor_->prepare(one)->images[0]);

  // Of several all are known or all are made.
  for (int i = 0; i < 2; ++i) {
    const auto both = preprocessor_->prepare(two);
    ASSERT_TRUE(both.ok());
    expect_crops_of("single.png", both->images[0]);
    expect_crops_of("tall.png", both->images[1]);
  }
  SkillRequest stored = one;
  stored.apply_exif_orientation = false;
  const auto otherwise = preprocessor_->prepare(stored);
  ASSERT_TRUE(otherwise.ok());
  EXPECT_NE(otherwise->images[0].crops_pinned, preprocessor_->prepare(one)->images[0].crops_pinned)
      << "upright and as stored are two pictures";
}

TEST_F(PreprocessTest, AMirroredPictureIsAnotherOne) {
  for (const char* name : {"wide.png", "single.png"}) {
    SkillRequest request = about_files({name});
    const auto plain = preprocessor_->prepare(request);
    request.mirrored = true;
    const auto mirrored = preprocessor_->prepare(request);
    ASSERT_TRUE(plain.ok() && mirrored.ok());
    expect_crops_of(name, plain->images[0]);
    expect_crops_of(name, mirrored->images[0], /*mirrored=*/true);
    EXPECT_NE(plain->images[0].hash, mirrored->images[0].hash);
  }
}

// What a cached prefix stands for.
TEST_F(PreprocessTest, ThePrefixHashNamesTheImagesSoFarInOrder) {
  const auto hashes = [&](const std::vector<std::string>& names, bool exif = true) {
    SkillRequest request = about_files(names);
    request.apply_exif_orientation = exif;
    const auto prompt = preprocessor_->prepare(request);
    EXPECT_TRUE(prompt.ok()) << prompt.status().to_string();
    std::vector<ContentHash> result;
    for (const PreparedImage& image : prompt->images) result.push_back(image.prefix_hash);
    return result;
  };
  const auto single = hashes({"single.png"});
  const auto single_tall = hashes({"single.png", "tall.png"});
  const auto tall_single = hashes({"tall.png", "single.png"});
  const auto single_single = hashes({"single.png", "single.png"});
  EXPECT_EQ(single_tall[0], single[0]) << "one prefix begins the other";
  EXPECT_EQ(single_tall, hashes({"single.png", "tall.png"}));
  EXPECT_NE(single_tall[1], tall_single[1]);
  EXPECT_NE(single_single[1], single_single[0]);
  EXPECT_NE(single_single[1], single_tall[1]) << "the image itself counts";
  EXPECT_NE(single_single[1], tall_single[1]) << "what is before an image counts";
  EXPECT_NE(single_tall[1], hashes({"single.png", "tall.png"}, false)[1]);
}

TEST_F(PreprocessTest, ErrorsSayWhichImage) {
  const auto good = file("single.png");
  const auto corrupt = std::make_shared<const std::string>(good->substr(0, good->size() / 2));
  const auto none = std::make_shared<const std::string>("no picture at all");
  EXPECT_THAT(refusal(about({good, corrupt})).message(), StartsWith("image 2 of 2: "));
  EXPECT_THAT(refusal(about({none, good})).message(), StartsWith("image 1 of 2: "));
  EXPECT_EQ(refusal(about({good, corrupt})).code(), StatusCode::kDataLoss);
  EXPECT_EQ(refusal(about({good, corrupt})).field(), "image_url");
  EXPECT_THAT(refusal(about({corrupt})).message(), ::testing::Not(HasSubstr(" of ")));
  EXPECT_EQ(crops_->num_free(), kPoolCrops);
}

// A PNG's signature and IHDR.
std::shared_ptr<const std::string> png_header(std::uint32_t width, std::uint32_t height) {
  std::string bytes("\x89PNG\r\n\x1a\n\0\0\0\rIHDR", 16);
  for (const std::uint32_t side : {width, height}) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(side >> shift & 255);
  }
  bytes += std::string("\x08\x02\0\0\0\0\0\0\0", 9);
  return std::make_shared<const std::string>(bytes);
}

// All are decoded at once.
TEST_F(PreprocessTest, ImagesTogetherHaveTheBoundOfOne) {
  const auto large = png_header(8000, 8000);
  EXPECT_THAT(refusal(about({large, large})).message(),
              HasSubstr("the 2 images have 128000000 pixels together"));
  EXPECT_THAT(refusal(about({large, png_header(20000, 20000)})).message(),
              StartsWith("image 2 of 2: PNG image of 20000x20000"));
}

TEST_F(PreprocessTest, ImagesOfMoreCropsThanThereAreBuffersAreRefused) {
  // An extreme shape: 34 tiles in a row.
  Image strip{.width = 52000, .height = 379, .rgb = {}};
  strip.rgb.resize(std::size_t{3} * 52000 * 379, 0);
  const auto png = encode_png(strip).value();
  const auto bytes =
      std::make_shared<const std::string>(reinterpret_cast<const char*>(png.data()), png.size());
  EXPECT_THAT(refusal(about({bytes, bytes})).message(),
              HasSubstr("the 2 images are cut into 70 crops, more than the 65"));
  EXPECT_TRUE(preprocessor_->prepare(about({bytes})).ok());
}

// What a lane needs to know before anything is decoded.
TEST_F(PreprocessTest, TheQuickPartTellsWhatTheRestTakes) {
  StageTimes stages;
  const SkillRequest text = about({});
  EXPECT_EQ(preprocessor_->begin(text, 1, stages)->decode_bytes, 0);
  const SkillRequest one = about_files({"wide.png"});
  auto begun = preprocessor_->begin(one, 2, stages);
  ASSERT_TRUE(begun.ok());
  const auto info = probe_image(std::as_bytes(std::span(*one.images[0]))).value();
  const std::int64_t raster_bytes = std::int64_t{info.width} * info.height * info.num_channels;
  EXPECT_GT(begun->decode_bytes, raster_bytes);
  EXPECT_LT(begun->decode_bytes, raster_bytes * 3 + (4 << 20));
  EXPECT_TRUE(begun->prompts[0].images[0].crops_pinned.empty());
  ASSERT_TRUE(preprocessor_->finish(one, begun->prompts, {}, stages).ok());
  for (const PreparedPrompt& prompt : begun->prompts) expect_crops_of("wide.png", prompt.images[0]);
  EXPECT_EQ(preprocessor_->begin(one, 1, stages)->decode_bytes, 0) << "known now";
}

// Its rows are cut as they come, and take each other's places; a mirror needs them all.
TEST_F(PreprocessTest, ALargePictureIsNeverThereAsAWhole) {
  Image large{2000, 1450, {}};
  for (int i = 0; i < large.width * large.height; ++i) {
    const int x = i % large.width, y = i / large.width;
    large.rgb.insert(large.rgb.end(),
                     {static_cast<std::uint8_t>(x / 13), static_cast<std::uint8_t>(x * y >> 9),
                      static_cast<std::uint8_t>(y / 5)});
  }
  const auto png = encode_png(large).value();
  SkillRequest request = about(
      {std::make_shared<const std::string>(reinterpret_cast<const char*>(png.data()), png.size())});
  StageTimes stages;
  const std::int64_t passing_bytes = preprocessor_->begin(request, 1, stages)->decode_bytes;
  const auto prompt = preprocessor_->prepare(request);
  ASSERT_TRUE(prompt.ok()) << prompt.status().to_string();
  expect_crops_of_bytes(*request.images[0], prompt->images[0]);

  request.mirrored = true;
  EXPECT_EQ(preprocessor_->begin(request, 1, stages)->decode_bytes - passing_bytes,
            std::int64_t{3} * large.width * (large.height - kRowsKept));
  const auto mirrored = preprocessor_->prepare(request);
  ASSERT_TRUE(mirrored.ok()) << mirrored.status().to_string();
  expect_crops_of_bytes(*request.images[0], mirrored->images[0], true);
}

TEST_F(PreprocessTest, AStoppedPictureLeavesNoCrops) {
  StageTimes stages;
  const SkillRequest one = about_files({"wide.png"});
  auto begun = preprocessor_->begin(one, 1, stages);
  std::stop_source stop;
  (void)stop.request_stop();
  EXPECT_EQ(preprocessor_->finish(one, begun->prompts, stop.get_token(), stages).code(),
            StatusCode::kCancelled);
  EXPECT_EQ(crops_->num_free(), kPoolCrops);
  EXPECT_GT(preprocessor_->begin(one, 1, stages)->decode_bytes, 0) << "nothing half is remembered";
}

}  // namespace
}  // namespace gapless
