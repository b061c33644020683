// The legal tokens of answers, for a second opinion (second_opinion_test.py).
//   legal_tokens TOKENIZER_JSON < lines
// A line: {"schema": {...}, "tokens": [ids]}. Its answer, a line of JSON: {"refused": why} where the schema cannot be held, or
// {"masks": [...], "taken": n, "may_end": bool}: before each token and behind the last, the legal ones as hexadecimal, four bits a
// digit, token 0 in the lowest bit of the first one; as many as were legal themselves; whether the text may end there.
#include "constraint/legal_tokens.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "constraint/vocabulary_trie.h"
#include "grammar/json_grammar.h"
#include "text/tokenizer.h"

namespace gapless {
namespace {

namespace json = boost::json;

std::string hex_of(const std::vector<std::uint32_t>& mask) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const std::uint32_t word : mask) {
    for (int shift = 0; shift < 32; shift += 4) hex += kDigits[word >> shift & 15];
  }
  return hex;
}

json::object legal_tokens(const json::value& line, const VocabularyTrie& vocabulary) {
  const StatusOr<Grammar> grammar = compile_json_schema(line.at("schema"));
  if (!grammar.ok()) return {{"refused", grammar.status().message()}};
  const std::size_t num_words = (static_cast<std::size_t>(vocabulary.vocab()) + 31) / 32;
  GrammarRow row = begin_row(*grammar);
  json::array masks;
  const auto note = [&] {
    std::vector<std::uint32_t> mask(num_words);
    find_legal_tokens(*grammar, row, vocabulary, mask);
    masks.push_back(json::string(hex_of(mask)));
  };
  note();
  int num_taken = 0;
  for (const json::value& token : line.at("tokens").as_array()) {
    const std::string& bytes = vocabulary.bytes_of(token.to_number<std::int32_t>());
    const auto is_legal = [&](char c) {
      return advance(*grammar, row, static_cast<std::uint8_t>(c));
    };
    if (!std::all_of(bytes.begin(), bytes.end(), is_legal)) break;
    ++num_taken;
    note();
  }
  return {{"masks", masks}, {"taken", num_taken}, {"may_end", may_end(*grammar, row)}};
}

int answer_lines(const std::string& tokenizer_json) {
  const StatusOr<Tokenizer> tokenizer = Tokenizer::load(tokenizer_json);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "legal_tokens: %s\n", tokenizer.status().to_string().c_str());
    return 1;
  }
  const VocabularyTrie vocabulary(tokenizer->text_of_tokens());
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << json::serialize(legal_tokens(json::parse(line), vocabulary)) << '\n';
  }
  return 0;
}

}  // namespace
}  // namespace gapless

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: legal_tokens TOKENIZER_JSON < lines\n");
    return 2;
  }
  return gapless::answer_lines(argv[1]);
}
