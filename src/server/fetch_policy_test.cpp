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

TEST(FetchPolicy, Urls) {
  const auto url = parse_fetch_url("HTTPS://Example.org:8443/a/b.png?x=1#part");
  ASSERT_TRUE(url.ok());
  EXPECT_TRUE(url->tls);
  EXPECT_EQ(url->host, "example.org");
  EXPECT_EQ(url->port, "8443");
  EXPECT_EQ(url->target, "/a/b.png?x=1");
  EXPECT_EQ(url->host_header(), "example.org:8443");
  EXPECT_EQ(parse_fetch_url("http://h")->target, "/");
  EXPECT_EQ(parse_fetch_url("http://h?q")->target, "/?q");
  EXPECT_EQ(parse_fetch_url("http://h")->port, "80");
  EXPECT_EQ(parse_fetch_url("https://h")->host_header(), "h");
  EXPECT_EQ(parse_fetch_url("http://[2606:4700::1]/x")->host, "2606:4700::1");
  EXPECT_EQ(parse_fetch_url("http://[2606:4700::1]/x")->host_header(), "[2606:4700::1]");
  for (const std::string& bad :
       {std::string("ftp://h/"), std::string("http:/h"), std::string("http://"),
        std::string("http:///x"), std::string("http://user@h/"), std::string("http://u:p@h/"),
        std::string("http://good.org\\@evil.org/"), std::string("http://h/ x"),
        std::string("http://h/\r\nX: y"), std::string("http://h:99999999/"),
        std::string("http://h:8a/"), std::string("http://[::1"), std::string("http://[h]/"),
        std::string("http://[::1]x/"), std::string("http://h%00/"),
        std::string("http://h\xC3\xA9/"), "http://h/" + std::string(5000, 'a'),
        std::string("file:///etc/passwd"), std::string("")}) {
    EXPECT_FALSE(parse_fetch_url(bad).ok()) << bad;
  }
}

TEST(FetchPolicy, RedirectsAreResolvedAgainstTheirPage) {
  const FetchUrl base = *parse_fetch_url("https://a.org:444/dir/page?q=/x/y");
  const auto leads_to = [&base](std::string_view location) {
    const auto url = resolve_redirect(base, location);
    return url.ok() ? fmt::format("{}{}{}", url->tls ? "s " : "p ", url->host_header(), url->target)
                    : std::string("bad");
  };
  EXPECT_EQ(leads_to("http://b.org/z"), "p b.org/z");
  EXPECT_EQ(leads_to("//b.org/z"), "s b.org/z");
  EXPECT_EQ(leads_to("/z"), "s a.org:444/z");
  EXPECT_EQ(leads_to("z?a=b:c"), "s a.org:444/dir/z?a=b:c");
  EXPECT_EQ(leads_to("ftp://b.org/z"), "bad");
  EXPECT_EQ(leads_to("javascript:x"), "bad");
  EXPECT_EQ(leads_to("http://u@b.org/"), "bad");
}

}  // namespace
}  // namespace gapless
