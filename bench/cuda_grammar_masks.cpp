#include "bench/cuda_grammar_masks.h"

#include <fmt/format.h>

#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "bench/moondream2_shapes.h"
#include "grammar/json_grammar.h"
#include "kernels/packed_texts.h"

namespace gapless::bench {
namespace {

constexpr int kManyTokens = 151'936;
constexpr std::int32_t kEnd = 0;
// Tokens that rows take on their way; random ones follow.
constexpr std::string_view kFixed[] = {"", "\"", " ", "a"};
constexpr int kQuote = 1, kBlank = 2, kLetter = 3;
constexpr int kCalls = 16;
constexpr int kSets = 2;  // of each call's own cache
constexpr std::size_t kEntries = std::size_t{kSets} * kGrammarCacheWays;

// As long as Qwen's, which have 6.4 bytes on average and up to 128: half of them begin with a blank, a third is not ASCII, and 400
// are nothing but blanks.
std::vector<std::string> make_vocabulary() {
  std::vector<std::string> texts(std::begin(kFixed), std::end(kFixed));
  for (std::size_t blanks = 2; blanks <= 128; ++blanks) {
    texts.emplace_back(blanks, ' ');
    texts.emplace_back(blanks, '\t');
    texts.push_back("\n" + std::string(blanks, ' '));
  }
  for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
  std::mt19937 random(5);
  constexpr std::string_view kMarks = "\"{}[]:,.0123456789-\\/";
  while (texts.size() < kManyTokens) {
    const unsigned kind = random() % 100;
    std::string text;
    if (kind < 35) {  // characters of three bytes
      for (unsigned n = 1 + random() % 4; n > 0; --n) {
        text += {static_cast<char>(0xE4 + random() % 5), static_cast<char>(0x80 + random() % 64),
                 static_cast<char>(0x80 + random() % 64)};
      }
    } else {
      if (random() % 2 == 0) text += ' ';
      for (unsigned n = 1 + random() % 10; n > 0; --n) {
        text +=
            kind < 45 ? kMarks[random() % kMarks.size()] : static_cast<char>('a' + random() % 26);
      }
    }
    texts.push_back(text);
  }
  return texts;
}

TokenTexts upload_texts(CudaBench& b, const std::vector<std::string>& texts) {
  const PackedTexts packed = pack_texts(texts, texts.size());
  return {.first = b.upload(packed.first),
          .bytes = b.upload(packed.bytes),
          .heads = b.upload(packed.heads),
          .summaries = b.upload(packed.summaries),
          .vocab = static_cast<int>(texts.size()),
          .eos_id = kEnd};
}

struct Place {
  const char* name;
  std::string_view before;  // the row's last token comes behind that
  std::int32_t last_token;
};

// As many grammars as rows, so that each row looks for its own.
std::vector<GrammarTables> upload_grammars(CudaBench& b, const Grammar& grammar, int count) {
  GrammarTables tables = tables_of(grammar, 1);
  tables.class_of =
      b.upload(std::vector<std::uint8_t>(grammar.class_of.begin(), grammar.class_of.end()));
  tables.edges = b.upload(grammar.edges);
  tables.may_end = b.upload(grammar.may_end);
  tables.actions = b.upload(grammar.actions);
  tables.conditions = b.upload(grammar.conditions);
  tables.name_sets = b.upload(grammar.name_sets);
  tables.next_states = b.upload(grammar.next_states);
  tables.character_loops = b.upload(grammar.character_loops);
  std::vector<GrammarTables> all(static_cast<std::size_t>(count), tables);
  for (int i = 0; i < count; ++i) all[static_cast<std::size_t>(i)].id = i + 1;
  return all;
}

template <typename T>
T* zeros(CudaBench& b, std::size_t count) {
  T* const values = static_cast<T*>(b.allocate(count * sizeof(T)));
  require(b.stream().fill_bytes(values, 0, count * sizeof(T)));
  return values;
}

// Calls one behind the other, each with rows and a cache of its own. Rows take their last token each time, so before the calls all
// of them are put back at once, and for places that are new all entries are cleared at once.
void bench_place(CudaBench& b, const Grammar& grammar, const std::vector<std::string>& texts,
                 const Place& place, int rows) {
  const auto num_rows = static_cast<std::size_t>(rows);
  GrammarRow before = begin_row(grammar);
  for (const char byte : place.before) {
    if (!advance(grammar, before, static_cast<std::uint8_t>(byte))) {
      require(Status(StatusCode::kInternal, "the text leads nowhere"));
    }
  }
  std::vector<RowState> states = row_states(rows, 0, 1);
  for (std::size_t i = 0; i < num_rows; ++i) {
    states[i].grammar = static_cast<std::int32_t>(i);
    states[i].num_generated = 1;
    states[i].input = {InputKind::kText, place.last_token, 0, 0};
  }
  const std::size_t num_words = (texts.size() + 31) / 32;
  const auto* const places_before = b.upload(std::vector<GrammarRow>(kCalls * num_rows, before));
  auto* const places = zeros<GrammarRow>(b, kCalls * num_rows);
  auto* const entries = zeros<GrammarMaskEntry>(b, kCalls * kEntries);
  auto* const masks = zeros<std::uint32_t>(b, kCalls * kEntries * num_words);
  auto* const bounded = zeros<BoundedToken>(b, kCalls * kEntries * kMaxBoundedTokens);
  auto* const turns = zeros<std::uint32_t>(b, kCalls * kSets);
  auto* const locks = zeros<std::int32_t>(b, kCalls * kSets);
  GrammarMasksParams params{.rows = b.upload(seats(rows)),
                            .row_states = b.upload(states),
                            .grammars = b.upload(upload_grammars(b, grammar, rows)),
                            .texts = upload_texts(b, texts),
                            .masks = zeros<std::uint32_t>(b, num_rows * num_words),
                            .mask_stride = static_cast<int>(num_words),
                            .num_rows = rows,
                            .searches = zeros<GrammarSearch>(b, num_rows),
                            .bounded = zeros<BoundedToken>(b, num_rows * kMaxBoundedTokens),
                            .arrivals = zeros<GrammarArrivals>(b, 1)};
  for (const bool known : {false, true}) {
    const Spread spread = b.time(kCalls, [&] {
      GAPLESS_RETURN_IF_ERROR(
          b.stream().copy_on_device(places, places_before, kCalls * num_rows * sizeof(GrammarRow)));
      if (!known) {
        GAPLESS_RETURN_IF_ERROR(
            b.stream().fill_bytes(entries, 0, kCalls * kEntries * sizeof(GrammarMaskEntry)));
      }
      for (std::size_t call = 0; call < kCalls; ++call) {
        params.grammar_rows = places + call * num_rows;
        params.cache = {.entries = entries + call * kEntries,
                        .masks = masks + call * kEntries * num_words,
                        .bounded = bounded + call * kEntries * kMaxBoundedTokens,
                        .turns = turns + call * kSets,
                        .locks = locks + call * kSets,
                        .num_sets = kSets};
        GAPLESS_RETURN_IF_ERROR(b.kernels().grammar_masks(b.stream(), params));
      }
      return ok_status();
    });
    b.print(fmt::format("grammar_masks {} {}, rows {}", known ? "known" : "new", place.name, rows),
            spread, 0, 0);
  }
  b.free_all();
}

}  // namespace

void bench_grammar_masks(CudaBench& b) {
  constexpr std::string_view kSchema =
      R"({"type": "array", "items": {"type": "object", "properties": {
          "name": {"type": "string"}, "count": {"type": "integer"}},
          "required": ["name", "count"], "additionalProperties": false}})";
  const StatusOr<Grammar> grammar = compile_json_schema(kSchema);
  require(grammar.status());
  const std::vector<std::string> texts = make_vocabulary();
  const Place places[] = {{"text", R"([{"name": ")", kLetter},
                          {"blanks", R"([{"name":)", kBlank},
                          {"name", R"([{)", kQuote}};
  for (const Place& place : places) {
    for (const int rows : {1, 8, 32}) bench_place(b, *grammar, texts, place, rows);
  }
}

}  // namespace gapless::bench
