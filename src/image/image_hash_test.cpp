#include "image/image_hash.h"

#include <gtest/gtest.h>

#include <string_view>
#include <unordered_set>

namespace gapless {
namespace {

ImageHash hash_of(std::string_view text) {
  return hash_image_bytes(std::as_bytes(std::span(text.data(), text.size())));
}

// The standard's own examples (FIPS 180-4).
TEST(ImageHashTest, IsSha256) {
  EXPECT_EQ(hash_of("").hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hash_of("abc").hex(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(ImageHashTest, IsAKey) {
  std::unordered_set<ImageHash> seen;
  EXPECT_TRUE(seen.insert(hash_of("a")).second);
  EXPECT_TRUE(seen.insert(hash_of("b")).second);
  EXPECT_FALSE(seen.insert(hash_of("a")).second);
  EXPECT_EQ(hash_of("a"), hash_of("a"));
  EXPECT_NE(hash_of("a"), hash_of("b"));
}

}  // namespace
}  // namespace gapless
