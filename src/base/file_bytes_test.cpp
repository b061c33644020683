#include "base/file_bytes.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <thread>

namespace gapless {
namespace {

class FileBytesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::temp_directory_path() / ("gapless_file_bytes_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path file_of(std::string_view text) {
    const auto path = folder_ / "file";
    EXPECT_TRUE(write_file(path, std::as_bytes(std::span(text))).ok());
    return path;
  }

  std::filesystem::path folder_;
};

TEST_F(FileBytesTest, AFileOfTheBoundIsReadAndALargerOneRefused) {
  const auto path = file_of("12345");
  EXPECT_EQ(read_file(path, 5).value(), "12345");
  const auto refused = read_file(path, 4);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(refused.status().message().find(path.string()), std::string::npos);
}

// A shell's `<(command)` is a pipe, and so may /dev/stdin be.
TEST_F(FileBytesTest, APipeIsReadToItsEndAndNoFurtherThanTheBound) {
  const std::string text(100'000, 'x');
  const auto path = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  for (const std::size_t bound : {text.size(), text.size() - 1}) {
    std::thread writer([&] { EXPECT_TRUE(write_file(path, std::as_bytes(std::span(text))).ok()); });
    const auto content = read_file(path, bound);
    writer.join();
    EXPECT_EQ(content.ok(), bound == text.size()) << content.status().message();
    if (content.ok()) {
      EXPECT_EQ(*content, text);
    } else {
      EXPECT_EQ(content.status().code(), StatusCode::kResourceExhausted);
    }
  }
  EXPECT_EQ(read_file("/dev/zero", 5).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(read_file("/dev/null", 5).value(), "");
}

TEST_F(FileBytesTest, WhatIsNoFileIsNamed) {
  EXPECT_EQ(read_file(folder_, 5).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(read_file(folder_ / "none", 5).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(MappedFile::open(folder_).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(MappedFile::open(folder_ / "none").status().code(), StatusCode::kNotFound);
}

TEST_F(FileBytesTest, AMappedFileHasItsBytesAndMoves) {
  EXPECT_EQ(MappedFile::open(file_of("")).value().bytes().size(), 0u);
  MappedFile mapped = MappedFile::open(file_of("abc")).value();
  const MappedFile moved = std::move(mapped);
  ASSERT_EQ(moved.bytes().size(), 3u);
  EXPECT_EQ(moved.bytes()[2], std::byte{'c'});
}

}  // namespace
}  // namespace gapless
