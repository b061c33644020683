#include "server/playground.h"

#include <fmt/format.h>

#include "server/embedded_files.h"

namespace gapless {
namespace {

std::string_view content_type_of(std::string_view name) {
  if (name.ends_with(".html")) return "text/html; charset=utf-8";
  if (name.ends_with(".js")) return "text/javascript; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  if (name.ends_with(".json")) return "application/json";
  return "image/png";
}

HttpResponse file_response(const EmbeddedFile& file) {
  HttpResponse response;
  response.content_type = content_type_of(file.name);
  // A new binary brings new files at once.
  response.headers.add("Cache-Control", "no-cache");
  response.headers.add("X-Content-Type-Options", "nosniff");
  // The page talks to this server only, and no other page may put it in a frame. Overlays are
  // placed by style attributes, which scripts may set.
  response.headers.add("Content-Security-Policy",
                       "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; "
                       "base-uri 'none'; form-action 'none'");
  response.body.assign(reinterpret_cast<const char*>(file.bytes.data()), file.bytes.size());
  return response;
}

std::string path_of(std::string_view name) {
  if (name == "index.html") return "/";
  if (name == "openapi.json") return "/openapi.json";
  return fmt::format("/web/{}", name);
}

}  // namespace

void add_playground_routes(Router& router) {
  for (const EmbeddedFile& file : embedded_files()) {
    router.add("GET", path_of(file.name),
               [&file](const std::shared_ptr<Exchange>& exchange, std::string_view) {
                 exchange->respond(file_response(file));
               });
  }
}

bool is_playground_path(std::string_view path) {
  return path == "/" || path.starts_with("/web/");
}

}  // namespace gapless
