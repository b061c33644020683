#include "weights/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/limits.h"
#include "weights/safetensors_writer.h"
#include "weights/test_files.h"

namespace gapless {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing_files::safetensors_bytes;
using testing_files::TemporaryFolder;

StatusOr<std::vector<TensorEntry>> parse(std::string_view bytes) {
  return parse_safetensors(std::as_bytes(std::span(bytes)), "f.safetensors");
}

// Every error names the file and is the world's fault, not ours.
std::string error_of(std::string_view bytes) {
  const auto entries = parse(bytes);
  if (entries.ok()) return "no error";
  EXPECT_TRUE(entries.status().message().starts_with("f.safetensors: "))
      << entries.status().message();
  EXPECT_NE(entries.status().code(), StatusCode::kInternal);
  return entries.status().message();
}

constexpr std::string_view kHeader =
    R"({"__metadata__":{"format":"pt"},)"
    R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]},)"
    R"("a":{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]},)"
    R"("empty":{"dtype":"I64","shape":[0,5],"data_offsets":[4,4]},)"
    R"("scalar":{"dtype":"U8","shape":[],"data_offsets":[12,13]}})";
constexpr std::string_view kData = "0123456789abc";

TEST(Safetensors, ReadsTensorsInTheOrderOfTheirData) {
  const auto entries = parse(safetensors_bytes(kHeader, kData)).value();
  ASSERT_EQ(entries.size(), 4u);
  EXPECT_EQ(entries[0].name, "a");
  EXPECT_EQ(entries[0].dtype, TensorDType::kBF16);
  EXPECT_THAT(entries[0].shape, ElementsAre(1, 2));
  EXPECT_EQ(entries[0].begin, 8 + kHeader.size());
  EXPECT_EQ(entries[1].name, "empty");
  EXPECT_EQ(entries[2].name, "b");
  EXPECT_EQ(entries[3].end, 8 + kHeader.size() + kData.size());
}

TEST(Safetensors, TruncatedAtEveryByte) {
  const std::string bytes = safetensors_bytes(kHeader, kData);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_NE(error_of(std::string_view(bytes).substr(0, size)), "no error") << size;
  }
  EXPECT_THAT(error_of(std::string_view(bytes).substr(0, bytes.size() - 1)),
              AllOf(HasSubstr("tensor 'scalar'"), HasSubstr("truncated")));
}

TEST(Safetensors, HeaderLength) {
  EXPECT_THAT(error_of(safetensors_bytes(kHeader, kData, ~0ull)),
              HasSubstr("says that its header"));
  EXPECT_THAT(error_of(safetensors_bytes(kHeader, kData, kHeader.size() + kData.size() + 1)),
              HasSubstr("says that its header"));
  EXPECT_THAT(error_of(safetensors_bytes("", std::string(64, ' '), 64)),
              HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of(safetensors_bytes("[]", "")), HasSubstr("must be a JSON object"));
}

TEST(Safetensors, HeaderAboveTheBoundIsRefusedUnread) {
  const std::string big(kMaxSafetensorsHeaderBytes + 1, ' ');
  EXPECT_THAT(error_of(safetensors_bytes(big, "")), HasSubstr("says that its header"));
}

TEST(Safetensors, OffsetsAndShapes) {
  const auto with = [](std::string_view fields, std::string_view data = "01234567") {
    return error_of(safetensors_bytes(fmt::format(R"({{"t":{{{}}}}})", fields), data));
  };
  EXPECT_EQ(with(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])"), "no error");
  EXPECT_THAT(with(R"("dtype":"F32","shape":[2],"data_offsets":[0,9])"),
              AllOf(HasSubstr("tensor 't'"), HasSubstr("bytes 0 to 9"), HasSubstr("has 8")));
  EXPECT_THAT(with(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), HasSubstr("bytes 8 to 0"));
  EXPECT_THAT(with(R"("dtype":"F32","shape":[2],"data_offsets":[-8,0])"),
              HasSubstr("bytes -8 to 0"));
  EXPECT_THAT(with(R"("dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615])"),
              HasSubstr("two integers"));
  EXPECT_THAT(with(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"),
              AllOf(HasSubstr("F32 [3]"), HasSubstr("has 8 bytes")));
  EXPECT_THAT(with(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"),
              HasSubstr("shape must be a list of non-negative integers"));
  // 2^32 * 2^32 * 4 bytes is 0 in 64 bits; so is 2^62 * 4.
  EXPECT_THAT(with(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0])"),
              HasSubstr("has 0 bytes"));
  EXPECT_THAT(with(R"("dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0])"),
              HasSubstr("has 0 bytes"));
  EXPECT_THAT(with(R"("dtype":"F32","shape":[1,1,1,1,1,1,1,1,2],"data_offsets":[0,8])"),
              HasSubstr("at most 8 sides"));
  EXPECT_THAT(with(R"("dtype":"F7","shape":[2],"data_offsets":[0,8])"), HasSubstr("dtype F7"));
  EXPECT_THAT(with(R"("shape":[2],"data_offsets":[0,8])"), HasSubstr("tensor 't'.dtype"));
  EXPECT_THAT(with(R"("dtype":"F32","data_offsets":[0,8])"), HasSubstr("tensor 't'.shape"));
  EXPECT_THAT(with(R"("dtype":"F32","shape":[2])"), HasSubstr("tensor 't'.data_offsets"));
}

TEST(Safetensors, OverlapsAndHoles) {
  const auto two = [](int begin_a, int end_a, int begin_b, int end_b, std::string_view data) {
    const auto tensor = [](int begin, int end) {
      return fmt::format(R"({{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}})", end - begin,
                         begin, end);
    };
    return error_of(safetensors_bytes(
        fmt::format(R"({{"a":{},"b":{}}})", tensor(begin_a, end_a), tensor(begin_b, end_b)), data));
  };
  EXPECT_EQ(two(0, 2, 2, 4, "0123"), "no error");
  EXPECT_THAT(two(0, 3, 2, 4, "0123"), HasSubstr("'a' and 'b' overlap"));
  EXPECT_THAT(two(0, 4, 1, 2, "0123"), HasSubstr("'a' and 'b' overlap"));
  EXPECT_THAT(two(0, 1, 2, 4, "0123"), HasSubstr("bytes 1 to 2 of the data belong to no tensor"));
  EXPECT_THAT(two(1, 2, 2, 4, "0123"), HasSubstr("bytes 0 to 1 of the data belong to no tensor"));
  EXPECT_THAT(two(0, 2, 2, 4, "01234"), HasSubstr("bytes 4 to 5 of the data belong to no tensor"));
}

TEST(SafetensorsWriter, WhatItWritesIsRead) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "w.safetensors";
  const std::vector<SafetensorsWriter::Tensor> tensors = {
      {"z \"quoted\" ü", TensorDType::kF32, {2, 1}}, {"a", TensorDType::kBF16, {3}}};
  auto writer = SafetensorsWriter::create(path, tensors, {{"format", "pt"}}).value();
  const std::string_view data = "abcdefghIJKLMN";
  EXPECT_TRUE(writer.append(std::as_bytes(std::span(data.substr(0, 5)))).ok());
  EXPECT_TRUE(writer.append(std::as_bytes(std::span(data.substr(5)))).ok());
  EXPECT_FALSE(std::filesystem::exists(path));  // not before it is whole
  ASSERT_TRUE(writer.finish().ok());

  const Checkpoint checkpoint = Checkpoint::open(path).value();
  ASSERT_EQ(checkpoint.tensors().size(), 2u);
  const auto text_of = [&](const char* name) {
    const auto bytes = checkpoint.tensors().at(name).data;
    return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  EXPECT_EQ(text_of("z \"quoted\" ü"), "abcdefgh");
  EXPECT_EQ(text_of("a"), "IJKLMN");
  EXPECT_THAT(checkpoint.tensors().at("z \"quoted\" ü").shape, ElementsAre(2, 1));
}

TEST(SafetensorsWriter, TooFewOrTooManyBytes) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "w.safetensors";
  const std::vector<SafetensorsWriter::Tensor> tensors = {{"a", TensorDType::kU8, {3}}};
  {
    auto writer = SafetensorsWriter::create(path, tensors).value();
    const std::string_view data = "abcd";
    EXPECT_THAT(writer.append(std::as_bytes(std::span(data))).message(), HasSubstr("more data"));
    EXPECT_THAT(writer.finish().message(), HasSubstr("3 bytes of data are missing"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));  // nothing half-written stays
  EXPECT_FALSE(SafetensorsWriter::create(folder.path() / "no" / "w", tensors).ok());
  const std::vector<SafetensorsWriter::Tensor> twice = {{"a", TensorDType::kU8, {1}},
                                                        {"a", TensorDType::kU8, {1}}};
  EXPECT_THAT(SafetensorsWriter::create(path, twice).status().message(), HasSubstr("twice"));
}

}  // namespace
}  // namespace gapless
