// A host of pictures on loopback, for the server to fetch from: answers each path with the bytes
// that the test wrote down for it, over TCP or TLS.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

struct ssl_ctx_st;

namespace gapless {

class PictureHost {
 public:
  // `certificate`: PEM files of a certificate and its key make it a TLS server.
  struct Certificate {
    std::string cert_file;
    std::string key_file;
  };
  explicit PictureHost(std::map<std::string, std::string> answers, Certificate certificate = {});
  ~PictureHost();

  std::uint16_t port() const { return port_; }
  // With "http://127.0.0.1:PORT" or another host in front.
  std::string url(std::string_view path, std::string_view host = "127.0.0.1") const;
  int num_connections() const { return num_connections_.load(); }
  // The last request's head.
  const std::string& last_request() const { return last_request_; }

  // An answer whose path's connection stays open without a byte.
  static constexpr std::string_view kSilence = "silence";

 private:
  void serve();
  void answer(int socket);

  const std::map<std::string, std::string> answers_;
  ssl_ctx_st* tls_ = nullptr;
  int listener_ = -1;
  std::uint16_t port_ = 0;
  std::atomic<int> num_connections_{0};
  std::string last_request_;
  std::vector<int> kept_open_;
  std::thread thread_;
};

// "HTTP/1.1 200 OK" with a length and the body.
std::string http_answer(std::string_view body);
std::string http_redirect(std::string_view location);

// A self-signed certificate for this DNS name, written to files in the folder.
PictureHost::Certificate make_certificate(const std::string& folder, const std::string& host);

}  // namespace gapless
