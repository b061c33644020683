#include "skill/request_json.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <charconv>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/limits.h"
#include "skill/grammar_fields.h"
#include "skill/unsupported_fields.h"

namespace gapless {
namespace {

namespace json = boost::json;

// A field under its name or its camelCase name; null counts as absent.
const json::value* find_field(const json::object& object, std::string_view name,
                              std::string_view other_name = {}) {
  for (const std::string_view key : {name, other_name}) {
    if (key.empty()) continue;
    const json::value* value = object.if_contains(key);
    if (value != nullptr && !value->is_null()) return value;
  }
  return nullptr;
}

StatusOr<double> as_number(const json::value& value, std::string_view name) {
  if (value.is_double() && std::isfinite(value.get_double())) return value.get_double();
  if (value.is_int64()) return static_cast<double>(value.get_int64());
  if (value.is_uint64()) return static_cast<double>(value.get_uint64());
  return invalid_field(name, "must be a number");
}

StatusOr<std::int64_t> as_integer(const json::value& value, std::string_view name) {
  if (value.is_int64()) return value.get_int64();
  return invalid_field(name, "must be an integer");
}

// The readers below leave `out` as it is when the field is absent.
struct FieldReader {
  const json::object& top;
  const json::object* settings;  // may be null

  const json::value* find(std::string_view name, std::string_view camel = {}) const {
    if (settings != nullptr) {
      if (const json::value* value = find_field(*settings, name, camel)) return value;
    }
    return find_field(top, name, camel);
  }

  Status read(std::optional<float>& out, std::string_view name, std::string_view camel) const {
    const json::value* value = find(name, camel);
    if (value == nullptr) return ok_status();
    GAPLESS_ASSIGN_OR_RETURN(const double number, as_number(*value, name));
    out = static_cast<float>(number);
    return ok_status();
  }

  Status read(std::optional<std::int32_t>& out, std::string_view name,
              std::string_view camel) const {
    const json::value* value = find(name, camel);
    if (value == nullptr) return ok_status();
    GAPLESS_ASSIGN_OR_RETURN(const std::int64_t number, as_integer(*value, name));
    if (number < std::numeric_limits<std::int32_t>::min() ||
        number > std::numeric_limits<std::int32_t>::max()) {
      return invalid_field(name, "is out of range");
    }
    out = static_cast<std::int32_t>(number);
    return ok_status();
  }

  Status read(bool& out, std::string_view name) const {
    const json::value* value = find(name);
    if (value == nullptr) return ok_status();
    if (!value->is_bool()) return invalid_field(name, "must be true or false");
    out = value->get_bool();
    return ok_status();
  }

  Status read(std::optional<std::uint64_t>& out, std::string_view name) const {
    const json::value* value = find(name);
    if (value == nullptr) return ok_status();
    if (value->is_uint64()) {
      out = value->get_uint64();
      return ok_status();
    }
    GAPLESS_ASSIGN_OR_RETURN(const std::int64_t number, as_integer(*value, name));
    // Two's complement, so that negative seeds are seeds too.
    out = static_cast<std::uint64_t>(number);
    return ok_status();
  }
};

Status read_stop(const json::value* value, std::vector<std::string>& stop) {
  if (value == nullptr) return ok_status();
  if (value->is_string()) {
    stop.emplace_back(value->get_string());
    return ok_status();
  }
  if (!value->is_array()) return invalid_field("stop", "must be a string or a list of strings");
  for (const json::value& item : value->get_array()) {
    if (!item.is_string()) return invalid_field("stop", "must be a string or a list of strings");
    stop.emplace_back(item.get_string());
  }
  return ok_status();
}

// Any id that may name a token; which ones do, the vocabulary decides later.
StatusOr<TokenId> as_token_id(std::string_view name, std::int64_t id) {
  if (id < 0 || id >= kMaxVocabSize) return invalid_field(name, "names no token with {}", id);
  return TokenId(static_cast<std::int32_t>(id));
}

Status read_token_ids(const json::value* value, std::vector<TokenId>& ids) {
  constexpr std::string_view kName = "stop_token_ids";
  if (value == nullptr) return ok_status();
  if (!value->is_array()) return invalid_field(kName, "must be a list of integers");
  for (const json::value& item : value->get_array()) {
    if (!item.is_int64()) return invalid_field(kName, "must be a list of integers");
    GAPLESS_ASSIGN_OR_RETURN(const TokenId id, as_token_id(kName, item.get_int64()));
    ids.push_back(id);
  }
  return ok_status();
}

// {"TOKEN": bias}
Status read_logit_bias(const json::value* value, std::vector<LogitBias>& biases) {
  constexpr std::string_view kName = "logit_bias";
  if (value == nullptr) return ok_status();
  if (!value->is_object()) return invalid_field(kName, "must be an object of tokens and biases");
  for (const auto& [key, number] : value->get_object()) {
    std::int64_t id = 0;
    const char* const end = key.data() + key.size();
    const auto [rest, error] = std::from_chars(key.data(), end, id);
    if (error != std::errc() || rest != end) {
      return invalid_field(kName, "must have numbers of tokens as its keys, not '{}'",
                           std::string_view(key));
    }
    GAPLESS_ASSIGN_OR_RETURN(const TokenId token, as_token_id(kName, id));
    GAPLESS_ASSIGN_OR_RETURN(const double bias, as_number(number, kName));
    biases.push_back({token, static_cast<float>(bias)});
  }
  return ok_status();
}

// Objects that say how much to reason are other servers'.
Status read_reasoning(const json::object& object, SkillRequest& request) {
  const json::value* value = find_field(object, "reasoning");
  if (value == nullptr || means_off(*value)) return ok_status();
  if (!value->is_bool()) return invalid_field("reasoning", "must be true or false");
  request.reasoning = value->get_bool();
  return ok_status();
}

StatusOr<SpatialRef> read_spatial_ref(const json::value& value) {
  if (!value.is_array()) return make_spatial_ref({});
  std::vector<double> numbers;
  for (const json::value& one : value.get_array()) {
    GAPLESS_ASSIGN_OR_RETURN(const double number, as_number(one, "spatial_refs"));
    numbers.push_back(number);
  }
  return make_spatial_ref(numbers);
}

// Several names, in place of one.
Status read_objects(const json::object& object, SkillRequest& request) {
  constexpr std::string_view kName = "objects";
  const json::value* names = find_field(object, kName);
  if (names == nullptr) return ok_status();
  if (!names->is_array() || names->get_array().empty()) {
    return invalid_field(kName, "must be a list of names");
  }
  for (const json::value& one : names->get_array()) {
    if (!one.is_string()) return invalid_field(kName, "must be a list of names");
    request.objects.emplace_back(one.get_string());
  }
  return ok_status();
}

Status read_text(const json::object& object, SkillRequest& request) {
  const json::value* text = nullptr;
  std::string_view name;
  switch (request.skill) {
    case Skill::kQuery:
      text = find_field(object, name = "question");
      break;
    case Skill::kPoint:
    case Skill::kDetect:
    case Skill::kSegment:
      GAPLESS_RETURN_IF_ERROR(read_objects(object, request));
      text = find_field(object, name = "object", "obj");
      break;
    case Skill::kCaption: {
      const json::value* length = find_field(object, "length");
      if (length == nullptr) return ok_status();
      if (!length->is_string()) return invalid_field("length", "must be a string");
      GAPLESS_ASSIGN_OR_RETURN(request.length, caption_length_from_name(length->get_string()));
      return ok_status();
    }
  }
  if (text == nullptr && !request.objects.empty()) return ok_status();
  if (text == nullptr) return invalid_field(name, "is missing");
  if (!text->is_string()) return invalid_field(name, "must be a string");
  request.text = std::string(text->get_string());
  return ok_status();
}

Status read_settings(const FieldReader& reader, GenerationSettings& settings) {
  GAPLESS_RETURN_IF_ERROR(reader.read(settings.temperature, "temperature", {}));
  GAPLESS_RETURN_IF_ERROR(reader.read(settings.top_p, "top_p", "topP"));
  GAPLESS_RETURN_IF_ERROR(reader.read(settings.min_p, "min_p", "minP"));
  GAPLESS_RETURN_IF_ERROR(reader.read(settings.top_k, "top_k", "topK"));
  GAPLESS_RETURN_IF_ERROR(
      reader.read(settings.repetition_penalty, "repetition_penalty", "repetitionPenalty"));
  GAPLESS_RETURN_IF_ERROR(
      reader.read(settings.presence_penalty, "presence_penalty", "presencePenalty"));
  GAPLESS_RETURN_IF_ERROR(
      reader.read(settings.frequency_penalty, "frequency_penalty", "frequencyPenalty"));
  GAPLESS_RETURN_IF_ERROR(
      read_logit_bias(reader.find("logit_bias", "logitBias"), settings.logit_bias));
  GAPLESS_RETURN_IF_ERROR(reader.read(settings.min_tokens, "min_tokens", "minTokens"));
  GAPLESS_RETURN_IF_ERROR(
      read_token_ids(reader.find("stop_token_ids", "stopTokenIds"), settings.stop_token_ids));
  GAPLESS_RETURN_IF_ERROR(reader.read(settings.max_tokens, "max_tokens", "maxTokens"));
  GAPLESS_RETURN_IF_ERROR(reader.read(settings.max_objects, "max_objects", "maxObjects"));
  GAPLESS_RETURN_IF_ERROR(reader.read(settings.seed, "seed"));
  GAPLESS_RETURN_IF_ERROR(read_stop(reader.find("stop"), settings.stop));
  GAPLESS_RETURN_IF_ERROR(reader.read(settings.confidence, "confidence"));
  return reader.read(settings.ignore_eos, "ignore_eos");
}

Status read_grammar(const FieldReader& reader, GenerationSettings& settings) {
  GAPLESS_ASSIGN_OR_RETURN(settings.grammar, read_grammar_fields({&reader.top, reader.settings}));
  return reader.read(settings.complete, "complete");
}

}  // namespace

StatusOr<SpatialRef> make_spatial_ref(std::span<const double> numbers) {
  const bool is_box = numbers.size() == 4;
  const auto is_inside = [](double number) { return number >= 0 && number <= 1; };
  if ((!is_box && numbers.size() != 2) || !std::ranges::all_of(numbers, is_inside) ||
      (is_box && (numbers[0] > numbers[2] || numbers[1] > numbers[3]))) {
    return invalid_argument(
               "each of spatial_refs must be [x, y] or [x_min, y_min, x_max, y_max] with numbers "
               "from 0 to 1")
        .with_field("spatial_refs");
  }
  float at[4] = {};
  for (std::size_t i = 0; i < numbers.size(); ++i) at[i] = static_cast<float>(numbers[i]);
  if (!is_box) return SpatialRef{false, at[0], at[1], 0, 0};
  return SpatialRef{true, (at[0] + at[2]) / 2, (at[1] + at[3]) / 2, at[2] - at[0], at[3] - at[1]};
}

StatusOr<SkillRequest> skill_request_from_json(Skill skill, const json::object& object) {
  SkillRequest request;
  request.skill = skill;
  GAPLESS_RETURN_IF_ERROR(refuse_unsupported(object));
  GAPLESS_RETURN_IF_ERROR(read_text(object, request));
  GAPLESS_RETURN_IF_ERROR(read_reasoning(object, request));

  const json::value* settings = find_field(object, "settings");
  if (settings != nullptr && !settings->is_object()) {
    return invalid_field("settings", "must be an object");
  }
  if (settings != nullptr) GAPLESS_RETURN_IF_ERROR(refuse_unsupported(settings->get_object()));
  const FieldReader reader{object, settings == nullptr ? nullptr : &settings->get_object()};
  GAPLESS_RETURN_IF_ERROR(read_grammar(reader, request.settings));
  GAPLESS_RETURN_IF_ERROR(read_settings(reader, request.settings));

  if (const json::value* refs = find_field(object, "spatial_refs", "spatialRefs")) {
    if (!refs->is_array()) return invalid_field("spatial_refs", "must be a list");
    for (const json::value& ref : refs->get_array()) {
      GAPLESS_ASSIGN_OR_RETURN(const SpatialRef parsed, read_spatial_ref(ref));
      request.spatial_refs.push_back(parsed);
    }
  }
  return request;
}

}  // namespace gapless
