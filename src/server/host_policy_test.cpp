#include "server/host_policy.h"

#include <gtest/gtest.h>

namespace gapless {
namespace {

TEST(HostPolicy, TheHostOfAnAuthority) {
  EXPECT_EQ(host_of_authority("localhost"), "localhost");
  EXPECT_EQ(host_of_authority("LocalHost:2020"), "localhost");
  EXPECT_EQ(host_of_authority("localhost."), "localhost");
  EXPECT_EQ(host_of_authority("gpu-1.lab.example.:"), "gpu-1.lab.example");
  EXPECT_EQ(host_of_authority("127.0.0.1:65535"), "127.0.0.1");
  EXPECT_EQ(host_of_authority("[::1]:2020"), "::1");
  EXPECT_EQ(host_of_authority("[0:0:0:0:0:0:0:1]"), "::1");
  EXPECT_EQ(host_of_authority("[FD00::A]"), "fd00::a");
  EXPECT_EQ(host_of_authority("[::ffff:10.0.0.1]"), "10.0.0.1");
  for (const char* bad : {"", ":2020", "::1", "[::1", "[::1]x", "[::1].", "[localhost]", "a b",
                          "a/b", "user@localhost", "localhost:http", "localhost:999999",
                          "localhost:1:2", "\xC3\xA9", "a,b"}) {
    EXPECT_EQ(host_of_authority(bad), "") << bad;
  }
}

TEST(HostPolicy, LoopbackNamesAndTheAddressConnectedTo) {
  const HostPolicy policy;
  for (const char* host : {"localhost", "LOCALHOST:2020", "localhost.", "127.0.0.1:2020",
                           "127.8.8.8", "[::1]", "[::1]:80", "[::ffff:127.0.0.1]"}) {
    EXPECT_TRUE(policy.allows(host, "10.0.0.7")) << host;
  }
  EXPECT_TRUE(policy.allows("10.0.0.7:2020", "10.0.0.7"));
  EXPECT_TRUE(policy.allows("10.0.0.7", "::ffff:10.0.0.7"));
  EXPECT_TRUE(policy.allows("[FD00::7]:2020", "fd00::7"));
  for (const char* host :
       {"evil.test", "evil.test:2020", "localhost.evil.test", "127.0.0.1.evil.test", "xlocalhost",
        "a.localhost", "10.0.0.8", "[fd00::8]", "0.0.0.0", "127.1", "2130706433", "", ":2020"}) {
    EXPECT_FALSE(policy.allows(host, "10.0.0.7")) << host;
  }
}

TEST(HostPolicy, MoreNames) {
  const HostPolicy policy({"Gpu.Lab.example", "10.1.1.1:80", "[fd00::1]"});
  EXPECT_TRUE(policy.allows("gpu.lab.example:2020", "127.0.0.1"));
  EXPECT_TRUE(policy.allows("GPU.lab.example.", "127.0.0.1"));
  EXPECT_TRUE(policy.allows("10.1.1.1", "127.0.0.1"));
  EXPECT_TRUE(policy.allows("[fd00:0::1]", "127.0.0.1"));
  EXPECT_FALSE(policy.allows("lab.example", "127.0.0.1"));
  EXPECT_FALSE(policy.allows("a.gpu.lab.example", "127.0.0.1"));
  const HostPolicy any({"*"});
  EXPECT_TRUE(any.allows("whatever.test", "127.0.0.1"));
  EXPECT_FALSE(any.allows("not a host", "127.0.0.1"));
}

TEST(HostPolicy, LoopbackAddresses) {
  for (const char* address : {"127.0.0.1", "127.255.0.1", "::1", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(is_loopback_address(address)) << address;
  }
  for (const char* address : {"0.0.0.0", "::", "10.0.0.1", "128.0.0.1", "::2", "127.evil", ""}) {
    EXPECT_FALSE(is_loopback_address(address)) << address;
  }
}

}  // namespace
}  // namespace gapless
