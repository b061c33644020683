#include "tests/server/picture_host.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <memory>

#include "base/check.h"

namespace gapless {

PictureHost::PictureHost(std::map<std::string, std::string> answers, Certificate certificate)
    : answers_(std::move(answers)) {
  if (!certificate.cert_file.empty()) {
    tls_ = SSL_CTX_new(TLS_server_method());
    GAPLESS_CHECK(
        SSL_CTX_use_certificate_file(tls_, certificate.cert_file.c_str(), SSL_FILETYPE_PEM) == 1);
    GAPLESS_CHECK(
        SSL_CTX_use_PrivateKey_file(tls_, certificate.key_file.c_str(), SSL_FILETYPE_PEM) == 1);
  }
  listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  GAPLESS_CHECK(::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  GAPLESS_CHECK(::listen(listener_, 16) == 0);
  socklen_t size = sizeof(address);
  GAPLESS_CHECK(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { serve(); });
}

PictureHost::~PictureHost() {
  ::shutdown(listener_, SHUT_RDWR);
  thread_.join();
  ::close(listener_);
  for (const int socket : kept_open_) ::close(socket);
  SSL_CTX_free(tls_);
}

std::string PictureHost::url(std::string_view path, std::string_view host) const {
  return fmt::format("{}://{}:{}{}", tls_ != nullptr ? "https" : "http", host, port_, path);
}

void PictureHost::serve() {
  while (true) {
    const int socket = ::accept(listener_, nullptr, nullptr);
    if (socket < 0) return;
    ++num_connections_;
    answer(socket);
  }
}

void PictureHost::answer(int socket) {
  using Bytes = std::function<long(char*, std::size_t)>;
  Bytes read = [socket](char* to, std::size_t size) { return ::recv(socket, to, size, 0); };
  std::function<void(std::string_view)> write = [socket](std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count <= 0) return;
      bytes.remove_prefix(static_cast<std::size_t>(count));
    }
  };
  std::unique_ptr<SSL, decltype(&SSL_free)> tls(nullptr, SSL_free);
  if (tls_ != nullptr) {
    tls.reset(SSL_new(tls_));
    SSL_set_fd(tls.get(), socket);
    if (SSL_accept(tls.get()) != 1) {
      ::close(socket);
      return;
    }
    read = [&tls](char* to, std::size_t size) {
      return static_cast<long>(SSL_read(tls.get(), to, static_cast<int>(size)));
    };
    write = [&tls](std::string_view bytes) {
      SSL_write(tls.get(), bytes.data(), static_cast<int>(bytes.size()));
    };
  }
  std::string head;
  char bytes[4096];
  while (head.find("\r\n\r\n") == std::string::npos) {
    const long count = read(bytes, sizeof(bytes));
    if (count <= 0) break;
    head.append(bytes, static_cast<std::size_t>(count));
  }
  last_request_ = head;
  const std::size_t begin = head.find(' ') + 1;
  const std::string path = head.substr(begin, head.find(' ', begin) - begin);
  const auto found = answers_.find(path);
  if (found != answers_.end() && found->second == kSilence) {
    kept_open_.push_back(socket);
    return;
  }
  write(found == answers_.end() ? "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
                                : found->second);
  if (tls) SSL_shutdown(tls.get());
  ::close(socket);
}

std::string http_answer(std::string_view body) {
  return fmt::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{}", body.size(), body);
}

std::string http_redirect(std::string_view location) {
  return fmt::format("HTTP/1.1 302 Found\r\nLocation: {}\r\nContent-Length: 0\r\n\r\n", location);
}

PictureHost::Certificate make_certificate(const std::string& folder, const std::string& host) {
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  const std::unique_ptr<X509, decltype(&X509_free)> cert(X509_new(), X509_free);
  GAPLESS_CHECK(key && cert);
  X509_set_version(cert.get(), X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(cert.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(cert.get()), -60);
  X509_gmtime_adj(X509_getm_notAfter(cert.get()), 3600);
  X509_set_pubkey(cert.get(), key.get());
  X509_NAME* const name = X509_get_subject_name(cert.get());
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>("a test"), -1, -1, 0);
  X509_set_issuer_name(cert.get(), name);
  X509_EXTENSION* const extension =
      X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, ("DNS:" + host).c_str());
  GAPLESS_CHECK(extension != nullptr && X509_add_ext(cert.get(), extension, -1) == 1);
  X509_EXTENSION_free(extension);
  GAPLESS_CHECK(X509_sign(cert.get(), key.get(), EVP_sha256()) > 0);

  PictureHost::Certificate files{folder + "/" + host + ".cert.pem",
                                 folder + "/" + host + ".key.pem"};
  std::FILE* file = std::fopen(files.cert_file.c_str(), "w");
  GAPLESS_CHECK(file != nullptr && PEM_write_X509(file, cert.get()) == 1);
  std::fclose(file);
  file = std::fopen(files.key_file.c_str(), "w");
  GAPLESS_CHECK(file != nullptr &&
                PEM_write_PrivateKey(file, key.get(), nullptr, nullptr, 0, nullptr, nullptr) == 1);
  std::fclose(file);
  return files;
}

}  // namespace gapless
