#include "hub/hub_name.h"

#include <gtest/gtest.h>

namespace gapless {
namespace {

TEST(HubName, RepositoryAndRevision) {
  const auto name = parse_hub_name("vikhyatk/moondream2@2025-06-21");
  ASSERT_TRUE(name.ok());
  EXPECT_EQ(name->repository, "vikhyatk/moondream2");
  EXPECT_EQ(name->revision, "2025-06-21");
  EXPECT_EQ(name->to_string(), "vikhyatk/moondream2@2025-06-21");
  EXPECT_EQ(name->folder(), "models--vikhyatk--moondream2");
  EXPECT_EQ(parse_hub_name("a/b")->revision, "main");
  EXPECT_EQ(parse_hub_name("a/b")->to_string(), "a/b");
  EXPECT_EQ(parse_hub_name("a/b@refs/pr/1")->revision, "refs/pr/1");
  EXPECT_TRUE(parse_hub_name("A_1/b-2.3@v1.0_rc").ok());
}

TEST(HubName, WhatCouldLeaveTheCacheOrARequestIsNoName) {
  for (const std::string& bad : {std::string("a"),
                                 std::string("/b"),
                                 std::string("a/"),
                                 std::string("a/b/c"),
                                 std::string("../b"),
                                 std::string("a/.."),
                                 std::string("a/.b"),
                                 std::string("-a/b"),
                                 std::string("a/b."),
                                 std::string("a--b/c"),
                                 std::string("a/b--c"),
                                 std::string("a/b c"),
                                 std::string("a/b\r\nX: y"),
                                 std::string("a/b?x"),
                                 std::string("a/b%2e"),
                                 std::string("a/b@"),
                                 std::string("a/b@.."),
                                 std::string("a/b@../../x"),
                                 std::string("a/b@/x"),
                                 std::string("a/b@x/"),
                                 std::string("a/b@x//y"),
                                 std::string("a/b@x@y"),
                                 std::string("a/b@-x"),
                                 std::string("a/b@x\n"),
                                 std::string("a/b\0c", 5),
                                 "a/" + std::string(100, 'b'),
                                 "a/b@" + std::string(300, 'r'),
                                 std::string("")}) {
    EXPECT_FALSE(parse_hub_name(bad).ok()) << bad;
  }
}

TEST(HubName, PathsAreNotTakenForNames) {
  for (const char* path : {"/a/b", "/a", "a", "./a", "../a", "a/b/c", "a/", "/", "", "~/a/b"}) {
    EXPECT_FALSE(looks_like_hub_name(path)) << path;
  }
  for (const char* name : {"a/b", "a/b@c", "a/b@refs/pr/1"}) {
    EXPECT_TRUE(looks_like_hub_name(name)) << name;
  }
}

TEST(HubName, Commits) {
  EXPECT_TRUE(is_commit("0123456789abcdef0123456789abcdef01234567"));
  for (const char* bad :
       {"", "0123", "0123456789ABCDEF0123456789ABCDEF01234567",
        "0123456789abcdef0123456789abcdef0123456g", "../../6789abcdef0123456789abcdef01234567"}) {
    EXPECT_FALSE(is_commit(bad)) << bad;
  }
}

}  // namespace
}  // namespace gapless
