// Bounds of grammars and what they are for. Past one of them a grammar is refused with its name.
#pragma once

#include <cstddef>

namespace gapless {

// States of a compiled grammar: numbered in 16 bits on the device, of which some are reserved.
inline constexpr int kMaxGrammarStates = 60'000;
// Bytes of its transition table: what the device keeps of one grammar.
inline constexpr std::size_t kMaxGrammarTableBytes = 32u << 20;
// Open objects and arrays of an answer. Each takes a frame of the row's state on the device.
inline constexpr int kMaxGrammarDepth = 32;
// Bytes of whitespace between two tokens of JSON: a line end and the indentation of a dozen levels. Without a
// bound a model that likes spaces never ends.
inline constexpr int kMaxWhitespaceRun = 25;
// States of one automaton over strings, before it becomes part of a grammar: `(a|b)*a(a|b){20}`
// would have a million.
inline constexpr int kMaxStringStates = 6'000;
// Nodes of a parsed regular expression, repetitions unrolled.
inline constexpr int kMaxRegexNodes = 20'000;
inline constexpr int kMaxRegexDepth = 64;
// Ways in which a value may satisfy a schema once anyOf, allOf, oneOf and if are multiplied out.
inline constexpr std::size_t kMaxSchemaAlternatives = 48;
// Declared names of one object: each has a bit in its frame.
inline constexpr int kMaxObjectNames = 256;
// Schemas that a schema's text may hold, and the length of that text.
inline constexpr int kMaxSchemaNodes = 20'000;
inline constexpr std::size_t kMaxSchemaBytes = 1u << 20;
// Text of one regular expression.
inline constexpr std::size_t kMaxPatternBytes = 64u << 10;
// Steps of the compiler (compile_work.h): about 0.15 s. Of the schemas of a sample of MaskBench one takes more.
inline constexpr long kMaxGrammarWork = 20'000'000;
// Grammars that are kept by their content, refused ones included. Each has a table of up to 32 MB (typically 0.2) and
// kMaxMaskCacheBytes of sets of tokens.
inline constexpr std::size_t kMaxCachedGrammars = 16;
// Sets of legal tokens that are kept of one grammar: some 1300 with a vocabulary of 51,200.
inline constexpr std::size_t kMaxMaskCacheBytes = 8u << 20;

// Steps of finding out what values cost (closing_text.h): about 0.1 s. What is not known then counts as without an end.
inline constexpr long kMaxClosingWork = 20'000'000;
// Steps of finding out, of all tokens that are legal at one place, how long the rest takes: some milliseconds, in which other
// sequences' steps may wait. What is not known then is not allowed.
inline constexpr long kMaxClosableWork = 3'000'000;
// Bytes of one way from a state to the next operation, a name for example; and of all ways that are kept.
inline constexpr std::size_t kMaxClosingPath = 2048;
inline constexpr std::size_t kMaxKeptPathBytes = 4u << 20;

}  // namespace gapless
