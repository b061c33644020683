// What a name leads to when everything is in the cache: no network.
#include "hub/hub_model.h"

#include <gtest/gtest.h>

#include "model/moondream/test_config.h"

namespace gapless {
namespace {

namespace fs = std::filesystem;
using testing_files::TemporaryFolder;

constexpr const char* kRevision = "0123456789abcdef0123456789abcdef01234567";
constexpr const char* kOtherCommit = "89abcdef0123456789abcdef0123456789abcdef";

// A cache without blobs: the library reads links and files alike.
class HubModelTest : public ::testing::Test {
 protected:
  fs::path snapshot(const std::string& repository, const std::string& commit) {
    const fs::path root = folder_.path() / HubName{repository}.folder();
    fs::create_directories(root / "refs");
    fs::create_directories(root / "snapshots" / commit);
    write(root / "refs/main", commit);
    return root / "snapshots" / commit;
  }
  void write(const fs::path& path, std::string_view text) {
    ASSERT_TRUE(write_file(path, std::as_bytes(std::span(text))).ok());
  }
  StatusOr<HubModel> find(const std::string& name) {
    HubSettings settings;
    settings.cache = folder_.path();
    settings.offline = true;
    settings.endpoint = *parse_url("http://127.0.0.1:9/");
    return find_hub_model(*parse_hub_name(name), settings, {});
  }

  const TemporaryFolder folder_;
};

TEST_F(HubModelTest, TheTokenizerIsTakenFromWhereTheseWeightsHaveIt) {
  const fs::path weights = snapshot("vikhyatk/moondream2", kRevision);
  write(weights / "config.json", "{}");
  testing_files::write_weights(weights / "model.safetensors",
                               testing_config::tensors_of(moondream2_config(), TensorDType::kBF16));
  // That of the older releases, which lies beside the weights of this one.
  write(weights / "tokenizer.json", "{}");
  const auto missing = find("vikhyatk/moondream2");
  EXPECT_EQ(missing.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(missing.status().message().find("moondream/starmie-v1: tokenizer.json is not in"),
            std::string::npos)
      << missing.status().message();

  const fs::path tokenizer = snapshot("moondream/starmie-v1", kOtherCommit) / "tokenizer.json";
  write(tokenizer, "{}");
  for (const char* name : {"vikhyatk/moondream2", "someone/a-copy-of-it"}) {
    if (std::string(name) != "vikhyatk/moondream2") {
      fs::create_directories(folder_.path() / "models--someone--a-copy-of-it");
      fs::copy(folder_.path() / "models--vikhyatk--moondream2",
               folder_.path() / "models--someone--a-copy-of-it",
               fs::copy_options::recursive | fs::copy_options::create_hard_links);
      // A name with "--" in it has no place of its own in the cache.
      EXPECT_FALSE(parse_hub_name("someone/a--copy").ok());
    }
    const auto model = find(name);
    ASSERT_TRUE(model.ok()) << model.status().message();
    EXPECT_EQ(model->tokenizer, tokenizer);
    EXPECT_EQ(model->checkpoint.filename(), kRevision);
  }
}

TEST_F(HubModelTest, AModelMadeForGaplessHasItsOwn) {
  const fs::path weights = snapshot("org/tiny", kRevision);
  const fs::path shipped = fs::path(GAPLESS_SOURCE_DIR) / "models/tiny";
  for (const char* file : {"config.json", "model.safetensors"}) {
    fs::create_symlink(shipped / file, weights / file);
  }
  EXPECT_EQ(find("org/tiny").status().code(), StatusCode::kUnavailable);
  fs::create_symlink(shipped / "tokenizer.json", weights / "tokenizer.json");
  const auto model = find("org/tiny");
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->tokenizer, weights / "tokenizer.json");
}

TEST_F(HubModelTest, ATextModelHasItsOwnInShardsToo) {
  const fs::path weights = snapshot("org/text", kRevision);
  const fs::path published =
      fs::path(GAPLESS_SOURCE_DIR) / "tests/golden/llama/llama-grouped-scaled-tied";
  for (const auto& file : fs::directory_iterator(published)) {
    fs::create_symlink(file.path(), weights / file.path().filename());
  }
  const auto model = find("org/text");
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->checkpoint, weights);
  EXPECT_EQ(model->tokenizer, weights / "tokenizer.json");
  fs::remove(weights / "model-00002-of-00005.safetensors");
  EXPECT_NE(find("org/text").status().message().find("model-00002-of-00005.safetensors is not in"),
            std::string::npos);
}

TEST_F(HubModelTest, AnUnknownArchitectureIsRefusedByItsConfigAlone) {
  const fs::path weights = snapshot("org/other", kRevision);
  write(weights / "config.json", R"({"architectures": ["BertModel"], "model_type": "bert"})");
  const auto model = find("org/other");
  EXPECT_EQ(model.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(model.status().message().find("'BertModel'"), std::string::npos);
}

TEST_F(HubModelTest, WhatDoesNotRunIsRefused) {
  const fs::path weights = snapshot("vikhyatk/moondream2", kRevision);
  write(weights / "config.json", "{}");
  testing_files::write_weights(weights / "model.safetensors",
                               testing_config::tensors_of(moondream2_config(), TensorDType::kF16));
  const auto model = find("vikhyatk/moondream2");
  EXPECT_EQ(model.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(model.status().message().find("its release cannot be told"), std::string::npos);
}

}  // namespace
}  // namespace gapless
