#include "base/url.h"

#include <gtest/gtest.h>

namespace gapless {
namespace {

TEST(Url, Parts) {
  const auto url = parse_url("HTTPS://Example.org:8443/a/b.png?x=1#part");
  ASSERT_TRUE(url.ok());
  EXPECT_TRUE(url->tls);
  EXPECT_EQ(url->host, "example.org");
  EXPECT_EQ(url->port, "8443");
  EXPECT_EQ(url->target, "/a/b.png?x=1");
  EXPECT_EQ(url->host_header(), "example.org:8443");
  EXPECT_EQ(parse_url("http://h")->target, "/");
  EXPECT_EQ(parse_url("http://h?q")->target, "/?q");
  EXPECT_EQ(parse_url("http://h")->port, "80");
  EXPECT_EQ(parse_url("https://h")->host_header(), "h");
  EXPECT_EQ(parse_url("http://[2606:4700::1]/x")->host, "2606:4700::1");
  EXPECT_EQ(parse_url("http://[2606:4700::1]/x")->host_header(), "[2606:4700::1]");
  for (const std::string& bad :
       {std::string("ftp://h/"), std::string("http:/h"), std::string("http://"),
        std::string("http:///x"), std::string("http://user@h/"), std::string("http://u:p@h/"),
        std::string("http://good.org\\@evil.org/"), std::string("http://h/ x"),
        std::string("http://h/\r\nX: y"), std::string("http://h:99999999/"),
        std::string("http://h:8a/"), std::string("http://[::1"), std::string("http://[h]/"),
        std::string("http://[::1]x/"), std::string("http://h%00/"),
        std::string("http://h\xC3\xA9/"), "http://h/" + std::string(5000, 'a'),
        std::string("file:///etc/passwd"), std::string("")}) {
    EXPECT_FALSE(parse_url(bad).ok()) << bad;
  }
}

// Nobody should have to guess which part was read as the host.
TEST(Url, AUserNameIsRefusedByName) {
  for (const char* url : {"http://user@h/", "http://u:p@h/", "http://u:80@h/", "http://[::1]@h/"}) {
    EXPECT_EQ(parse_url(url).status().message(), "the address has a user name in it") << url;
  }
}

TEST(Url, RedirectsAreResolvedAgainstTheirPage) {
  const Url base = *parse_url("https://a.org:444/dir/page?q=/x/y");
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
