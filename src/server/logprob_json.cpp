#include "server/logprob_json.h"

#include <algorithm>
#include <boost/json/array.hpp>

#include "base/json.h"

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
  return {
      {"token", token.text}, {"logprob", short_double(token.logprob)}, {"bytes", std::move(bytes)}};
}

// The characters that begin in these bytes of UTF-8: one that lies in two tokens counts for the first.
std::int64_t characters_begun(std::string_view bytes) {
  return std::count_if(bytes.begin(), bytes.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;  // no continuation
  });
}

}  // namespace

json::object logprob_json(const TokenLogprob& token) {
  json::object shown = token_json(token.token);
  json::array top;
  for (const ScoredToken& one : token.top) top.push_back(token_json(one));
  shown["top_logprobs"] = std::move(top);
  return shown;
}

json::object completion_logprobs_json(std::span<const TokenLogprob> tokens,
                                      std::int64_t& text_offset) {
  json::array texts, logprobs, tops, offsets;
  for (const TokenLogprob& one : tokens) {
    texts.emplace_back(one.token.text);
    logprobs.emplace_back(short_double(one.token.logprob));
    json::object top;
    for (const ScoredToken& other : one.top) top[other.text] = short_double(other.logprob);
    top[one.token.text] = short_double(one.token.logprob);
    tops.push_back(std::move(top));
    offsets.emplace_back(text_offset);
    if (one.token.bytes) text_offset += characters_begun(*one.token.bytes);
  }
  return {{"tokens", std::move(texts)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

}  // namespace gapless
