// Others' tests: a sample of MaskBench (schemas with values that they allow and values that they do not) and the
// JSON-Schema-Test-Suite. They lie beside the checkout, or in GAPLESS_SHARED, and are never part of it.
#include <gtest/gtest.h>
#include <zlib.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "base/json.h"
#include "grammar/json_grammar.h"

namespace gapless {
namespace {

namespace json = boost::json;

std::filesystem::path shared_data() {
  const char* const shared = std::getenv("GAPLESS_SHARED");
  const std::filesystem::path folder = shared != nullptr ? shared : GAPLESS_SOURCE_DIR "/../shared";
  return folder / "data";
}

// With whole numbers written as such: a number has one spelling at least in a grammar, not all of them.
json::value with_short_numbers(json::value value) {
  if (value.is_double()) {
    const double number = value.get_double();
    if (std::trunc(number) == number && std::abs(number) < 1e18) {
      return static_cast<std::int64_t>(number);
    }
  } else if (value.is_array()) {
    for (json::value& item : value.get_array()) item = with_short_numbers(item);
  } else if (value.is_object()) {
    for (auto& member : value.get_object()) member.value() = with_short_numbers(member.value());
  }
  return value;
}

class GzipLines {
 public:
  explicit GzipLines(const std::filesystem::path& path) : file_(gzopen(path.c_str(), "rb")) {}
  ~GzipLines() {
    if (file_ != nullptr) gzclose(file_);
  }
  GzipLines(const GzipLines&) = delete;
  GzipLines& operator=(const GzipLines&) = delete;

  bool next(std::string& line) {
    line.clear();
    char piece[1 << 16];
    while (file_ != nullptr && gzgets(file_, piece, sizeof(piece)) != nullptr) {
      line += piece;
      if (line.ends_with('\n')) return true;
    }
    return !line.empty();
  }

 private:
  gzFile file_;
};

TEST(GrammarDataTest, MaskBenchNothingInvalidIsAcceptedAndNextToNothingValidRefused) {
  const std::filesystem::path data = shared_data() / "maskbench_sample.jsonl.gz";
  if (!std::filesystem::exists(data)) GTEST_SKIP() << data << " is not here";
  GzipLines lines(data);
  std::string line;
  int num_schemas = 0, num_supported = 0, num_valid_refused = 0;
  while (lines.next(line)) {
    const json::value document = json::parse(line);
    const StatusOr<Grammar> grammar = compile_json_schema(document.at("schema"));
    ++num_schemas;
    if (!grammar.ok()) continue;
    ++num_supported;
    for (const json::value& test : document.at("tests").as_array()) {
      const bool valid = test.at("valid").as_bool();
      const bool accepted = accepts(*grammar, json_text(test.at("data")));
      EXPECT_TRUE(valid || !accepted) << document.at("name") << ": " << test.at("data");
      if (valid && !accepted) ++num_valid_refused;
    }
  }
  EXPECT_EQ(num_schemas, 1174);
  EXPECT_GE(num_supported, num_schemas * 92 / 100);
  EXPECT_LE(num_valid_refused, 2);
}

// What its files ask for, of those whose keywords are held. A group whose schema is refused says nothing.
TEST(GrammarDataTest, JsonSchemaTestSuite) {
  const std::filesystem::path data = shared_data() / "json_schema_test_suite";
  if (!std::filesystem::exists(data)) GTEST_SKIP() << data << " is not here";
  int num_groups = 0, num_held = 0, num_values = 0;
  for (const char* draft : {"draft2020-12", "draft7"}) {
    for (const auto& file : std::filesystem::directory_iterator(data / draft)) {
      if (file.path().extension() != ".json") continue;
      // Formats say nothing about validity by default there; here they are kept.
      if (file.path().stem() == "format") continue;
      // Nor is a metaschema read, which may say that a keyword says nothing.
      if (file.path().stem() == "vocabulary") continue;
      std::ostringstream text;
      text << std::ifstream(file.path()).rdbuf();
      const json::value groups = json::parse(text.str());
      for (const json::value& group : groups.as_array()) {
        json::value schema = group.at("schema");
        if (schema.is_object() && !schema.as_object().contains("$schema")) {
          schema.as_object()["$schema"] = draft == std::string_view("draft7")
                                              ? "http://json-schema.org/draft-07/schema#"
                                              : "https://json-schema.org/draft/2020-12/schema";
        }
        ++num_groups;
        const StatusOr<Grammar> grammar = compile_json_schema(schema);
        if (!grammar.ok()) continue;
        ++num_held;
        for (const json::value& test : group.at("tests").as_array()) {
          ++num_values;
          const std::string value = json_text(with_short_numbers(test.at("data")));
          EXPECT_EQ(accepts(*grammar, value), test.at("valid").as_bool())
              << draft << "/" << file.path().stem().string() << ": " << group.at("description")
              << ": " << test.at("description") << ": " << value;
        }
      }
    }
  }
  EXPECT_GE(num_held * 10, num_groups * 6) << num_groups;
  EXPECT_GT(num_values, 1000);
}

}  // namespace
}  // namespace gapless
