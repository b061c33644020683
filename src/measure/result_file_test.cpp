#include "measure/result_file.h"

#include <gtest/gtest.h>

#include <boost/json/array.hpp>
#include <boost/json/parse.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace gapless {
namespace {

TEST(ResultFile, SaysWhereItsNumbersComeFrom) {
  const auto path = std::filesystem::path(testing::TempDir()) / "result.json";
  const ResultHeader header{.commit = "abc123", .device = "CPU", .model = "m", .ceiling = "none"};
  ASSERT_TRUE(write_result(path, header, {{"points", boost::json::array{1, 2.5}}}).ok());
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  const boost::json::object json = boost::json::parse(text.str()).as_object();
  EXPECT_EQ(json.at("commit"), "abc123");
  EXPECT_EQ(json.at("device"), "CPU");
  EXPECT_EQ(json.at("ceiling"), "none");
  EXPECT_TRUE(json.at("command").as_string().starts_with("measure_test"));
  EXPECT_EQ(json.at("date").as_string().size(), 20u);
  EXPECT_EQ(json.at("points").as_array().size(), 2u);
  EXPECT_NE(text.str().find("\"points\": [1, 2.5]\n"), std::string::npos);
}

TEST(ResultFile, ErrorsNameTheFile) {
  const Status status = write_result("/no/such/folder/result.json", {}, {});
  EXPECT_NE(status.message().find("/no/such/folder/result.json"), std::string::npos);
}

TEST(ResultFile, IndentedJsonIsTheSameJson) {
  const boost::json::value value = {
      {"a", 1}, {"b", {{"c", {1, 2}}, {"d", "x\"y"}}}, {"e", {{{"f", nullptr}}, {{"g", 0.125}}}}};
  EXPECT_EQ(boost::json::parse(indented(value)), value);
}

}  // namespace
}  // namespace gapless
