#include "skill/request_json.h"

#include <boost/json/array.hpp>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>

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
  return invalid_argument("{} must be a number", name);
}

StatusOr<std::int64_t> as_integer(const json::value& value, std::string_view name) {
  if (value.is_int64()) return value.get_int64();
  return invalid_argument("{} must be an integer", name);
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
      return invalid_argument("{} is out of range", name);
    }
    out = static_cast<std::int32_t>(number);
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
  if (!value->is_array()) return invalid_argument("stop must be a string or a list of strings");
  for (const json::value& item : value->get_array()) {
    if (!item.is_string()) return invalid_argument("stop must be a string or a list of strings");
    stop.emplace_back(item.get_string());
  }
  return ok_status();
}

StatusOr<SpatialRef> read_spatial_ref(const json::value& value) {
  const auto wrong = [] {
    return invalid_argument(
        "each of spatial_refs must be [x, y] or [x_min, y_min, x_max, y_max] with numbers from 0 "
        "to 1");
  };
  if (!value.is_array()) return wrong();
  const json::array& numbers = value.get_array();
  if (numbers.size() != 2 && numbers.size() != 4) return wrong();
  float at[4] = {};
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    GAPLESS_ASSIGN_OR_RETURN(const double number, as_number(numbers[i], "spatial_refs"));
    if (number < 0 || number > 1) return wrong();
    at[i] = static_cast<float>(number);
  }
  if (numbers.size() == 2) return SpatialRef{false, at[0], at[1], 0, 0};
  if (at[0] > at[2] || at[1] > at[3]) return wrong();
  return SpatialRef{true, (at[0] + at[2]) / 2, (at[1] + at[3]) / 2, at[2] - at[0], at[3] - at[1]};
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
      text = find_field(object, name = "object", "obj");
      break;
    case Skill::kCaption: {
      const json::value* length = find_field(object, "length");
      if (length == nullptr) return ok_status();
      if (!length->is_string()) return invalid_argument("length must be a string");
      GAPLESS_ASSIGN_OR_RETURN(request.length, caption_length_from_name(length->get_string()));
      return ok_status();
    }
  }
  if (text == nullptr) return invalid_argument("{} is missing", name);
  if (!text->is_string()) return invalid_argument("{} must be a string", name);
  request.text = std::string(text->get_string());
  return ok_status();
}

Status read_settings(const FieldReader& reader, GenerationSettings& settings) {
  GAPLESS_RETURN_IF_ERROR(reader.read(settings.temperature, "temperature", {}));
  GAPLESS_RETURN_IF_ERROR(reader.read(settings.top_p, "top_p", "topP"));
  GAPLESS_RETURN_IF_ERROR(reader.read(settings.min_p, "min_p", "minP"));
  GAPLESS_RETURN_IF_ERROR(reader.read(settings.top_k, "top_k", "topK"));
  GAPLESS_RETURN_IF_ERROR(reader.read(settings.max_tokens, "max_tokens", "maxTokens"));
  GAPLESS_RETURN_IF_ERROR(reader.read(settings.max_objects, "max_objects", "maxObjects"));
  GAPLESS_RETURN_IF_ERROR(reader.read(settings.seed, "seed"));
  GAPLESS_RETURN_IF_ERROR(read_stop(reader.find("stop"), settings.stop));
  if (const json::value* ignore = reader.find("ignore_eos")) {
    if (!ignore->is_bool()) return invalid_argument("ignore_eos must be true or false");
    settings.ignore_eos = ignore->get_bool();
  }
  return ok_status();
}

}  // namespace

StatusOr<SkillRequest> skill_request_from_json(Skill skill, const json::object& object) {
  SkillRequest request;
  request.skill = skill;
  GAPLESS_RETURN_IF_ERROR(read_text(object, request));

  const json::value* settings = find_field(object, "settings");
  if (settings != nullptr && !settings->is_object()) {
    return invalid_argument("settings must be an object");
  }
  const FieldReader reader{object, settings == nullptr ? nullptr : &settings->get_object()};
  GAPLESS_RETURN_IF_ERROR(read_settings(reader, request.settings));

  if (const json::value* refs = find_field(object, "spatial_refs", "spatialRefs")) {
    if (!refs->is_array()) return invalid_argument("spatial_refs must be a list");
    for (const json::value& ref : refs->get_array()) {
      GAPLESS_ASSIGN_OR_RETURN(const SpatialRef parsed, read_spatial_ref(ref));
      request.spatial_refs.push_back(parsed);
    }
  }
  if (const json::value* reasoning = find_field(object, "reasoning")) {
    if (!reasoning->is_bool()) return invalid_argument("reasoning must be true or false");
    if (reasoning->get_bool()) return invalid_argument("reasoning is not supported");
  }
  return request;
}

}  // namespace gapless
