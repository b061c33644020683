#include "model/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/model_source.h"
#include "weights/test_files.h"

namespace gapless {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing_files::TemporaryFolder;

StatusOr<ModelFamily> family_of(std::string_view config) {
  const TemporaryFolder folder;
  folder.write("config.json", config);
  return choose_family(folder.path());
}

TEST(Registry, ConfigJsonChooses) {
  for (const std::string_view config :
       {R"({"architectures": ["HfMoondream"], "model_type": "moondream1"})",
        R"({"architectures": ["HfMoondream"], "model_type": "moondream3"})",
        R"({"model_type": "moondream3"})", R"({"architectures": ["HfMoondream"]})",
        R"({"model_type": "moondream1"})",
        R"({"architectures": ["HfMoondream"], "model_type": "of a later release"})",
        R"({"gapless": {"format": 1}})", "{}"}) {
    const auto family = family_of(config);
    ASSERT_TRUE(family.ok()) << config << ": " << family.status().to_string();
    EXPECT_EQ(*family, ModelFamily::kMoondream) << config;
  }
}

TEST(Registry, AFileHasItsConfigBesideItAndNoConfigIsMoondream) {
  const TemporaryFolder folder;
  EXPECT_TRUE(choose_family(folder.path()).ok());
  folder.write("config.json", R"({"architectures": ["BertModel"]})");
  EXPECT_FALSE(choose_family(folder.path() / "model.safetensors").ok());
}

TEST(Registry, AnUnknownArchitectureIsRefusedWithWhatWasFoundAndWhatRuns) {
  const auto bert = family_of(R"({"architectures": ["BertModel"], "model_type": "bert"})");
  EXPECT_EQ(bert.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(bert.status().message(),
              AllOf(HasSubstr("config.json: architecture 'BertModel', model type 'bert'"),
                    HasSubstr("It runs HfMoondream (moondream1)")));
  // The architecture has the last word.
  EXPECT_FALSE(family_of(R"({"architectures": ["BertModel"], "model_type": "moondream1"})").ok());
  EXPECT_THAT(family_of(R"({"model_type": "gpt2"})").status().message(),
              HasSubstr("architecture not said, model type 'gpt2'"));
  for (const std::string_view bad : {"", "[]", R"({"architectures": "BertModel"})",
                                     R"({"architectures": [1]})", R"({"model_type": 1})"}) {
    EXPECT_THAT(family_of(bad).status().message(), HasSubstr("config.json")) << bad;
  }
}

// Before anything is looked for in the weights.
TEST(Registry, AModelOfAnotherFamilyIsNotFound) {
  const TemporaryFolder folder;
  folder.write("config.json", R"({"architectures": ["BertModel"], "model_type": "bert"})");
  EXPECT_THAT(find_model(folder.path().string()).status().message(), HasSubstr("'BertModel'"));
}

}  // namespace
}  // namespace gapless
