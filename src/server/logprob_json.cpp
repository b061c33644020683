#include "server/logprob_json.h"

#include <boost/json/array.hpp>

namespace gapless {
namespace {

namespace json = boost::json;

json::object token_json(const ScoredToken& token) {
  json::value bytes = nullptr;
  if (token.bytes) {
    json::array numbers;
    for (const char c : *token.bytes) numbers.emplace_back(static_cast<unsigned char>(c));
    bytes = std::move(numbers);
  }
  return {{"token", token.text}, {"logprob", token.logprob}, {"bytes", std::move(bytes)}};
}

}  // namespace

json::object logprob_json(const TokenLogprob& token) {
  json::object shown = token_json(token.token);
  json::array top;
  for (const ScoredToken& one : token.top) top.push_back(token_json(one));
  shown["top_logprobs"] = std::move(top);
  return shown;
}

}  // namespace gapless
