// Others' tests: a sample of MaskBench, schemas with values that they allow and values that they do not. It lies
// beside the checkout, or in GAPLESS_SHARED, and is never part of it.
#include <gtest/gtest.h>
#include <zlib.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cstdlib>
#include <filesystem>
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

}  // namespace
}  // namespace gapless
