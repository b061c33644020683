// Parity with the oracle (tools/gapless_tools/reference_model.py) at every stage, on the device
// named by GAPLESS_TEST_DEVICE. float32: within 1e-4 of each stage and the same greedy tokens.
// bfloat16: within 2e-2, and the same choice wherever the oracle's margin is larger than the error.
//
// The goldens in the tree are of the shipped models, and of a small Moondream 3 and small older ones of random weights that
// the test makes (tools/moondream3_goldens.py, tools/older_goldens.py). GAPLESS_GOLDEN_FOLDER and GAPLESS_GOLDEN_MODEL choose other goldens and their
// model (a --model value).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>

#include "base/file_bytes.h"
#include "constraint/reasoning_automaton.h"
#include "constraint/spatial_automaton.h"
#include "image/crop_tiles.h"
#include "image/decode_image.h"
#include "model/model_loader.h"
#include "model/random_model.h"
#include "model/step_driver.h"
#include "testing/recorded_stages.h"
#include "testing/tensor_compare.h"
#include "tests/golden/choices.h"
#include "tests/golden/golden_case.h"
#include "tests/golden/region_logits.h"
#include "tests/per_device/test_device.h"
#include "weights/test_files.h"

namespace gapless {
namespace {

std::string setting(const char* name, const char* fallback) {
  const char* const value = std::getenv(name);
  return value == nullptr ? fallback : value;
}

// The model of a set of goldens that the test makes; empty: it is there already.
std::string random_model_of(std::string_view set) {
  if (set.starts_with("moondream3")) return "random:moondream3-small:7";
  if (set == "moondream05b") return "random:moondream-0.5b-small:7";
  if (set == "moondream2_march") return "random:moondream2-march-small:7";
  return "";
}

// Of a set whose model is in the tree; nothing: the model that ships for Moondream 2.
std::string shipped_model_of(std::string_view set) {
  return set == "tiny3" ? GAPLESS_SOURCE_DIR "/models/tiny3" : "";
}

// A case and where it is. `set`: a folder of tests/golden; empty: of GAPLESS_GOLDEN_FOLDER.
struct CaseName {
  std::string set, name;
};

void PrintTo(const CaseName& one, std::ostream* os) {
  *os << one.set << "/" << one.name;
}

std::filesystem::path golden_folder(const std::string& set) {
  if (set.empty()) return setting("GAPLESS_GOLDEN_FOLDER", "");
  return GAPLESS_SOURCE_DIR "/tests/golden/" + set;
}

std::vector<CaseName> all_cases() {
  std::vector<CaseName> cases;
  const auto add = [&](const std::string& set) {
    for (const std::string& name : golden_case_names(golden_folder(set)))
      cases.push_back({set, name});
  };
  if (!setting("GAPLESS_GOLDEN_FOLDER", "").empty()) {
    add("");
    return cases;
  }
  for (const char* set :
       {"tiny", "tiny3", "moondream3", "moondream3_other", "moondream05b", "moondream2_march"})
    add(set);
  return cases;
}

// The random model as a checkpoint, so that its weights are rounded to bfloat16, as the oracle's were.
StatusOr<std::filesystem::path> write_model(const std::string& random_model,
                                            const std::filesystem::path& folder,
                                            bool other_numerics) {
  GAPLESS_ASSIGN_OR_RETURN(ModelSource source, find_model(random_model));
  for (const NumericsOption& option : numerics_options()) {
    if (other_numerics) option.set(source.config.numerics, 1);
  }
  GAPLESS_RETURN_IF_ERROR(write_random_model(source, folder));
  std::error_code error;
  std::filesystem::copy_file(source.tokenizer, folder / "tokenizer.json",
                             std::filesystem::copy_options::overwrite_existing, error);
  return error ? StatusOr<std::filesystem::path>(data_loss("{}", error.message())) : folder;
}

// CRC-32 as in PNG and zlib.
std::uint32_t crc32(std::span<const std::uint8_t> bytes) {
  std::uint32_t crc = 0xFFFFFFFFu;
  for (const std::uint8_t byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1u) != 0 ? 0xEDB88320u : 0u);
  }
  return ~crc;
}

class ParityTest : public DeviceTest, public testing::WithParamInterface<CaseName> {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(DeviceTest::SetUp());
    std::string model = GetParam().set.empty() ? setting("GAPLESS_GOLDEN_MODEL", "")
                                               : shipped_model_of(GetParam().set);
    if (const std::string random_model = random_model_of(GetParam().set); !random_model.empty()) {
      folder_.emplace();
      const auto folder = write_model(random_model, folder_->path() / "model",
                                      GetParam().set == "moondream3_other");
      ASSERT_TRUE(folder.ok()) << folder.status().to_string();
      model = folder->string();
    }
    auto loaded = load_model(std::move(device_), model,
                             {.compute = test_compute(), .adjust_limits = nullptr});
    ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
    loaded_ = std::move(loaded).value();
    if (loaded_->config.text.moe.num_experts > 0 && !is_f32()) {
      GTEST_SKIP() << "in bfloat16 a token may choose other experts than the oracle's, and its row "
                      "is another one then";
    }
    auto golden = load_golden_case(golden_folder(GetParam().set), GetParam().name);
    ASSERT_TRUE(golden.ok()) << golden.status().to_string();
    golden_ = std::move(golden).value();
    auto driver = StepDriver::create(*loaded_->device, *loaded_->model);
    ASSERT_TRUE(driver.ok()) << driver.status().to_string();
    driver_ = std::move(driver).value();
    stages_ = std::make_unique<RecordedStages>(*loaded_->device);
    make_image_crops();
  }
  void TearDown() override {
    for (const auto& [stage, error] : errors_) RecordProperty(stage, fmt::format("{:.1e}", error));
    driver_.reset();
    loaded_.reset();
  }

  bool is_f32() const { return loaded_->kernels->activation_dtype() == DType::kF32; }
  double tolerance() const { return is_f32() ? 1e-4 : 2e-2; }
  // Of one row. A few rows carry a massive activation that amplifies bfloat16's rounding: PyTorch's
  // own bfloat16 run of the shipped model is off by up to 0.046 in a row and 0.012 over a stage.
  double row_tolerance() const { return is_f32() ? tolerance() : 4 * tolerance(); }
  int image_tokens() const { return loaded_->model->info().image_tokens; }

  void make_image_crops() {
    for (const std::filesystem::path& path : golden_.images) {
      const auto bytes = read_file(path, kMaxImageBytes);
      ASSERT_TRUE(bytes.ok()) << bytes.status().to_string();
      const auto image = decode_image(std::as_bytes(std::span(*bytes)), {});
      ASSERT_TRUE(image.ok()) << image.status().to_string();
      auto crops = make_crops(*image, loaded_->crop_geometry());
      ASSERT_TRUE(crops.ok()) << crops.status().to_string();
      crops_.push_back(std::move(crops).value());
    }
  }

  int num_images() const { return static_cast<int>(crops_.size()); }

  void encode_images() {
    for (int i = 0; i < num_images(); ++i) {
      const CropSet& crops = crops_[static_cast<std::size_t>(i)];
      const DriverImage image{.crops = crops.pixels,
                              .tile_rows = crops.tiling.rows,
                              .tile_cols = crops.tiling.cols,
                              .image_slot = image_slot(i)};
      GAPLESS_ASSERT_OK(driver_->encode({&image, 1}));
    }
  }

  // BOS, the images, the request's prompt, as one fused prefill.
  DriverPrompt prompt_of(const GoldenRequest& request) const {
    const TokenizerConfig& tokenizer = loaded_->config.tokenizer;
    DriverPrompt prompt{.row = 0, .prefix_len = 1};
    prompt.inputs.push_back({.kind = InputKind::kText, .id = tokenizer.bos_id.value});
    for (int image = 0; image < num_images(); ++image) {
      if (image > 0) prompt.block_ends.push_back(prompt.prefix_len);
      for (int i = 0; i < image_tokens(); ++i) {
        prompt.inputs.push_back(
            {.kind = InputKind::kImage, .id = image_slot(image) * image_tokens() + i});
      }
      prompt.prefix_len += image_tokens();
    }
    for (const std::int32_t id : request.prompt_ids) prompt.inputs.push_back({.id = id});
    prompt.state.stop_ids[prompt.state.num_stop_ids++] = tokenizer.eos_id.value;
    if (request.is_spatial()) {
      const auto skill = request.skill == "point" ? SpatialSkill::kPoint : SpatialSkill::kDetect;
      prompt.state.automaton = automaton_start(skill);
      prompt.state.flags = kRowDecodesRegions;
      prompt.state.max_generated = spatial_max_generated(skill, kMaxObjects);
      return prompt;
    }
    const auto num_tokens = static_cast<std::int32_t>(request.token_ids.size());
    prompt.state.max_generated = num_tokens + 1;
    if (request.has_regions()) prompt.state.flags = kRowDecodesRegions;
    if (request.is_segment()) {
      prompt.state.automaton = segment_start();
    } else {
      if (request.reasons) {
        prompt.state.automaton = reasoning_start();
        prompt.state.exit_at = prompt.state.max_after_exit = num_tokens;
      }
      if (tokenizer.answer_id.valid()) {
        prompt.state.denied_ids[prompt.state.num_denied_ids++] = tokenizer.answer_id.value;
      }
    }
    return prompt;
  }

  // The kept rows of a golden stage against rows of a recorded one, from first_row on.
  void expect_stage(const std::string& golden_name, const RecordedStage& actual,
                    std::int64_t first_row = 0, std::int64_t first_column = 0,
                    std::int64_t num_rows = -1) {
    const GoldenTensor& golden = golden_.tensors.at(golden_name);
    std::vector<float> rows;
    std::vector<float> expected;
    for (std::int64_t i = 0; i < golden.num_kept(); ++i) {
      const std::int64_t row = i * golden.row_stride;
      if (num_rows >= 0 && row >= num_rows) break;
      ASSERT_LT(first_row + row, actual.num_rows) << golden_name;
      const float* values = actual.row(first_row + row) + first_column;
      rows.insert(rows.end(), values, values + golden.row_size);
      const float* kept = golden.rows.data() + i * golden.row_size;
      expected.insert(expected.end(), kept, kept + golden.row_size);
    }
    ASSERT_FALSE(rows.empty()) << golden_name;
    EXPECT_TRUE(rows_close(rows, expected, static_cast<int>(golden.row_size), row_tolerance()))
        << golden_name;
    const double error = relative_error(rows, expected);
    // A stage of a single row, as the last hidden state is, has a row's bound (docs/parity.md).
    const bool is_one_row = std::ssize(rows) == golden.row_size;
    EXPECT_LE(error, is_one_row ? row_tolerance() : tolerance()) << golden_name;
    note_error(golden_name, error);
  }

  // The largest error per stage goes into the test report (--gtest_output=json:FILE), for the
  // parity table that tools/parity_table.py prints.
  void note_error(const std::string& golden_name, double error) {
    const std::size_t of_prompt = golden_name.find(".prompt.");
    const bool in_request = of_prompt != std::string::npos;
    double& worst = errors_[in_request ? golden_name.substr(of_prompt + 1) : golden_name];
    worst = std::max(worst, error);
  }

  static double relative_error(std::span<const float> actual, std::span<const float> expected) {
    double error = 0, norm = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      error += std::pow(double{actual[i]} - double{expected[i]}, 2);
      norm += std::pow(double{expected[i]}, 2);
    }
    return std::sqrt(error / norm);
  }

  void expect_region_stage(const std::string& name, RegionHead head) {
    const GoldenTensor& golden = golden_.tensors.at(name);
    const auto logits = region_logits(*loaded_, driver_->hidden_dev(), head);
    ASSERT_TRUE(logits.ok()) << logits.status().to_string();
    // One row. PyTorch's own bfloat16 run is off by up to 0.018 here, and by 0.019 in the hidden
    // state of the row (pair, request 1) that is off the most in ours too.
    EXPECT_TRUE(
        rows_close(*logits, golden.rows, static_cast<int>(golden.rows.size()), row_tolerance()))
        << name;
    note_error(name, relative_error(*logits, golden.rows));
  }

  // Of the image that was encoded last.
  void expect_vision_stages() {
    // The encoder runs in chunks of crops. A 1x1 tiling's golden has the crop twice, so only the
    // rows that were recorded count.
    auto expect_chunks = [&](const std::string& name) {
      RecordedStage all;
      for (const RecordedStage& chunk : stages_->all(name)) {
        all.num_rows += chunk.num_rows;
        all.num_columns = chunk.num_columns;
        all.values.insert(all.values.end(), chunk.values.begin(), chunk.values.end());
      }
      expect_stage(name, all, 0, 0, all.num_rows);
    };
    const VisionConfig& vision = loaded_->config.vision;
    expect_chunks("vision.patch_embedding");
    for (int i = 0; i < vision.enc_n_layers; ++i)
      expect_chunks("vision.block." + std::to_string(i));
    expect_chunks("vision.post_ln");
    expect_stage("vision.pooled", stages_->last("vision.pooled"), 0, vision.enc_dim);
    expect_stage("vision.projection", stages_->last("vision.projection"));
  }

  void expect_prefill_stages(const DriverPrompt& prompt, const std::string& of_request) {
    stages_->clear();
    const auto outputs = driver_->prefill({&prompt, 1});
    ASSERT_TRUE(outputs.ok()) << outputs.status().to_string();
    for (int i = 0; i < loaded_->config.text.n_layers; ++i) {
      const std::string block = "text.block." + std::to_string(i);
      // The prefix, whatever the prompt; of several images the last one's block.
      expect_stage(block, stages_->last(block),
                   num_images() > 1 ? prompt.prefix_len - image_tokens() : 0);
      expect_stage(of_request + block, stages_->last(block), prompt.prefix_len);
    }
    expect_stage(of_request + "last_hidden", stages_->last("text.hidden"));
    expect_stage(of_request + "final_hidden", stages_->last("text.post_ln"));
    expect_stage(of_request + "logits", stages_->last("text.logits"));
    expect_region_stage(of_request + "coord_logits", RegionHead::kCoord);
    expect_region_stage(of_request + "size_logits", RegionHead::kSize);
  }

  double largest_error(std::span<const float> actual, const std::string& golden_name) const {
    const std::vector<float>& expected = golden_.tensors.at(golden_name).rows;
    double largest = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      largest = std::max(largest, std::abs(double{actual[i]} - double{expected[i]}));
    }
    return largest;
  }

  // Of the prompt that was prefilled last. Later steps may be a little worse: twice that, and a
  // margin is the difference of two logits.
  ChoiceErrors logit_errors(const std::string& of_request) {
    const void* hidden = driver_->hidden_dev();
    const auto logits = driver_->logits(1);
    const auto coord = region_logits(*loaded_, hidden, RegionHead::kCoord);
    const auto size = region_logits(*loaded_, hidden, RegionHead::kSize);
    EXPECT_TRUE(logits.ok() && coord.ok() && size.ok());
    constexpr double kSlack = 4;
    return {.token = kSlack * largest_error(*logits, of_request + "logits"),
            .coord = kSlack * largest_error(*coord, of_request + "coord_logits"),
            .size = kSlack * largest_error(*size, of_request + "size_logits")};
  }

  // Not in the order of the images.
  int image_slot(int image) const { return 1 + (num_images() - image) * 2; }
  std::optional<testing_files::TemporaryFolder> folder_;
  std::unique_ptr<LoadedModel> loaded_;
  GoldenCase golden_;
  std::map<std::string, double> errors_;  // by stage
  std::vector<CropSet> crops_;            // by image
  std::unique_ptr<StepDriver> driver_;
  std::unique_ptr<RecordedStages> stages_;
};

TEST_P(ParityTest, Crops) {
  if (num_images() != 1) return;  // several have a case each
  const CropSet& crops = crops_[0];
  EXPECT_EQ(crops.tiling, (Tiling{golden_.tile_rows, golden_.tile_cols}));
  const std::size_t crop_bytes = loaded_->model->info().crop_bytes;
  for (int i = 0; i < crops.num_crops; ++i) {
    const auto index = static_cast<std::size_t>(i);
    EXPECT_EQ(crc32(std::span(crops.pixels).subspan(index * crop_bytes, crop_bytes)),
              golden_.crop_crc32.at(index))
        << "crop " << i;
  }
}

// One test for all of a case, because encoding the images is most of the work.
TEST_P(ParityTest, EveryStageAndChoice) {
  loaded_->model->set_stage_recorder(stages_.get());
  ASSERT_NO_FATAL_FAILURE(encode_images());
  if (num_images() == 1) expect_vision_stages();
  for (std::size_t r = 0; r < golden_.requests.size(); ++r) {
    SCOPED_TRACE("request " + std::to_string(r));
    const GoldenRequest& request = golden_.requests[r];
    const std::string of_request = "request." + std::to_string(r) + ".prompt.";
    const DriverPrompt prompt = prompt_of(request);
    loaded_->model->set_stage_recorder(stages_.get());
    ASSERT_NO_FATAL_FAILURE(expect_prefill_stages(prompt, of_request));
    // float32: every choice is the oracle's. bfloat16: where a choice differs, the oracle's margin
    // must be small beside the error of the logits; what follows such a choice is not comparable.
    const ChoiceErrors errors = is_f32() ? ChoiceErrors() : logit_errors(of_request);
    loaded_->model->set_stage_recorder(nullptr);
    const auto outputs = driver_->generate(prompt);
    ASSERT_TRUE(outputs.ok()) << outputs.status().to_string();
    compare_choices(request, *outputs, loaded_->config, errors);
  }
}

TEST(GoldenCases, AreThere) {
  EXPECT_GE(all_cases().size(), 3u);
  EXPECT_GE(golden_case_names(golden_folder("tiny")).size(), 3u);
  EXPECT_GE(golden_case_names(golden_folder("tiny3")).size(), 3u);
  EXPECT_GE(golden_case_names(golden_folder("moondream3")).size(), 3u);
  EXPECT_GE(golden_case_names(golden_folder("moondream3_other")).size(), 1u);
  EXPECT_GE(golden_case_names(golden_folder("moondream05b")).size(), 3u);
  EXPECT_GE(golden_case_names(golden_folder("moondream2_march")).size(), 1u);
}

// Skills that the shipped Moondream 2 has not.
TEST(GoldenCases, SomeReasonAndSomeOutline) {
  int num_reasoned = 0, num_segments = 0;
  for (const std::string& name : golden_case_names(golden_folder("tiny3"))) {
    const auto golden = load_golden_case(golden_folder("tiny3"), name);
    ASSERT_TRUE(golden.ok()) << golden.status().to_string();
    for (const GoldenRequest& request : golden->requests) {
      num_reasoned += request.reasons && !request.bins.empty() ? 1 : 0;
      num_segments += request.is_segment() ? 1 : 0;
    }
  }
  EXPECT_GE(num_reasoned, 2);
  EXPECT_GE(num_segments, 2);
}

TEST(GoldenCases, OneHasSeveralImages) {
  const auto pair = load_golden_case(GAPLESS_SOURCE_DIR "/tests/golden/tiny", "pair");
  ASSERT_TRUE(pair.ok()) << pair.status().to_string();
  EXPECT_EQ(pair->images.size(), 2u);
}

INSTANTIATE_TEST_SUITE_P(Goldens, ParityTest, testing::ValuesIn(all_cases()),
                         [](const auto& case_info) {
                           const CaseName& one = case_info.param;
                           return one.set.empty() || one.set == "tiny" ? one.name
                                                                       : one.set + "_" + one.name;
                         });

}  // namespace
}  // namespace gapless
