#include "server/fetch_policy.h"

#include <gtest/gtest.h>

namespace gapless {
namespace {

TEST(FetchPolicy, OnlyPublicAddressesPass) {
  for (const char* address :
       {"8.8.8.8", "1.1.1.1", "172.15.255.255", "172.32.0.0", "100.63.255.255", "100.128.0.0",
        "192.167.255.255", "11.0.0.0", "169.253.1.1", "198.17.0.1", "223.255.255.255",
        "2606:4700::1111", "2a00:1450::1", "2001:4860::8888"}) {
    EXPECT_TRUE(is_public_address(address)) << address;
  }
  for (const char* address : {"127.0.0.1",
                              "127.255.255.255",
                              "0.0.0.0",
                              "10.0.0.1",
                              "172.16.0.1",
                              "172.31.255.255",
                              "192.168.1.1",
                              "169.254.169.254",
                              "100.64.0.1",
                              "100.127.255.255",
                              "192.0.0.8",
                              "192.0.2.1",
                              "192.88.99.1",
                              "198.18.0.1",
                              "198.19.255.255",
                              "198.51.100.7",
                              "203.0.113.9",
                              "224.0.0.1",
                              "239.1.2.3",
                              "240.0.0.1",
                              "255.255.255.255",
                              "::",
                              "::1",
                              "::ffff:127.0.0.1",
                              "::ffff:8.8.8.8",
                              "::ffff:169.254.169.254",
                              "64:ff9b::7f00:1",
                              "64:ff9b::808:808",
                              "64:ff9b:1::1",
                              "100::1",
                              "fe80::1",
                              "fe80::1%lo",
                              "fc00::1",
                              "fd12:3456::1",
                              "fec0::1",
                              "ff02::1",
                              "2001::1",
                              "2001:0:53aa::1",
                              "2001:db8::1",
                              "2002:7f00:1::",
                              "2002:808:808::1",
                              "3fff::1",
                              "",
                              "localhost",
                              "127.1",
                              "8.8.8",
                              "garbage"}) {
    EXPECT_FALSE(is_public_address(address)) << address;
  }
}

TEST(FetchPolicy, HostsAreAllowedByName) {
  FetchPolicy policy;
  EXPECT_FALSE(policy.allows_host("example.org"));
  policy.allowed_hosts = {"example.org", ".cdn.test", "Mixed.Case"};
  EXPECT_TRUE(policy.allows_host("example.org"));
  EXPECT_TRUE(policy.allows_host("a.cdn.test"));
  EXPECT_TRUE(policy.allows_host("a.b.cdn.test"));
  EXPECT_TRUE(policy.allows_host("mixed.case"));
  for (const char* host : {"a.example.org", "cdn.test", "evilcdn.test", "example.org.evil",
                           "xexample.org", "", "127.0.0.1"}) {
    EXPECT_FALSE(policy.allows_host(host)) << host;
  }
  policy.allowed_hosts = {"*"};
  EXPECT_TRUE(policy.allows_host("anything"));
}

}  // namespace
}  // namespace gapless
