// config.json <-> ModelConfig.
#include <array>
#include <charconv>
#include <tuple>

#include "base/file_bytes.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/log.h"
#include "model/moondream/model_config.h"

namespace gapless {
namespace {

constexpr int kFormat = 1;

// Every plain number of the schema, once, for reading and for writing.
struct IntField {
  const char* section;
  const char* key;
  int* value;
};

std::vector<IntField> int_fields(ModelConfig& config) {
  TextConfig& text = config.text;
  VisionConfig& vision = config.vision;
  RegionConfig& region = config.region;
  return {{"text", "dim", &text.dim},
          {"text", "ff_dim", &text.ff_dim},
          {"text", "n_layers", &text.n_layers},
          {"text", "vocab_size", &text.vocab_size},
          {"text", "max_context", &text.max_context},
          {"text", "n_heads", &text.n_heads},
          {"text", "n_kv_heads", &text.n_kv_heads},
          {"vision", "enc_dim", &vision.enc_dim},
          {"vision", "enc_patch_size", &vision.enc_patch_size},
          {"vision", "enc_n_layers", &vision.enc_n_layers},
          {"vision", "enc_ff_dim", &vision.enc_ff_dim},
          {"vision", "enc_n_heads", &vision.enc_n_heads},
          {"vision", "proj_inner_dim", &vision.proj_inner_dim},
          {"vision", "proj_out_dim", &vision.proj_out_dim},
          {"vision", "crop_size", &vision.crop_size},
          {"vision", "in_channels", &vision.in_channels},
          {"vision", "max_crops", &vision.max_crops},
          {"vision", "overlap_margin", &vision.overlap_margin},
          {"region", "dim", &region.dim},
          {"region", "coord_feat_dim", &region.coord_feat_dim},
          {"region", "coord_out_dim", &region.coord_out_dim},
          {"region", "size_feat_dim", &region.size_feat_dim},
          {"region", "size_out_dim", &region.size_out_dim},
          {"region", "inner_dim", &region.inner_dim}};
}

struct IdField {
  const char* key;
  TokenId* value;
  bool may_be_missing = false;  // written as -1
};

std::vector<IdField> id_fields(TokenizerConfig& tokenizer) {
  return {{"bos_id", &tokenizer.bos_id},
          {"eos_id", &tokenizer.eos_id},
          {"answer_id", &tokenizer.answer_id, true},
          {"thinking_id", &tokenizer.thinking_id, true},
          {"coord_id", &tokenizer.coord_id},
          {"size_id", &tokenizer.size_id},
          {"start_ground_points_id", &tokenizer.start_ground_points_id, true},
          {"end_ground_id", &tokenizer.end_ground_id, true}};
}

struct TemplateField {
  const char* skill;
  const char* key;
  std::vector<TokenId>* value;
};

std::vector<TemplateField> template_fields(TokenizerConfig& tokenizer) {
  return {{"caption", "short", &tokenizer.caption_short},
          {"caption", "normal", &tokenizer.caption_normal},
          {"caption", "long", &tokenizer.caption_long},
          {"query", "prefix", &tokenizer.query.prefix},
          {"query", "suffix", &tokenizer.query.suffix},
          {"query", "reasoning", &tokenizer.query_reasoning},
          {"query", "reasoning_denied", &tokenizer.reasoning_denied},
          {"detect", "prefix", &tokenizer.detect.prefix},
          {"detect", "suffix", &tokenizer.detect.suffix},
          {"point", "prefix", &tokenizer.point.prefix},
          {"point", "suffix", &tokenizer.point.suffix},
          {"segment", "prefix", &tokenizer.segment.prefix},
          {"segment", "suffix", &tokenizer.segment.suffix}};
}

Status unsupported(const JsonObject& section, std::string_view what) {
  return invalid_argument("{}: {} is not supported", section.name(), what);
}

Status refuse_quantised(const JsonObject& text) {
  if (text.find("group_size") == nullptr) return ok_status();
  return unsupported(text, "text.group_size (quantised weights)");
}

// Those of the section's object "moe".
std::vector<IntField> moe_fields(ModelConfig& config) {
  MoeConfig& moe = config.text.moe;
  return {{"text.moe", "num_experts", &moe.num_experts},
          {"text.moe", "start_layer", &moe.start_layer},
          {"text.moe", "experts_per_token", &moe.experts_per_token},
          {"text.moe", "expert_inner_dim", &moe.expert_inner_dim}};
}

Status read_int_fields(const JsonObject& section, std::string_view name,
                       const std::vector<IntField>& fields) {
  for (const IntField& field : fields) {
    if (field.section != name) continue;
    GAPLESS_ASSIGN_OR_RETURN(const std::int64_t value,
                             section.integer_or(field.key, *field.value, 0, kMaxVocabSize));
    *field.value = static_cast<int>(value);
  }
  return ok_status();
}

Status read_text(const JsonObject& section, ModelConfig& config) {
  TextConfig& text = config.text;
  GAPLESS_RETURN_IF_ERROR(refuse_quantised(section));
  if (section.find("ff_dim") == nullptr) text.ff_dim = 4 * text.dim;
  if (section.find("n_kv_heads") == nullptr) text.n_kv_heads = text.n_heads;
  GAPLESS_ASSIGN_OR_RETURN(text.rope_theta, section.number_or("rope_theta", text.rope_theta));
  GAPLESS_ASSIGN_OR_RETURN(text.tau_attn, section.boolean_or("tau_attn", text.tau_attn));
  if (section.find("moe") == nullptr) return ok_status();
  GAPLESS_ASSIGN_OR_RETURN(const JsonObject moe, section.object("moe"));
  return read_int_fields(moe, "text.moe", moe_fields(config));
}

Status read_region(const JsonObject& section, RegionConfig& region) {
  GAPLESS_ASSIGN_OR_RETURN(region.use_ln, section.boolean_or("use_ln", region.use_ln));
  GAPLESS_ASSIGN_OR_RETURN(region.linear_sizes,
                           section.boolean_or("linear_sizes", region.linear_sizes));
  GAPLESS_ASSIGN_OR_RETURN(
      const std::string_view arch,
      section.string_or("decoder_arch", region.linear_decoders ? "linear" : "mlp"));
  if (arch != "mlp" && arch != "linear") {
    return unsupported(section, fmt::format("region.decoder_arch {}", arch));
  }
  region.linear_decoders = arch == "linear";
  return ok_status();
}

Status read_sizes(const JsonObject& root, ModelConfig& config) {
  for (const std::string_view name : {"text", "vision", "region"}) {
    if (root.find(name) == nullptr) continue;
    GAPLESS_ASSIGN_OR_RETURN(const JsonObject section, root.object(name));
    GAPLESS_RETURN_IF_ERROR(read_int_fields(section, name, int_fields(config)));
    if (name == "text") GAPLESS_RETURN_IF_ERROR(read_text(section, config));
    if (name == "region") GAPLESS_RETURN_IF_ERROR(read_region(section, config.region));
  }
  return ok_status();
}

StatusOr<std::vector<TokenId>> read_ids(const JsonObject& section, std::string_view key) {
  GAPLESS_ASSIGN_OR_RETURN(const auto* list, section.array(key));
  if (list->size() > kMaxTemplateTokens) {
    return section.error(key, fmt::format("of at most {} token ids", kMaxTemplateTokens));
  }
  std::vector<TokenId> ids;
  for (const boost::json::value& id : *list) {
    if (!id.is_int64() || id.get_int64() < 0 || id.get_int64() >= kMaxVocabSize) {
      return section.error(key, "a list of token ids");
    }
    ids.emplace_back(static_cast<std::int32_t>(id.get_int64()));
  }
  return ids;
}

// {"0": "<|endoftext|>", "566": " caption"}
Status read_spellings(const JsonObject& section, std::vector<TokenSpelling>& spellings) {
  if (section.find("spellings") == nullptr) return ok_status();
  GAPLESS_ASSIGN_OR_RETURN(const JsonObject list, section.object("spellings"));
  if (list.fields().size() > kMaxTemplateTokens) {
    return section.error("spellings", fmt::format("of at most {} tokens", kMaxTemplateTokens));
  }
  for (const auto& field : list.fields()) {
    const std::string_view key = field.key();
    std::int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 || id >= kMaxVocabSize) {
      return section.error("spellings", "an object from token ids to their texts");
    }
    GAPLESS_ASSIGN_OR_RETURN(const std::string_view text, list.string(key));
    spellings.push_back({TokenId(id), std::string(text)});
  }
  return ok_status();
}

// A template that the file leaves out is a skill that the model does not have.
Status read_tokenizer(const JsonObject& section, TokenizerConfig& tokenizer) {
  for (const IdField& field : id_fields(tokenizer)) {
    GAPLESS_ASSIGN_OR_RETURN(const std::int64_t id,
                             section.integer_or(field.key, field.value->value,
                                                field.may_be_missing ? -1 : 0, kMaxVocabSize - 1));
    *field.value = TokenId(static_cast<std::int32_t>(id));
  }
  GAPLESS_ASSIGN_OR_RETURN(tokenizer.object_leading_space,
                           section.boolean_or("object_leading_space", true));
  GAPLESS_ASSIGN_OR_RETURN(tokenizer.question_leading_space,
                           section.boolean_or("question_leading_space", false));
  GAPLESS_ASSIGN_OR_RETURN(tokenizer.any_token_is_coord,
                           section.boolean_or("any_token_is_coord", false));
  GAPLESS_ASSIGN_OR_RETURN(tokenizer.gazes, section.boolean_or("gaze", true));
  GAPLESS_RETURN_IF_ERROR(read_spellings(section, tokenizer.spellings));
  GAPLESS_ASSIGN_OR_RETURN(const std::int64_t vocab_size,
                           section.integer_or("vocab_size", 0, 0, kMaxVocabSize));
  tokenizer.vocab_size = static_cast<int>(vocab_size);
  GAPLESS_ASSIGN_OR_RETURN(const JsonObject templates, section.object("templates"));
  for (const TemplateField& field : template_fields(tokenizer)) {
    field.value->clear();
    if (templates.find(field.skill) == nullptr) continue;
    GAPLESS_ASSIGN_OR_RETURN(const JsonObject skill, templates.object(field.skill));
    if (skill.find(field.key) == nullptr) continue;
    GAPLESS_ASSIGN_OR_RETURN(*field.value, read_ids(skill, field.key));
  }
  return ok_status();
}

// Files made by Hugging Face's transformers wrap Moondream's own configuration.
StatusOr<JsonObject> configuration_of(const boost::json::value& document, std::string_view name) {
  GAPLESS_ASSIGN_OR_RETURN(JsonObject root, JsonObject::of(document, name));
  if (root.find("text") == nullptr && root.find("config") != nullptr) return root.object("config");
  return root;
}

// {"gapless": {"numerics": {"tau_gelu": "erf"}}}
Status read_numerics(const JsonObject& root, Numerics& numerics) {
  GAPLESS_ASSIGN_OR_RETURN(const JsonObject gapless, root.object("gapless"));
  if (gapless.find("numerics") == nullptr) return ok_status();
  GAPLESS_ASSIGN_OR_RETURN(const JsonObject list, gapless.object("numerics"));
  for (const auto& field : list.fields()) {
    GAPLESS_ASSIGN_OR_RETURN(const std::string_view choice, list.string(field.key()));
    GAPLESS_RETURN_IF_ERROR(set_numerics(field.key(), choice, numerics).with_context(root.name()));
  }
  return ok_status();
}

StatusOr<bool> has_our_token_ids(const JsonObject& root) {
  if (root.find("gapless") == nullptr) return false;
  GAPLESS_ASSIGN_OR_RETURN(const JsonObject gapless, root.object("gapless"));
  GAPLESS_ASSIGN_OR_RETURN([[maybe_unused]] const std::int64_t format,
                           gapless.integer("format", kFormat, kFormat));
  return true;
}

}  // namespace

StatusOr<bool> is_made_for_gapless(std::string_view json, std::string_view name) {
  GAPLESS_ASSIGN_OR_RETURN(const boost::json::value document, parse_json(json, name));
  GAPLESS_ASSIGN_OR_RETURN(const JsonObject root, configuration_of(document, name));
  return has_our_token_ids(root);
}

StatusOr<ModelConfig> parse_model_config(std::string_view json, std::string_view name,
                                         const ModelConfig& base) {
  GAPLESS_ASSIGN_OR_RETURN(const boost::json::value document, parse_json(json, name));
  GAPLESS_ASSIGN_OR_RETURN(const JsonObject root, configuration_of(document, name));
  ModelConfig config = base;
  GAPLESS_RETURN_IF_ERROR(read_sizes(root, config));
  GAPLESS_ASSIGN_OR_RETURN(const bool ours, has_our_token_ids(root));
  if (ours) {
    GAPLESS_ASSIGN_OR_RETURN(const JsonObject section, root.object("tokenizer"));
    GAPLESS_RETURN_IF_ERROR(read_tokenizer(section, config.tokenizer));
    GAPLESS_RETURN_IF_ERROR(read_numerics(root, config.numerics));
  } else if (root.find("tokenizer") != nullptr) {
    log_info(
        "{}: its token ids are not used, because it does not say \"gapless\": {{\"format\": 1}}",
        name);
  }
  GAPLESS_RETURN_IF_ERROR(validate_model_config(config, name));
  return config;
}

Status expect_sizes(const ModelConfig& found, const ModelConfig& expected, std::string_view name,
                    std::string_view whose) {
  ModelConfig a = found, b = expected;  // the field lists point into them
  if (a.text.max_context <= b.text.max_context) a.text.max_context = b.text.max_context;
  const auto all_fields = [](ModelConfig& config) {
    std::vector<IntField> fields = int_fields(config);
    for (const IntField& field : moe_fields(config)) fields.push_back(field);
    return fields;
  };
  const std::vector<IntField> fields = all_fields(a), wanted = all_fields(b);
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (*fields[i].value != *wanted[i].value) {
      return invalid_argument("{}: {}.{} is {}; {} has {}", name, fields[i].section, fields[i].key,
                              *fields[i].value, whose, *wanted[i].value);
    }
  }
  if (a.text.rope_theta != b.text.rope_theta) {
    return invalid_argument("{}: text.rope_theta is {}; {} has {}", name, a.text.rope_theta, whose,
                            b.text.rope_theta);
  }
  const std::tuple<const char*, bool, bool> flags[] = {
      {"text.tau_attn", a.text.tau_attn, b.text.tau_attn},
      {"region.use_ln", a.region.use_ln, b.region.use_ln},
      {"region.linear_sizes", a.region.linear_sizes, b.region.linear_sizes},
      {"region.decoder_arch linear", a.region.linear_decoders, b.region.linear_decoders}};
  for (const auto& [field, value, expected_value] : flags) {
    if (value == expected_value) continue;
    return invalid_argument("{}: {} is {}; {} has {}", name, field, value, whose, expected_value);
  }
  return ok_status();
}

std::string model_config_to_json(const ModelConfig& original) {
  ModelConfig config = original;  // the field lists point into it
  const auto list_of = [](const std::vector<TokenId>& ids) {
    boost::json::array list;
    for (const TokenId id : ids) list.emplace_back(id.value);
    return list;
  };
  const auto section_of = [](boost::json::object& parent, const char* key) -> boost::json::object& {
    boost::json::value& value = parent[key];
    return value.is_object() ? value.get_object() : value.emplace_object();
  };
  boost::json::object root;
  section_of(root, "gapless")["format"] = kFormat;
  for (const IntField& field : int_fields(config)) {
    section_of(root, field.section)[field.key] = *field.value;
  }
  boost::json::object& text = section_of(root, "text");
  text["rope_theta"] = config.text.rope_theta;
  if (config.text.moe.num_experts > 0) {
    for (const IntField& field : moe_fields(config))
      section_of(text, "moe")[field.key] = *field.value;
  }
  if (config.text.tau_attn) text["tau_attn"] = true;
  if (config.region.use_ln) section_of(root, "region")["use_ln"] = true;
  if (config.region.linear_sizes) section_of(root, "region")["linear_sizes"] = true;
  if (config.region.linear_decoders) section_of(root, "region")["decoder_arch"] = "linear";
  for (const NumericsOption& option : numerics_options()) {
    const int choice = option.get(config.numerics);
    if (choice == 0) continue;
    section_of(section_of(root, "gapless"), "numerics")[option.name] =
        option.choices[static_cast<std::size_t>(choice)].name;
  }
  boost::json::object& tokenizer = section_of(root, "tokenizer");
  for (const IdField& field : id_fields(config.tokenizer))
    tokenizer[field.key] = field.value->value;
  tokenizer["object_leading_space"] = config.tokenizer.object_leading_space;
  if (config.tokenizer.question_leading_space) tokenizer["question_leading_space"] = true;
  if (config.tokenizer.any_token_is_coord) tokenizer["any_token_is_coord"] = true;
  if (!config.tokenizer.gazes) tokenizer["gaze"] = false;
  if (config.tokenizer.vocab_size > 0) tokenizer["vocab_size"] = config.tokenizer.vocab_size;
  for (const TokenSpelling& token : config.tokenizer.spellings) {
    section_of(tokenizer, "spellings")[std::to_string(token.id.value)] = token.text;
  }
  boost::json::object& templates = section_of(tokenizer, "templates");
  for (const TemplateField& field : template_fields(config.tokenizer)) {
    section_of(templates, field.skill)[field.key] = list_of(*field.value);
  }
  return json_text(root) + "\n";
}

}  // namespace gapless
