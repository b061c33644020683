#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weights/safetensors.h"
#include "weights/test_files.h"

namespace gapless {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing_files::safetensors_bytes;
using testing_files::TemporaryFolder;

std::string one_tensor(const char* name, char value) {
  return safetensors_bytes(
      fmt::format(R"({{"{}":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}})", name),
      std::string(1, value));
}

std::string error_of_folder(const std::filesystem::path& path) {
  const auto checkpoint = Checkpoint::open(path);
  return checkpoint.ok() ? "no error" : checkpoint.status().to_string();
}

TEST(Checkpoint, FileOrFolder) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of_folder(folder.path()),
              AllOf(HasSubstr("not found"), HasSubstr("has neither")));
  EXPECT_THAT(error_of_folder(folder.path() / "x.safetensors"), HasSubstr("x.safetensors"));
  const auto file = folder.write("model.safetensors", one_tensor("a", 'x'));
  EXPECT_EQ(Checkpoint::open(file).value().tensors().count("a"), 1u);
  EXPECT_EQ(Checkpoint::open(folder.path()).value().tensors().count("a"), 1u);
  EXPECT_THAT(error_of_folder(folder.write("empty.safetensors", "")),
              HasSubstr("0 bytes are too few"));
}

TEST(Checkpoint, Shards) {
  const TemporaryFolder folder;
  folder.write("s1.safetensors", one_tensor("a", 'x'));
  folder.write("s2.safetensors", one_tensor("b", 'y'));
  folder.write("model.safetensors.index.json",
               R"({"metadata":{},"weight_map":{"a":"s1.safetensors","b":"s2.safetensors"}})");
  const Checkpoint checkpoint = Checkpoint::open(folder.path()).value();
  EXPECT_EQ(checkpoint.files().size(), 2u);
  EXPECT_EQ(std::to_integer<char>(checkpoint.tensors().at("b").data[0]), 'y');
  EXPECT_EQ(checkpoint.file_bytes(), one_tensor("a", 'x').size() + one_tensor("b", 'y').size());
}

// So models may share a file: what the index does not give to a shard is another model's.
TEST(Checkpoint, AShardHasWhatTheIndexSaysAndNoMore) {
  const TemporaryFolder folder;
  const char* const header =
      R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},)"
      R"("c":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})";
  folder.write("own.safetensors", safetensors_bytes(header, "abc"));
  folder.write("shared.safetensors", safetensors_bytes(header, "ABC"));
  folder.write("model.safetensors.index.json",
               R"({"weight_map":{"a":"own.safetensors","b":"shared.safetensors"}})");
  const Checkpoint checkpoint = Checkpoint::open(folder.path()).value();
  EXPECT_EQ(checkpoint.tensors().size(), 2u);
  EXPECT_EQ(std::to_integer<char>(checkpoint.tensors().at("a").data[0]), 'a');
  EXPECT_EQ(std::to_integer<char>(checkpoint.tensors().at("b").data[0]), 'B');
}

TEST(Checkpoint, BadIndex) {
  const TemporaryFolder folder;
  folder.write("s1.safetensors", one_tensor("a", 'x'));
  folder.write("s2.safetensors", one_tensor("a", 'y'));
  const auto with = [&](std::string_view json) {
    return error_of_folder(folder.write("model.safetensors.index.json", json));
  };
  EXPECT_EQ(with(R"({"weight_map":{"a":"s1.safetensors"}})"), "no error");
  EXPECT_THAT(with(R"({"weight_map":{"a":"s1.safetensors","c":"s1.safetensors"}})"),
              HasSubstr("tensor 'c' is not in s1.safetensors"));
  EXPECT_THAT(with(R"({"weight_map":{"a":"s3.safetensors"}})"), HasSubstr("s3.safetensors"));
  folder.write("b.safetensors", one_tensor("b", 'z'));
  EXPECT_THAT(with(R"({"weight_map":{"a":"b.safetensors","b":"s1.safetensors"}})"),
              HasSubstr("tensor 'a' is not in b.safetensors"));
  EXPECT_THAT(with(R"({"weight_map":{"a":"s1.safetensors","b":"s2.safetensors"}})"),
              HasSubstr("tensor 'b' is not in s2.safetensors"));
  for (const char* name : {"../s1.safetensors", "/etc/passwd", "..", "", "a/b"}) {
    EXPECT_THAT(with(fmt::format(R"({{"weight_map":{{"a":"{}"}}}})", name)),
                HasSubstr("is not the name of a file beside it"));
  }
  EXPECT_THAT(with(R"({"weight_map":{"a":1}})"), HasSubstr("weight_map.a must be a string"));
  EXPECT_THAT(with("{"), HasSubstr("not valid JSON"));
}

}  // namespace
}  // namespace gapless
