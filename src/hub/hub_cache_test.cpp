#include "hub/hub_cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "hub/content_digest.h"
#include "weights/test_files.h"

namespace gapless {
namespace {

namespace fs = std::filesystem;
using testing_files::TemporaryFolder;

constexpr const char* kCommit = "0123456789abcdef0123456789abcdef01234567";
constexpr const char* kEtag = "ce013625030ba8dba906f756967f9e9ca394464a";  // git's of "hello\n"

HubCache cache_of(const TemporaryFolder& folder, const char* name = "org/name") {
  return HubCache(folder.path(), *parse_hub_name(name));
}

void write_text(const fs::path& path, std::string_view text) {
  fs::create_directories(path.parent_path());
  ASSERT_TRUE(write_file(path, std::as_bytes(std::span(text))).ok());
}

TEST(HubCache, AFileIsThereOnceItsLinkLeadsToItsBytes) {
  const TemporaryFolder folder;
  const HubCache cache = cache_of(folder);
  EXPECT_EQ(cache.find(kCommit, "config.json"), std::nullopt);
  ASSERT_TRUE(cache.prepare(kCommit).ok());
  ASSERT_TRUE(cache.link(kCommit, "config.json", kEtag).ok());
  EXPECT_EQ(cache.find(kCommit, "config.json"), std::nullopt) << "the blob is missing";
  write_text(cache.blob(kEtag), "hello\n");
  const fs::path path = folder.path() / "models--org--name/snapshots" / kCommit / "config.json";
  EXPECT_EQ(cache.find(kCommit, "config.json"), path);
  EXPECT_EQ(fs::read_symlink(path), fs::path("../../blobs") / kEtag);
  // Once more, over the old one.
  EXPECT_TRUE(cache.link(kCommit, "config.json", kEtag).ok());
  EXPECT_EQ(std::distance(fs::directory_iterator(path.parent_path()), {}), 1);
  fs::remove(path);
  fs::create_directory(path);
  EXPECT_EQ(cache.find(kCommit, "config.json"), std::nullopt) << "a folder is no file";
}

TEST(HubCache, RevisionsAreCommitsOrNamesOfThem) {
  const TemporaryFolder folder;
  EXPECT_EQ(cache_of(folder).commit(), std::nullopt);
  EXPECT_EQ(HubCache(folder.path(), {"org/name", kCommit}).commit(), kCommit);
  ASSERT_TRUE(cache_of(folder).set_commit(kCommit).ok());
  EXPECT_EQ(cache_of(folder).commit(), kCommit);
  ASSERT_TRUE(cache_of(folder, "org/name@refs/pr/1").set_commit(kCommit).ok());
  EXPECT_TRUE(fs::exists(folder.path() / "models--org--name/refs/refs/pr/1"));
  for (const std::string& text : {std::string("../../../etc"), std::string(), std::string("main"),
                                  std::string(500, 'a'), std::string(40, '/')}) {
    write_text(folder.path() / "models--org--name/refs/main", text);
    EXPECT_EQ(cache_of(folder).commit(), std::nullopt) << text;
  }
  write_text(folder.path() / "models--org--name/refs/main", std::string(kCommit) + "\n");
  EXPECT_EQ(cache_of(folder).commit(), kCommit);
}

TEST(HubCache, AbsentFilesAreRemembered) {
  const TemporaryFolder folder;
  const HubCache cache = cache_of(folder);
  EXPECT_FALSE(cache.is_absent(kCommit, "moondream.py"));
  ASSERT_TRUE(cache.note_absent(kCommit, "moondream.py").ok());
  EXPECT_TRUE(cache.is_absent(kCommit, "moondream.py"));
  EXPECT_FALSE(cache.is_absent(kCommit, "config.json"));
}

TEST(HubCache, OneHoldsALockAtATime) {
  const TemporaryFolder folder;
  std::atomic<int> inside{0}, most{0}, waited{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 50; ++k) {
        const auto lock = FileLock::acquire(folder.path() / "x.lock", [&] { ++waited; });
        ASSERT_TRUE(lock.ok());
        const int now = ++inside;
        int seen = most.load();
        while (seen < now && !most.compare_exchange_weak(seen, now)) {
        }
        std::this_thread::yield();
        --inside;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(most.load(), 1);
}

TEST(HubCache, WhoHasToWaitForALockIsTold) {
  const TemporaryFolder folder;
  std::atomic<bool> waits{false};
  auto held = std::make_unique<StatusOr<FileLock>>(
      FileLock::acquire(folder.path() / "x.lock", [] { FAIL() << "nobody has it"; }));
  std::thread other([&] {
    EXPECT_TRUE(FileLock::acquire(folder.path() / "x.lock", [&] { waits = true; }).ok());
  });
  while (!waits) std::this_thread::yield();
  held.reset();
  other.join();
}

TEST(HubCache, ACacheThatCannotBeWrittenIsAnErrorThatNamesIt) {
  const TemporaryFolder folder;
  write_text(folder.path() / "models--org--name", "a file where a folder should be");
  const Status status = cache_of(folder).prepare(kCommit);
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("models--org--name"), std::string::npos);
}

bool matches(std::string_view etag, std::string_view text) {
  StatusOr<ContentDigest> digest = ContentDigest::of_etag(etag, text.size());
  // In two pieces.
  digest->update(std::as_bytes(std::span(text.substr(0, 2))));
  digest->update(std::as_bytes(std::span(text.substr(2))));
  return digest->matches();
}

TEST(ContentDigest, GitsSha1AndPlainSha256) {
  // git hash-object; sha256sum
  EXPECT_TRUE(matches(kEtag, "hello\n"));
  EXPECT_FALSE(matches(kEtag, "hello"));
  constexpr const char* kSha256 =
      "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
  EXPECT_TRUE(matches(kSha256, "hello\n"));
  EXPECT_FALSE(matches(kSha256, "hellO\n"));
  for (const std::string& bad :
       {std::string(), std::string("abc"), std::string(64, 'g'), std::string(64, 'A'),
        std::string("../../../../../../../../../../../../etc"), std::string(65, 'a')}) {
    EXPECT_FALSE(ContentDigest::of_etag(bad, 1).ok()) << bad;
  }
}

}  // namespace
}  // namespace gapless
