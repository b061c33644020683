#include "hub/hub_settings.h"

#include <gtest/gtest.h>

#include <map>

#include "weights/test_files.h"

namespace gapless {
namespace {

using Variables = std::map<std::string, std::string>;

StatusOr<HubSettings> settings_of(const Variables& variables) {
  return hub_settings([&variables](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(HubSettings, WhereTheCacheIs) {
  Variables variables{{"HOME", "/home/x"}};
  const auto cache = [&variables] { return settings_of(variables)->cache.string(); };
  EXPECT_EQ(cache(), "/home/x/.cache/huggingface/hub");
  variables["XDG_CACHE_HOME"] = "/xdg";
  EXPECT_EQ(cache(), "/xdg/huggingface/hub");
  variables["HF_HOME"] = "~/hf";
  EXPECT_EQ(cache(), "/home/x/hf/hub");
  variables["HUGGINGFACE_HUB_CACHE"] = "/older";
  EXPECT_EQ(cache(), "/older");
  variables["HF_HUB_CACHE"] = "/hub";
  EXPECT_EQ(cache(), "/hub");
  variables["HF_HUB_CACHE"] = "";
  EXPECT_EQ(cache(), "/older");
}

TEST(HubSettings, WhoAsks) {
  const testing_files::TemporaryFolder folder;
  Variables variables{{"HOME", folder.path().string()}, {"HF_HOME", folder.path().string()}};
  EXPECT_EQ(settings_of(variables)->token, "");
  folder.write("token", "hf_file\n");
  EXPECT_EQ(settings_of(variables)->token, "hf_file");
  variables["HF_TOKEN_PATH"] = folder.write("other", "hf_other").string();
  EXPECT_EQ(settings_of(variables)->token, "hf_other");
  variables["HUGGING_FACE_HUB_TOKEN"] = "hf_older";
  EXPECT_EQ(settings_of(variables)->token, "hf_older");
  variables["HF_TOKEN"] = " hf_token ";
  EXPECT_EQ(settings_of(variables)->token, "hf_token");
}

TEST(HubSettings, ATokenThatWouldBreakAHeaderIsRefusedWithoutBeingShown) {
  for (const char* token :
       {"hf_secret\r\nX: y", "hf_secret two", "hf_secret\x7F", "hf_secr\xC3\xA9t"}) {
    const auto settings = settings_of({{"HOME", "/none"}, {"HF_TOKEN", token}});
    ASSERT_FALSE(settings.ok());
    EXPECT_NE(settings.status().message().find("HF_TOKEN"), std::string::npos);
    EXPECT_EQ(settings.status().message().find("secr"), std::string::npos);
  }
}

TEST(HubSettings, WhereTheHubIs) {
  const auto endpoint = [](const char* text) {
    const auto settings = settings_of({{"HOME", "/none"}, {"HF_ENDPOINT", text}});
    return settings.ok() ? (settings->endpoint.tls ? "s " : "p ") +
                               settings->endpoint.host_header() + settings->endpoint.target
                         : "bad";
  };
  EXPECT_EQ(endpoint(""), "s huggingface.co/");
  EXPECT_EQ(endpoint("http://mirror.test:8080/"), "p mirror.test:8080/");
  EXPECT_EQ(endpoint("https://mirror.test/hub//"), "s mirror.test/hub/");
  for (const char* bad : {"mirror.test", "ftp://mirror.test", "https://u:p@mirror.test",
                          "https://mirror.test/?a=b", "https://"}) {
    EXPECT_EQ(endpoint(bad), "bad") << bad;
  }
}

TEST(HubSettings, Offline) {
  for (const char* value : {"1", "on", "True", "YES"}) {
    EXPECT_TRUE(settings_of({{"HOME", "/none"}, {"HF_HUB_OFFLINE", value}})->offline) << value;
  }
  for (const char* value : {"", "0", "off", "no"}) {
    EXPECT_FALSE(settings_of({{"HOME", "/none"}, {"HF_HUB_OFFLINE", value}})->offline) << value;
  }
  const auto settings = settings_of({{"HOME", "/none"}, {"TRANSFORMERS_OFFLINE", "1"}});
  EXPECT_TRUE(settings->offline);
  EXPECT_EQ(settings->offline_variable, "TRANSFORMERS_OFFLINE");
}

}  // namespace
}  // namespace gapless
