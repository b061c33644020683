// A vocabulary's texts as TokenTexts wants them, on the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/character_kinds.h"
#include "kernels/token_head.h"

namespace gapless {

// Of TokenTexts, by name.
struct PackedTexts {
  std::vector<std::int32_t> first = {0};
  std::vector<std::uint8_t> bytes;
  std::vector<std::uint64_t> heads;
  std::vector<TextSummary> summaries;
};

// `vocab` is at least texts.size(): the tokens behind them have no text.
inline PackedTexts pack_texts(std::span<const std::string> texts, std::size_t vocab) {
  PackedTexts packed;
  for (std::size_t token = 0; token < vocab; ++token) {
    const std::string_view text = token < texts.size() ? texts[token] : std::string_view();
    packed.bytes.insert(packed.bytes.end(), text.begin(), text.end());
    packed.heads.push_back(head_of(text));
    packed.summaries.push_back(summary_of(text));
    packed.first.push_back(static_cast<std::int32_t>(packed.bytes.size()));
  }
  return packed;
}

}  // namespace gapless
