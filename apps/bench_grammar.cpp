// gapless bench grammar: what the schemas of a folder or of a file cost to compile, what it costs to find the legal tokens at
// each place of an answer, and how many of its tokens are forced: the only legal ones. On one thread, without a device.
#include <time.h>

#include <algorithm>
#include <bit>
#include <boost/json/array.hpp>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_bytes.h"
#include "base/json.h"
#include "bench_options.h"
#include "constraint/legal_tokens.h"
#include "engine_options.h"
#include "grammar/grammar_limits.h"
#include "grammar/json_grammar.h"
#include "model/model_source.h"

namespace gapless {
namespace {

namespace json = boost::json;

// One file of schemas at most: the whole of MaskBench is smaller.
constexpr std::size_t kMaxSchemaFileBytes = std::size_t{1} << 30;
// Places of one answer at which legal tokens are looked for.
constexpr int kMaxPlaces = 200;

struct GrammarBenchOptions {
  BenchOptions bench;
  std::string path;
  std::string tokenizer;
};

struct NamedSchema {
  std::string name;
  std::string text;
  std::vector<std::string> valid, invalid;  // values, as JSON
};

// {"schema", "name"?, "tests"?: [{"data", "valid"}]}, as MaskBench has it, or a schema itself.
NamedSchema named_schema(const std::string& name, const json::value& document) {
  NamedSchema named{.name = name, .text = json_text(document)};
  const json::object* object = document.if_object();
  const json::value* schema = object == nullptr ? nullptr : object->if_contains("schema");
  if (schema == nullptr || !schema->is_object()) return named;
  named.text = json_text(*schema);
  if (const json::value* own = object->if_contains("name"); own != nullptr && own->is_string()) {
    named.name = std::string(own->get_string());
  }
  const json::value* tests = object->if_contains("tests");
  if (tests == nullptr || !tests->is_array()) return named;
  for (const json::value& test : tests->get_array()) {
    const json::object* fields = test.if_object();
    if (fields == nullptr || !fields->contains("data") || !fields->contains("valid")) continue;
    (fields->at("valid") == true ? named.valid : named.invalid)
        .push_back(json_text(fields->at("data")));
  }
  return named;
}

Status read_schemas(const std::filesystem::path& path, std::vector<NamedSchema>& schemas) {
  GAPLESS_ASSIGN_OR_RETURN(const std::string text, read_file(path.string(), kMaxSchemaFileBytes));
  if (path.extension() != ".jsonl") {
    GAPLESS_ASSIGN_OR_RETURN(const json::value document, parse_json(text, path.string()));
    schemas.push_back(named_schema(path.filename().string(), document));
    return ok_status();
  }
  int number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    ++number;
    if (end > begin) {
      const std::string name = fmt::format("{}:{}", path.string(), number);
      GAPLESS_ASSIGN_OR_RETURN(const json::value document,
                               parse_json(std::string_view(text).substr(begin, end - begin), name));
      schemas.push_back(named_schema(name, document));
    }
    begin = end + 1;
  }
  return ok_status();
}

StatusOr<std::vector<NamedSchema>> find_schemas(const std::filesystem::path& path) {
  std::vector<NamedSchema> schemas;
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) {
    GAPLESS_RETURN_IF_ERROR(read_schemas(path, schemas));
    return schemas;
  }
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path, error)) {
    if (entry.path().extension() == ".json" || entry.path().extension() == ".jsonl") {
      files.push_back(entry.path());
    }
  }
  if (error) return invalid_argument("{}: {}", path.string(), error.message());
  std::sort(files.begin(), files.end());
  for (const std::filesystem::path& file : files) {
    GAPLESS_RETURN_IF_ERROR(read_schemas(file, schemas));
  }
  return schemas;
}

// Of this thread's own time, so that what else runs on the machine counts little.
double thread_ms() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

struct Results {
  int num_schemas = 0, num_supported = 0;
  int num_valid = 0, num_valid_refused = 0, num_invalid = 0, num_invalid_accepted = 0;
  std::vector<double> compile_ms, mask_us, table_kb, states;
  std::map<std::string, int> refusals;
  // Of the answers' tokens and bytes that were walked.
  std::int64_t num_tokens = 0, num_forced = 0, num_bytes = 0, num_forced_bytes = 0;
  std::map<int, int>
      forced_runs;  // forced tokens that follow each other: how many such runs, by length
};

// Whether one byte alone may come, and not the end.
bool is_byte_forced(const Grammar& grammar, const GrammarTables& tables, const GrammarRow& row) {
  if (may_end(grammar, row)) return false;
  GrammarProbe<kMaxGrammarDepth + 1> probe;
  WalkInterval counts[kMaxGrammarDepth + 1];  // not asked for
  probe.begin(row, counts);
  int num_legal = 0;
  for (int byte = 0; byte < 256 && num_legal < 2; ++byte) {
    probe.again();
    const bool has_way = take_byte(tables, probe, static_cast<std::uint8_t>(byte));
    num_legal += has_way && probe.lengths.contains(row.length) ? 1 : 0;
  }
  return num_legal == 1;
}

// Counts runs of forced tokens.
class ForcedRuns {
 public:
  explicit ForcedRuns(Results& results) : results_(results) {}
  ForcedRuns(const ForcedRuns&) = delete;
  ForcedRuns& operator=(const ForcedRuns&) = delete;
  ~ForcedRuns() { end_run(); }

  void add(bool is_forced) {
    ++results_.num_tokens;
    if (is_forced) {
      ++length_;
    } else {
      end_run();
    }
  }

 private:
  void end_run() {
    if (length_ == 0) return;
    results_.num_forced += length_;
    ++results_.forced_runs[length_];
    length_ = 0;
  }

  Results& results_;
  int length_ = 0;
};

// Along the text of a valid value, in the longest tokens: the legal tokens at each place.
void measure_masks(const Grammar& grammar, const VocabularyTrie& vocabulary,
                   const std::string& text, Results& results) {
  std::vector<std::uint32_t> mask(static_cast<std::size_t>(vocabulary.vocab() + 31) / 32);
  const GrammarTables tables = tables_of(grammar);
  GrammarRow row = begin_row(grammar);
  ForcedRuns runs(results);
  std::size_t at = 0;
  for (int place = 0; place < kMaxPlaces && at < text.size(); ++place) {
    std::fill(mask.begin(), mask.end(), 0u);
    const double begin_ms = thread_ms();
    (void)find_legal_tokens(grammar, row, vocabulary, mask);
    results.mask_us.push_back((thread_ms() - begin_ms) * 1e3);
    const std::int32_t token = vocabulary.longest_token(std::string_view(text).substr(at));
    if (token < 0) return;  // a vocabulary without this byte
    const std::size_t longest = vocabulary.bytes_of(token).size();
    int num_legal = may_end(grammar, row) ? 1 : 0;
    for (const std::uint32_t word : mask) num_legal += std::popcount(word);
    runs.add(num_legal == 1);
    for (std::size_t i = 0; i < longest; ++i) {
      ++results.num_bytes;
      results.num_forced_bytes += is_byte_forced(grammar, tables, row) ? 1 : 0;
      if (!advance(grammar, row, static_cast<std::uint8_t>(text[at + i]))) return;
    }
    at += longest;
  }
}

// "#/properties/x: uniqueItems is not supported" without its place.
std::string reason_of(const Status& status) {
  const std::string& message = status.message();
  const std::size_t place = message.starts_with('#') ? message.find(": ") : std::string::npos;
  return place == std::string::npos ? message : message.substr(place + 2);
}

void measure(const NamedSchema& schema, const VocabularyTrie& vocabulary, Results& results) {
  ++results.num_schemas;
  const double begin_ms = thread_ms();
  const StatusOr<Grammar> grammar = compile_json_schema(schema.text);
  results.compile_ms.push_back(thread_ms() - begin_ms);
  if (!grammar.ok()) {
    ++results.refusals[reason_of(grammar.status())];
    return;
  }
  ++results.num_supported;
  results.table_kb.push_back(static_cast<double>(grammar->bytes()) / 1024);
  results.states.push_back(grammar->num_states);
  for (const std::string& value : schema.valid) {
    ++results.num_valid;
    if (accepts(*grammar, value)) {
      measure_masks(*grammar, vocabulary, value, results);
    } else {
      ++results.num_valid_refused;
    }
  }
  for (const std::string& value : schema.invalid) {
    ++results.num_invalid;
    if (!accepts(*grammar, value)) continue;
    ++results.num_invalid_accepted;
    fmt::print("{}: accepts what it must not: {}\n", schema.name, value.substr(0, 200));
  }
}

json::object quantiles(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  json::object result;
  for (const auto& [name, share] : {std::pair("p50", 0.5), std::pair("p95", 0.95),
                                    std::pair("p99", 0.99), std::pair("p99_9", 0.999)}) {
    const auto at = static_cast<std::size_t>(share * static_cast<double>(values.size()));
    result[name] = values.empty() ? 0 : rounded(values[std::min(at, values.size() - 1)], 3);
  }
  result["max"] = values.empty() ? 0 : rounded(values.back(), 3);
  return result;
}

// Steps that are saved at best, as a share of all, where a run of forced tokens takes one step in place of one for each: by a host
// that knows the place before each step, and by one that learns it when the next step has begun.
json::object saved_json(const Results& results) {
  std::int64_t at_once = 0, a_step_late = 0;
  for (const auto& [length, number] : results.forced_runs) {
    at_once += std::int64_t{number} * (length - 1);
    a_step_late += std::int64_t{number} * std::max(0, length - 2);
  }
  const double num_tokens = static_cast<double>(std::max<std::int64_t>(1, results.num_tokens));
  return {{"known_at_once", rounded(static_cast<double>(at_once) / num_tokens, 5)},
          {"known_a_step_late", rounded(static_cast<double>(a_step_late) / num_tokens, 5)}};
}

json::object forced_json(const Results& results) {
  json::object runs;
  for (const auto& [length, number] : results.forced_runs) runs[std::to_string(length)] = number;
  return {{"tokens", results.num_tokens}, {"forced_tokens", results.num_forced},
          {"bytes", results.num_bytes},   {"forced_bytes", results.num_forced_bytes},
          {"runs_by_length", runs},       {"share_of_steps_saved_at_best", saved_json(results)}};
}

StatusOr<VocabularyTrie> load_vocabulary(const GrammarBenchOptions& options) {
  StatusOr<Tokenizer> tokenizer = make_error(StatusCode::kInternal, "no tokenizer");
  if (options.tokenizer.empty()) {
    GAPLESS_ASSIGN_OR_RETURN(const ModelSource source, find_chosen_model(options.bench.model));
    tokenizer = load_tokenizer(source);
  } else {
    tokenizer = Tokenizer::load(options.tokenizer);
  }
  if (!tokenizer.ok()) return tokenizer.status();
  return VocabularyTrie(tokenizer->text_of_tokens());
}

Status run_grammar(const GrammarBenchOptions& options) {
  GAPLESS_ASSIGN_OR_RETURN(const VocabularyTrie vocabulary, load_vocabulary(options));
  GAPLESS_ASSIGN_OR_RETURN(const std::vector<NamedSchema> schemas, find_schemas(options.path));
  Results results;
  for (const NamedSchema& schema : schemas) measure(schema, vocabulary, results);
  const json::object compile = quantiles(results.compile_ms), mask = quantiles(results.mask_us);
  json::object refusals;
  std::vector<std::pair<int, std::string>> by_number;
  for (const auto& [reason, number] : results.refusals) by_number.emplace_back(-number, reason);
  std::sort(by_number.begin(), by_number.end());
  for (const auto& [number, reason] : by_number) refusals[reason] = -number;
  fmt::print(
      "{} schemas, {} supported; {} of {} valid values refused, {} of {} invalid ones accepted\n",
      results.num_schemas, results.num_supported, results.num_valid_refused, results.num_valid,
      results.num_invalid_accepted, results.num_invalid);
  fmt::print("compile, ms: {}\nlegal tokens of {}, us at {} places: {}\n", json_text(compile),
             vocabulary.vocab(), results.mask_us.size(), json_text(mask));
  const json::object forced = forced_json(results);
  fmt::print("forced: {}\n", json_text(forced));
  if (options.bench.json.empty()) return ok_status();
  ResultHeader header;
  header.commit = options.bench.commit;
  header.device = "cpu, 1 thread";
  header.model = fmt::format("a vocabulary of {} tokens", vocabulary.vocab());
  header.ceiling = "none";
  return write_result(options.bench.json, header,
                      {{"benchmark", "grammar"},
                       {"schemas", results.num_schemas},
                       {"supported", results.num_supported},
                       {"valid_values", results.num_valid},
                       {"valid_refused", results.num_valid_refused},
                       {"invalid_values", results.num_invalid},
                       {"invalid_accepted", results.num_invalid_accepted},
                       {"compile_ms", compile},
                       {"mask_places", results.mask_us.size()},
                       {"mask_us", mask},
                       {"forced", forced},
                       {"table_kb", quantiles(results.table_kb)},
                       {"states", quantiles(results.states)},
                       {"refusals", refusals}});
}

}  // namespace

void add_bench_grammar_command(CLI::App& bench, Command& chosen) {
  auto options = std::make_shared<GrammarBenchOptions>();
  CLI::App* command = bench.add_subcommand(
      "grammar", "Compile the schemas of a folder or file and find the legal tokens along values");
  command
      ->add_option(
          "path", options->path,
          "A schema (.json), lines of {\"schema\", \"tests\"} (.jsonl), or a folder of them")
      ->required();
  add_model_option(*command, options->bench.model);
  command->add_option("--tokenizer", options->tokenizer, "A tokenizer.json, instead of a model's");
  add_result_options(*command, options->bench.json, options->bench.commit);
  command->callback(
      [options, &chosen] { chosen = [options] { return report(run_grammar(*options)); }; });
}

}  // namespace gapless
