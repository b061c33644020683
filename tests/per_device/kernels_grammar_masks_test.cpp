// Rows that walk a grammar on the device, token by token, against the host's walk of the same grammar
// (constraint/legal_tokens.h), which works in another way: along the vocabulary's tree, taking bytes back.
#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "constraint/legal_tokens.h"
#include "constraint/vocabulary_trie.h"
#include "grammar/json_grammar.h"
#include "grammar/regex_grammar.h"
#include "kernels/packed_texts.h"
#include "tests/per_device/kernels_fixture.h"

namespace gapless {
namespace {

using Mask = std::vector<std::uint32_t>;

constexpr std::int32_t kEos = 5;
constexpr std::uint32_t kPoisonWord = 0xFFFFFFFFu;

// Characters of one byte to four, ends of strings, and what is no whole character.
std::string mixed_text(std::mt19937& random) {
  constexpr const char* kPieces[] = {
      "a", "Z",   "7",  " ",        "\xc3\xa9", "\xe4\xb8\xad", "\xf0\x9f\x98\x82", "\"",
      ",", "\\n", "\n", "\xe4\xb8", "\xbd",     "\xed\xa0\x80", "\xf4\x90\x80\x80"};
  constexpr unsigned kNumWhole = 7;
  std::string text;
  for (unsigned n = 1 + random() % 9; n > 0; --n) {
    text += kPieces[random() % (random() % 4 == 0 ? std::size(kPieces) : kNumWhole)];
  }
  return text;
}

// Special tokens without bytes, every byte, and pieces that open, close and end several things at once.
std::vector<std::string> test_vocabulary(int num_more) {
  std::vector<std::string> texts(8);
  for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
  for (const char* piece : {"{\"",
                            "\":",
                            "\", \"",
                            "\"}",
                            "\"}]",
                            "}}",
                            "],",
                            "[[",
                            "[{\"",
                            "  ",
                            "\n  ",
                            "abc",
                            "ab",
                            "a\"",
                            "name",
                            "\"name\": \"",
                            "true",
                            "12",
                            "12.5",
                            "-1",
                            "1}",
                            "9]}",
                            "é",
                            "\xc3",
                            "\xa9\"",
                            "\\u00",
                            "eeeeeeee",
                            "kind",
                            "[[[[[[[[",
                            "]]]]]]]]",
                            "]]]]]]]]]]]]]]]]]]]]",
                            "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
                            "[[]",
                            "[],[]",
                            "]]]],[[[["}) {
    texts.emplace_back(piece);
  }
  std::mt19937 random(7);
  for (int i = 0; i < num_more; ++i) {
    if (i % 3 == 0) {
      texts.push_back(mixed_text(random));
      continue;
    }
    std::string text;
    for (unsigned n = 1 + random() % 9; n > 0; --n) text += static_cast<char>('a' + random() % 26);
    texts.push_back(text);
  }
  return texts;
}

class GrammarMasksTest : public KernelsTest {
 protected:
  // A grammar's tables on the device.
  struct Uploaded {
    Grammar grammar;
    std::vector<Buffer> tables;
  };

  void use_vocabulary(std::vector<std::string> texts) {
    const PackedTexts packed = pack_texts(texts, texts.size());
    first_dev_ = upload(packed.first);
    bytes_dev_ = upload(packed.bytes);
    heads_dev_ = upload(packed.heads);
    summaries_dev_ = upload(packed.summaries);
    vocabulary_ = std::make_unique<VocabularyTrie>(std::move(texts));
    num_words_ = static_cast<std::size_t>(vocabulary_->vocab() + 31) / 32;
  }

  void add_grammar(StatusOr<Grammar> grammar) {
    ASSERT_TRUE(grammar.ok()) << grammar.status().message();
    Uploaded& up = uploaded_.emplace_back();
    up.grammar = std::move(*grammar);
    const Grammar& g = up.grammar;
    GrammarTables tables = tables_of(g, static_cast<std::int32_t>(100 + uploaded_.size()));
    const auto place = [&]<typename T>(const std::vector<T>& values, const T*& to) {
      up.tables.push_back(upload(values));
      to = up.tables.back().template as<T>();
    };
    place(std::vector<std::uint8_t>(g.class_of.begin(), g.class_of.end()), tables.class_of);
    place(g.edges, tables.edges);
    place(g.may_end, tables.may_end);
    place(g.actions, tables.actions);
    place(g.conditions, tables.conditions);
    place(g.name_sets, tables.name_sets);
    place(g.next_states, tables.next_states);
    place(g.character_loops, tables.character_loops);
    tables_.push_back(tables);
  }
  void add_schema(std::string_view text) { add_grammar(compile_json_schema(text)); }

  void use_cache(int num_sets) {
    num_sets_ = num_sets;
    const auto entries = static_cast<std::size_t>(num_sets) * kGrammarCacheWays;
    entries_dev_ = upload(std::vector<GrammarMaskEntry>(entries));
    masks_dev_ = upload(std::vector<std::uint32_t>(entries * num_words_));
    bounded_dev_ = upload(std::vector<BoundedToken>(entries * kMaxBoundedTokens));
    turns_dev_ = upload(std::vector<std::uint32_t>(static_cast<std::size_t>(num_sets)));
    locks_dev_ = upload(std::vector<std::int32_t>(static_cast<std::size_t>(num_sets)));
    arrivals_dev_ = upload(std::vector<GrammarArrivals>(1));
  }

  // Rows on shuffled seats; `grammar_of` by row of the batch.
  void use_rows(const std::vector<std::int32_t>& grammar_of) {
    const auto num_rows = grammar_of.size();
    seats_.resize(num_rows);
    states_.assign(num_rows + 2, RowState{});
    places_.assign(num_rows, GrammarRow{});
    for (std::size_t i = 0; i < num_rows; ++i) {
      seats_[i] = static_cast<std::int32_t>(num_rows + 1 - i);
      state(i).grammar = grammar_of[i];
      if (grammar_of[i] != kNoGrammar) places_[i] = begin_row(grammar(i));
    }
    // Rubbish: a row that begins takes nothing of what was there.
    rows_dev_ = poisoned_bytes(states_.size() * sizeof(GrammarRow));
  }
  RowState& state(std::size_t i) { return states_[static_cast<std::size_t>(seats_[i])]; }
  const Grammar& grammar(std::size_t i) {
    return uploaded_[static_cast<std::size_t>(state(i).grammar)].grammar;
  }

  // What a launch reads and writes besides the rows and the cache.
  struct LaunchBuffers {
    Buffer seats, states, tables, masks, searches, bounded;
  };
  LaunchBuffers upload_launch() {
    const std::size_t num_rows = seats_.size();
    return {upload(seats_),
            upload(states_),
            upload(tables_),
            poisoned_bytes((num_rows + 1) * num_words_ * sizeof(std::uint32_t)),
            poisoned_bytes(num_rows * sizeof(GrammarSearch)),
            poisoned_bytes(num_rows * kMaxBoundedTokens * sizeof(BoundedToken))};
  }
  GrammarMasksParams params(const LaunchBuffers& buffers) const {
    return {.rows = buffers.seats.as<std::int32_t>(),
            .row_states = buffers.states.as<RowState>(),
            .grammars = buffers.tables.as<GrammarTables>(),
            .grammar_rows = rows_dev_.as<GrammarRow>(),
            .texts = {.first = first_dev_.as<std::int32_t>(),
                      .bytes = bytes_dev_.as<std::uint8_t>(),
                      .heads = heads_dev_.as<std::uint64_t>(),
                      .summaries = summaries_dev_.as<TextSummary>(),
                      .vocab = vocabulary_->vocab(),
                      .eos_id = kEos},
            .cache = {.entries = entries_dev_.as<GrammarMaskEntry>(),
                      .masks = masks_dev_.as<std::uint32_t>(),
                      .bounded = bounded_dev_.as<BoundedToken>(),
                      .turns = turns_dev_.as<std::uint32_t>(),
                      .locks = locks_dev_.as<std::int32_t>(),
                      .num_sets = num_sets_},
            .masks = buffers.masks.as<std::uint32_t>(),
            .mask_stride = static_cast<int>(num_words_),
            .num_rows = static_cast<int>(seats_.size()),
            .searches = buffers.searches.as<GrammarSearch>(),
            .bounded = buffers.bounded.as<BoundedToken>(),
            .arrivals = arrivals_dev_.as<GrammarArrivals>()};
  }

  // One launch: a mask for each row of the batch.
  std::vector<Mask> launch() { return launch(*kernels_); }
  std::vector<Mask> launch(Kernels& kernels) {
    const LaunchBuffers buffers = upload_launch();
    run(kernels.grammar_masks(*stream_, params(buffers)));
    const auto words = download<std::uint32_t>(buffers.masks);
    std::vector<Mask> result;
    for (std::size_t i = 0; i <= seats_.size(); ++i) {
      const auto begin = words.begin() + static_cast<std::ptrdiff_t>(i * num_words_);
      result.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(num_words_));
    }
    EXPECT_EQ(result.back(), Mask(num_words_, kPoisonWord)) << "wrote past the last row";
    result.pop_back();
    return result;
  }

  Mask expected(std::size_t i) {
    Mask mask(num_words_, 0);
    find_legal_tokens(grammar(i), places_[i], *vocabulary_, mask);
    if (may_end(grammar(i), places_[i])) mask[kEos / 32] |= 1u << (kEos % 32);
    return mask;
  }

  // The row samples `token`. False: it ends the answer.
  bool take(std::size_t i, std::int32_t token) {
    state(i).input = {InputKind::kText, token, 0, 0};
    ++state(i).num_generated;
    state(i).done = token == kEos ? 1 : 0;
    if (token == kEos) return false;
    for (const char byte : vocabulary_->bytes_of(token)) {
      EXPECT_TRUE(advance(grammar(i), places_[i], static_cast<std::uint8_t>(byte)));
    }
    return true;
  }

  // A row of a sequence that begins anew.
  void begin_again(std::size_t i) {
    state(i).num_generated = 0;
    state(i).done = 0;
    places_[i] = begin_row(grammar(i));
  }

  std::int32_t any_of(const Mask& mask) {
    std::vector<std::int32_t> tokens;
    for (std::int32_t t = 0; t < vocabulary_->vocab(); ++t) {
      if ((mask[static_cast<std::size_t>(t) / 32] >> (t % 32) & 1) != 0) tokens.push_back(t);
    }
    // Longer ones more often: they open and close several things.
    std::int32_t chosen = tokens[random_() % tokens.size()];
    for (int i = 0; i < 2; ++i) {
      const std::int32_t other = tokens[random_() % tokens.size()];
      if (vocabulary_->bytes_of(other).size() > vocabulary_->bytes_of(chosen).size())
        chosen = other;
    }
    return chosen;
  }

  void add_all_grammars() {
    add_schema(R"({"type": "object"})");
    add_schema(R"({"type": "array"})");
    add_schema(R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 9},
        "kind": {"type": "number"}}, "required": ["name"], "additionalProperties": false})");
    add_schema(R"({"type": "array", "items": {"type": "integer", "minimum": -3, "maximum": 125},
        "minItems": 2, "maxItems": 40})");
    add_schema(
        R"({"type": "array", "items": {"type": "string", "minLength": 3, "maxLength": 60}})");
    add_schema(
        R"({"$ref": "#/$defs/t", "$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}})");
    add_schema(
        R"({"anyOf": [{"type": "object", "properties": {"kind": {"const": "abc"}}, "required": ["kind"],
        "additionalProperties": false}, {"type": "string", "pattern": "^e+$"}, {"type": "null"}]})");
    add_grammar(compile_regex("[a-f]{2,5}-(é|ß)[0-9]"));
  }

  // Steps of rows that sample what is legal, each compared with the host's.
  void walk(Kernels& kernels, int num_steps) {
    int num_ended = 0, num_legal = 0;
    for (int step = 0; step < num_steps; ++step) {
      const std::vector<Mask> masks = launch(kernels);
      for (std::size_t i = 0; i < seats_.size(); ++i) {
        const Mask wanted = expected(i);
        ASSERT_EQ(masks[i], wanted) << "row " << i << " at step " << step << ", depth "
                                    << places_[i].depth << ", length " << places_[i].length;
        num_legal += 1;
        if (!take(i, any_of(wanted))) {
          begin_again(i);
          ++num_ended;
        }
      }
    }
    EXPECT_GT(num_ended, 0);
    EXPECT_EQ(num_legal, num_steps * static_cast<int>(seats_.size()));
  }

  std::unique_ptr<VocabularyTrie> vocabulary_;
  std::size_t num_words_ = 0;
  int num_sets_ = 0;
  std::vector<Uploaded> uploaded_;
  std::vector<GrammarTables> tables_;
  std::vector<std::int32_t> seats_;
  std::vector<RowState> states_;
  std::vector<GrammarRow> places_;  // as the host knows them
  Buffer first_dev_, bytes_dev_, heads_dev_, summaries_dev_, rows_dev_, entries_dev_, masks_dev_,
      bounded_dev_, turns_dev_, locks_dev_, arrivals_dev_;
};

TEST_F(GrammarMasksTest, EveryStepOfRandomAnswersHasTheHostsTokens) {
  use_vocabulary(test_vocabulary(300));
  add_all_grammars();
  // Several of a grammar side by side; the last ones share their places for a while.
  std::vector<std::int32_t> grammar_of = {0, 0, 1, 2, 2, 3, 4, 4, 5, 5, 6, 7, 7, 7};
  for (const int num_sets : {64, 1}) {  // with one set everything is forgotten all the time
    use_cache(num_sets);
    use_rows(grammar_of);
    walk(*kernels_, 120);
  }
  if (!is_f32()) return;
  use_cache(1);
  use_rows(grammar_of);
  walk(*make_reference_kernels(), 120);
}

// Moondream's and Qwen3's.
TEST_F(GrammarMasksTest, FullVocabularies) {
  add_all_grammars();
  for (const int vocab : {51'200, 151'936}) {
    use_vocabulary(test_vocabulary(vocab - 299));
    ASSERT_EQ(vocabulary_->vocab(), vocab);
    use_cache(64);
    use_rows({0, 4, 7, 6});
    walk(*kernels_, 25);
  }
}

// More rows than a device walks at a time, places shared by some of them and forgotten all the time.
TEST_F(GrammarMasksTest, AFullBatch) {
  use_vocabulary(test_vocabulary(2000));
  add_all_grammars();
  std::vector<std::int32_t> grammar_of;
  for (std::int32_t i = 0; i < kMaxSeats; ++i) grammar_of.push_back(i % 8);
  use_cache(2);
  use_rows(grammar_of);
  walk(*kernels_, 12);
}

// So many new places at once that who walks has many parts of the vocabulary; and at the last grammar's places all tokens of letters
// lead away.
TEST_F(GrammarMasksTest, AFullBatchOfALargeVocabulary) {
  use_vocabulary(test_vocabulary(51'200 - 299));
  add_all_grammars();
  add_grammar(compile_regex("([a-z][a-z])+"));
  std::vector<std::int32_t> grammar_of;
  for (std::int32_t i = 0; i < kMaxSeats; ++i) grammar_of.push_back(i % 9);
  use_cache(2);
  use_rows(grammar_of);
  for (int step = 0; step < 3; ++step) {
    const std::vector<Mask> masks = launch();
    for (std::size_t i = 0; i < seats_.size(); ++i) {
      ASSERT_EQ(masks[i], expected(i)) << "row " << i << " at step " << step;
      if (!take(i, any_of(masks[i]))) begin_again(i);
    }
  }
}

// A place that was found serves others: what lies in the cache is what comes out.
TEST_F(GrammarMasksTest, AKnownPlaceIsNotWalkedAgain) {
  use_vocabulary(test_vocabulary(10));
  add_all_grammars();
  add_grammar(compile_regex("(true|12)+"));
  use_cache(8);
  use_rows({7, 8});  // no token that the length decides about
  const std::vector<Mask> first = launch();
  masks_dev_ = upload(std::vector<std::uint32_t>(
      static_cast<std::size_t>(num_sets_) * kGrammarCacheWays * num_words_, 0x12345678u));
  const std::vector<Mask> second = launch();
  EXPECT_EQ(second[0], Mask(num_words_, 0x12345678u));
  EXPECT_EQ(second[1], Mask(num_words_, 0x12345678u));
  // Another grammar in the same place of the pool is another grammar.
  tables_[7].id = 900;
  EXPECT_EQ(launch()[0], first[0]);
}

// Of a list of up to 40 items those in the middle have the same tokens: none of them may be the last, and each may be.
TEST_F(GrammarMasksTest, ItemsInTheMiddleOfAListShareTheirPlaces) {
  use_vocabulary(test_vocabulary(5000));  // walked in several parts
  add_all_grammars();
  use_cache(64);
  use_rows({3});
  const auto num_made = [this] {
    const auto turns = download<std::uint32_t>(turns_dev_);
    return std::accumulate(turns.begin(), turns.end(), 0u);
  };
  const auto token_of = [](char byte) { return 8 + static_cast<std::int32_t>(byte); };
  unsigned made_by_fifth = 0;
  for (int item = 1; item <= 40; ++item) {
    for (const char byte : {item == 1 ? '[' : ',', '7'}) {
      ASSERT_EQ(launch()[0], expected(0)) << "before " << byte << " of item " << item;
      take(0, token_of(byte));
    }
    if (item == 5) made_by_fifth = num_made();
    if (item == 35) {
      EXPECT_EQ(num_made(), made_by_fifth);
    }
  }
  const Mask last = launch()[0];
  EXPECT_EQ(last, expected(0));
  EXPECT_EQ(last[static_cast<std::size_t>(token_of(',')) / 32] >> (token_of(',') % 32) & 1, 0u);
  EXPECT_GT(num_made(), made_by_fifth);
}

// Up to 25 blanks may stand in a row, and there are tokens of several: the number of blanks decides about those alone.
TEST_F(GrammarMasksTest, AnyNumberOfBlanksSharesItsPlace) {
  std::vector<std::string> texts = test_vocabulary(3000);
  for (std::size_t blanks = 3; blanks <= 64; ++blanks) {
    texts.emplace_back(blanks, ' ');
    texts.push_back(std::string(blanks, ' ') + "1");
  }
  use_vocabulary(texts);
  add_all_grammars();
  use_cache(8);
  use_rows({1, 3});
  const auto num_made = [this] {
    const auto turns = download<std::uint32_t>(turns_dev_);
    return std::accumulate(turns.begin(), turns.end(), 0u);
  };
  (void)launch();
  const auto token_of = [](char byte) { return 8 + static_cast<std::int32_t>(byte); };
  for (std::size_t i = 0; i < seats_.size(); ++i) take(i, token_of('['));
  unsigned made_by_first = 0;
  std::vector<Mask> seen;
  for (int blanks = 0; blanks <= 25; ++blanks) {
    const std::vector<Mask> masks = launch();
    for (std::size_t i = 0; i < seats_.size(); ++i) {
      ASSERT_EQ(masks[i], expected(i)) << "row " << i << " behind " << blanks << " blanks";
      if (blanks < 25) take(i, token_of(' '));
    }
    EXPECT_TRUE(seen.empty() || seen.back() != masks[0]) << "one blank less may follow";
    seen.push_back(masks[0]);
    // Behind the first blank the automaton is in a state of its own.
    if (blanks == 1) made_by_first = num_made();
  }
  EXPECT_EQ(num_made(), made_by_first);
  EXPECT_GT(made_by_first, 0u);
}

// More tokens than an entry lists: then it is for those lengths at which none of them becomes legal or illegal.
TEST_F(GrammarMasksTest, WhereTheLengthDecidesAboutManyTokensItTellsPlacesApart) {
  use_vocabulary(test_vocabulary(5000));
  add_schema(R"({"type": "string", "minLength": 12, "maxLength": 40})");
  use_cache(8);
  use_rows({0});
  const auto token_of = [](char byte) { return 8 + static_cast<std::int32_t>(byte); };
  std::vector<unsigned> made;
  (void)launch();
  take(0, token_of('"'));
  for (int length = 0; length <= 40; ++length) {
    ASSERT_EQ(launch()[0], expected(0)) << "behind " << length << " characters";
    const auto turns = download<std::uint32_t>(turns_dev_);
    made.push_back(std::accumulate(turns.begin(), turns.end(), 0u));
    if (length < 40) take(0, token_of('x'));
  }
  EXPECT_EQ(
      made[20],
      made[12]);  // the longest token has 34 bytes that are no characters here, and others 9 characters
  EXPECT_GT(made[40], made[20]);
}

TEST_F(GrammarMasksTest, OtherRowsAreLeftAlone) {
  use_vocabulary(test_vocabulary(10));
  add_all_grammars();
  use_cache(8);
  use_rows({2, kNoGrammar, 2, 3});
  state(2).done = 1;
  seats_.push_back(-1);
  const Mask untouched(num_words_, kPoisonWord);
  std::vector<Mask> masks = launch();
  EXPECT_EQ(masks[0], expected(0));
  EXPECT_EQ(masks[1], untouched);
  EXPECT_EQ(masks[2], untouched);
  EXPECT_EQ(masks[3], expected(3));
  EXPECT_EQ(masks[4], untouched);
  // A token that is not legal here, one without text, and one that is none: nothing is legal from then on.
  for (const std::int32_t token : {8 + 'z', 2, vocabulary_->vocab(), -1}) {
    begin_again(0);
    (void)launch();
    state(0).input.id = token;
    state(0).num_generated = 1;
    for (int step = 0; step < 2; ++step) EXPECT_EQ(launch()[0], Mask(num_words_, 0)) << token;
  }
  begin_again(0);
  EXPECT_EQ(launch()[0], expected(0));
}

// A step's order: logits, masks, sampling, of which each may begin while the one before it ends. The same ops one by one give the
// same tokens and probabilities, which differ from step to step.
TEST_F(GrammarMasksTest, SamplingRightBehindReadsThisStepsLogitsAndMasks) {
  constexpr int kDim = 64;
  use_vocabulary(test_vocabulary(51'200 - 299));
  add_all_grammars();
  use_cache(64);
  use_rows({0, kNoGrammar, 4, 7, 6, 2});
  state(3).sampling.temperature = 1;
  state(4).done = 1;
  seats_.push_back(-1);
  const int num_rows = static_cast<int>(seats_.size()), vocab = vocabulary_->vocab();
  const auto values = static_cast<std::size_t>(num_rows) * static_cast<std::size_t>(vocab);
  const TestTensor head = random_tensor(static_cast<std::size_t>(vocab) * kDim, 0.3f);
  const auto sample = [&](const Buffer& x, bool at_once) {
    const LaunchBuffers buffers = upload_launch();
    const Buffer logits = poisoned_bytes(values * sizeof(float));
    const Buffer tokens = poisoned_bytes(seats_.size() * sizeof(std::int32_t));
    const Buffer logprobs = poisoned_bytes(seats_.size() * sizeof(float));
    const Buffer scratch = poisoned_bytes(kernels_->sample_scratch_bytes(num_rows, vocab));
    const auto next = [&](const Status& status) {
      if (!at_once) return run(status);
      ASSERT_TRUE(status.ok()) << status.to_string();
    };
    next(kernels_->linear(*stream_, {.x = x.data(),
                                     .x_stride = kDim,
                                     .weights = {.weight = head.dev(), .in = kDim, .out = vocab},
                                     .y = logits.data(),
                                     .y_stride = vocab,
                                     .y_dtype = DType::kF32,
                                     .num_rows = num_rows,
                                     .decode = true}));
    next(kernels_->grammar_masks(*stream_, params(buffers)));
    run(kernels_->sample(*stream_, {.logits = logits.as<float>(),
                                    .logits_stride = vocab,
                                    .rows = buffers.seats.as<std::int32_t>(),
                                    .row_states = buffers.states.as<RowState>(),
                                    .host_mask_stride = static_cast<int>(num_words_),
                                    .grammar_masks = buffers.masks.as<std::uint32_t>(),
                                    .behind_grammar_masks = at_once,
                                    .tokens = tokens.as<std::int32_t>(),
                                    .logprobs = logprobs.as<float>(),
                                    .num_rows = num_rows,
                                    .vocab = vocab,
                                    .scratch = scratch.data()}));
    return std::pair(download<std::int32_t>(tokens), download<float>(logprobs));
  };
  for (int step = 0; step < 40; ++step) {
    const TestTensor x = random_tensor(seats_.size() * kDim);
    const auto places_before = download<GrammarRow>(rows_dev_);
    const auto at_once = sample(x.device, true);
    rows_dev_ = upload(places_before);  // each of the two takes the last token
    EXPECT_EQ(at_once, sample(x.device, false)) << "step " << step;
    for (std::size_t i = 0; i + 1 < seats_.size(); ++i) {
      if (state(i).done != 0) continue;
      const std::int32_t token = at_once.first[i];
      state(i).input = {InputKind::kText, token, 0, 0};
      if (state(i).grammar == kNoGrammar) {
        ++state(i).num_generated;
        continue;
      }
      EXPECT_NE(expected(i)[static_cast<std::size_t>(token) / 32] >> (token % 32) & 1, 0u);
      if (!take(i, token)) begin_again(i);
    }
  }
}

}  // namespace
}  // namespace gapless
