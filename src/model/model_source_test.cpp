#include "model/model_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/moondream/test_config.h"
#include "model/random_model.h"
#include "weights/test_files.h"

namespace gapless {
namespace {

using ::testing::HasSubstr;
using testing_files::TemporaryFolder;

std::string error_of_source(std::string_view name) {
  const auto source = find_model(name);
  EXPECT_FALSE(source.ok()) << name;
  return source.ok() ? "" : source.status().message();
}

TEST(ModelSource, RandomModels) {
  const auto plain = find_model("random:moondream2");
  ASSERT_TRUE(plain.ok()) << plain.status().to_string();
  EXPECT_EQ(plain->config, moondream2_config());
  EXPECT_EQ(plain->random_seed, 0u);
  EXPECT_FALSE(plain->checkpoint);

  const auto seeded = find_model("random:moondream-0.5b:12345678901234567890");
  ASSERT_TRUE(seeded.ok()) << seeded.status().to_string();
  EXPECT_EQ(seeded->config.text.dim, 1024);
  EXPECT_EQ(seeded->random_seed, 12345678901234567890u);
}

TEST(ModelSource, ErrorsSayWhatIsWrong) {
  EXPECT_THAT(error_of_source("random:moondream4"), HasSubstr("unknown architecture 'moondream4'"));
  EXPECT_THAT(error_of_source("random:moondream2:-1"), HasSubstr("'-1' is not a seed"));
  EXPECT_THAT(error_of_source("random:moondream2:7x"), HasSubstr("'7x' is not a seed"));
  EXPECT_THAT(error_of_source("/no/such/model"), HasSubstr("/no/such/model: no such file"));
  const TemporaryFolder folder;
  EXPECT_THAT(error_of_source(folder.path().string()),
              HasSubstr("has neither model.safetensors nor"));
  ASSERT_TRUE(write_random_model({.config = testing_config::very_small_config(), .random_seed = 1},
                                 folder.path())
                  .ok());
  folder.write("config.json", "{\"text\": {\"dim\": ");
  EXPECT_THAT(error_of_source(folder.path().string()), HasSubstr("config.json"));
}

TEST(ModelSource, AFolderAndTheFileInItAreTheSameModel) {
  const TemporaryFolder folder;
  const ModelConfig config = testing_config::very_small_config();
  ASSERT_TRUE(write_random_model({.config = config, .random_seed = 1}, folder.path()).ok());
  const auto of_folder = find_model(folder.path().string());
  const auto of_file = find_model((folder.path() / "model.safetensors").string());
  ASSERT_TRUE(of_folder.ok()) << of_folder.status().to_string();
  ASSERT_TRUE(of_file.ok()) << of_file.status().to_string();
  EXPECT_EQ(of_folder->config, config);
  EXPECT_EQ(of_file->config, config);
  EXPECT_EQ(of_folder->tokenizer, of_file->tokenizer);
  const auto text = describe_source(*of_folder);
  ASSERT_TRUE(text.ok()) << text.status().to_string();
  EXPECT_THAT(*text, HasSubstr("MB of BF16"));
}

TEST(ModelSource, TheShippedModelIsFound) {
  const auto folder = shipped_model_folder();
  ASSERT_TRUE(folder.ok()) << folder.status().to_string();
  EXPECT_EQ(folder->filename(), "tiny");
}

}  // namespace
}  // namespace gapless
