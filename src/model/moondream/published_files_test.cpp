// Published checkpoints, as far as their headers go: each is recognised, and run or refused with
// what was found, what was expected and where to get it. The files have every tensor in its full
// shape but no data: they are sparse.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <functional>

#include "model/model_source.h"
#include "model/moondream/tensors.h"
#include "model/moondream/test_config.h"
#include "text/byte_level.h"
#include "weights/test_files.h"

namespace gapless {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing_config::tensors_of;
using testing_files::StoredTensor;
using testing_files::TemporaryFolder;
using testing_files::Tensors;

void write_weights(const TemporaryFolder& folder, const Tensors& tensors) {
  testing_files::write_weights(folder.path() / "model.safetensors", tensors);
}

constexpr const char* kJuneConfig =
    R"({"architectures": ["HfMoondream"], "model_type": "moondream1", "config": {},
        "torch_dtype": "bfloat16"})";
constexpr const char* kJuneCode =
    R"(self.tokenizer = Tokenizer.from_pretrained("moondream/starmie-v1"))";
constexpr const char* kJanuaryCode =
    R"(self.tokenizer = Tokenizer.from_pretrained(
           "vikhyatk/moondream2", revision="2024-08-26")
       w = torch.argmax(size_logits[0], dim=-1) / size_logits.size(-1))";
constexpr const char* kMarchCode =
    R"(self.tokenizer = Tokenizer.from_pretrained(
           "vikhyatk/moondream2", revision="2025-01-09")
       w = torch.pow(2.0, (w_bin.float() / 1023.0) * 10.0 - 10.0))";
constexpr const char* kWhereJuneIs =
    "It runs Moondream 2 of June 2025 (model.safetensors and config.json of vikhyatk/moondream2, "
    "revision 2025-06-21; tokenizer.json of moondream/starmie-v1)";

Tensors moondream3(bool legacy) {
  return tensors_of(moondream3_config(), TensorDType::kBF16, legacy);
}

// As Photon's releases have it: experts in 8 bits with a factor a row, and tau's products as one tensor.
Tensors moondream3_fp8() {
  Tensors tensors;
  for (StoredTensor& tensor : moondream3(/*legacy=*/true)) {
    const bool is_up = tensor.name.ends_with(".mlp.experts.weight");
    if (is_up || tensor.name.ends_with(".mlp.output_experts.weight")) {
      const std::string layer = tensor.name.substr(0, tensor.name.find(".mlp."));
      tensors.push_back({layer + (is_up ? ".moe_quant.up_scale" : ".moe_quant.down_scale"),
                         TensorDType::kF32,
                         {tensor.shape[0], tensor.shape[1]}});
      tensor.dtype = TensorDType::kF8E4M3;
    }
    if (tensor.name.ends_with(".tau_wv")) continue;
    if (tensor.name.ends_with(".tau_wq")) {
      tensor.name += "wv";
      tensor.shape[0] *= 2;
    }
    tensors.push_back(tensor);
  }
  tensors.push_back({"text_model.transformer.h.0.kv_quantizer.k_scale", TensorDType::kF32, {1}});
  return tensors;
}

constexpr const char* kMoondream3Config =
    R"({"architectures": ["HfMoondream"], "model_type": "moondream3", "torch_dtype": "bfloat16",
        "text": {"max_context": 4096, "moe": {"num_experts": 64, "start_layer": 4,
                 "experts_per_token": 8, "expert_inner_dim": 1024}, "tau_attn": true}})";

struct TokenizerText {
  boost::json::object vocab;
  boost::json::array added;
  void token(int id, const std::string& text) { vocab[to_byte_level(text)] = id; }
  void special(int id, const std::string& text) {
    added.push_back({{"id", id}, {"content", text}, {"special", true}});
  }
  std::string json() const {
    return boost::json::serialize(boost::json::value{
        {"added_tokens", added},
        {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
        {"decoder", {{"type", "ByteLevel"}}},
        {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", boost::json::array()}}}});
  }
};

// What is known of moondream/starmie-v1: the ids that prompts are made of.
TokenizerText june_tokenizer() {
  TokenizerText text;
  for (int byte = 0; byte < 256; ++byte) {
    text.vocab[byte_level_alphabet()[static_cast<std::size_t>(byte)]] = 21 + byte;
  }
  text.special(0, "<|endoftext|>");
  for (int i = 0; i < 20; ++i) text.special(1 + i, fmt::format("<|md_reserved_{}|>", i));
  text.token(15381, "query");
  text.token(32708, "describe");
  text.token(12492, "short");
  text.token(6382, "normal");
  text.token(4059, "long");
  text.token(7235, "det");
  text.token(476, "ect");
  text.token(2581, "point");
  text.token(17374, "segment");
  text.token(51199, "the last");
  return text;
}

// GPT-2's ids, which releases until April 2025 use.
TokenizerText older_tokenizer() {
  TokenizerText text;
  std::vector<std::string> letters(byte_level_alphabet().begin(), byte_level_alphabet().end());
  std::ranges::sort(letters);  // '!' first
  for (std::size_t i = 0; i < letters.size(); ++i) text.vocab[letters[i]] = i;
  text.token(24361, "Question");
  text.token(33706, "Answer");
  text.token(628, "\n\n");
  text.token(16438, "Short");
  text.token(24334, "Normal");
  text.token(14617, "Long");
  text.token(8305, " caption");
  text.token(1159, " text");
  text.token(47504, "Detect");
  text.token(12727, "Point");
  text.special(50256, "<|endoftext|>");
  return text;
}

class PublishedFiles : public testing::Test {
 protected:
  // The June 2025 release, its tokenizer.json from the repository that has it.
  PublishedFiles() {
    write_weights(folder_, june_);
    folder_.write("config.json", kJuneConfig);
    folder_.write("tokenizer.json", june_tokenizer().json());
  }

  void remove(const char* file) { std::filesystem::remove(folder_.path() / file); }

  // What `gapless info` would do with the folder, and loading before it reads weights.
  std::string error() const {
    const auto source = find_model(folder_.path().string());
    if (!source.ok()) return source.status().to_string();
    const auto tokenizer = load_tokenizer(*source);
    if (!tokenizer.ok()) return tokenizer.status().to_string();
    const auto weights = open_weights(*source);
    return weights.ok() ? "runs as " + std::string(source->profile ? source->profile->title : "")
                        : weights.status().to_string();
  }
  std::string error_with(const Tensors& tensors) {
    write_weights(folder_, tensors);
    return error();
  }
  std::string error_with(const TokenizerText& tokenizer) {
    folder_.write("tokenizer.json", tokenizer.json());
    return error();
  }
  std::string error_after(const std::function<void(Tensors&)>& edit) {
    Tensors tensors = june_;
    edit(tensors);
    return error_with(tensors);
  }
  std::string file(const char* name) const { return (folder_.path() / name).string() + ": "; }

  const Tensors june_ = tensors_of(moondream2_config(), TensorDType::kBF16);
  const TemporaryFolder folder_;
};

constexpr const char* kRuns = "runs as Moondream 2 of June 2025";

TEST_F(PublishedFiles, June2025Runs) {
  EXPECT_EQ(error(), kRuns);
  const auto source = find_model(folder_.path().string());
  EXPECT_EQ(source->config, moondream2_config());
  EXPECT_THAT(describe_source(*source).value(),
              AllOf(HasSubstr("Moondream 2 of June 2025"), HasSubstr("51200 tokens"),
                    HasSubstr("3854.5 MB of BF16")));
  folder_.write("moondream.py", kJuneCode);
  EXPECT_EQ(error(), kRuns);
}

TEST_F(PublishedFiles, June2025RunsInTheOtherNamings) {
  EXPECT_EQ(error_with(tensors_of(moondream2_config(), TensorDType::kBF16, /*legacy=*/true)),
            kRuns);
  EXPECT_EQ(error_after([](Tensors& tensors) {
              for (StoredTensor& tensor : tensors) tensor.name = tensor.name.substr(6);
              tensors[5].name += "._orig_mod";
              // Buffers of the reference model's code.
              tensors.push_back(
                  {"text.blocks.0.kv_cache.k_cache", TensorDType::kBF16, {1, 32, 2048, 64}});
              tensors.push_back({"text.freqs_cis", TensorDType::kF32, {2048, 32}});
            }),
            kRuns);
}

// Converted weights keep their release when its code lies beside them.
TEST_F(PublishedFiles, TheCodeBesideTheWeightsIsAskedBeforeTheirDtype) {
  folder_.write("moondream.py", kJuneCode);
  EXPECT_EQ(error_with(tensors_of(moondream2_config(), TensorDType::kF16)), kRuns);
  folder_.write("tokenizer.json", older_tokenizer().json());
  folder_.write("moondream.py", kJanuaryCode);
  EXPECT_EQ(error_with(june_), "runs as Moondream 2 of January 2025");
  folder_.write("moondream.py", kMarchCode);
  EXPECT_EQ(error(), "runs as Moondream 2 of March and April 2025");
  folder_.write("tokenizer.json", june_tokenizer().json());
  folder_.write("moondream.py", R"(Tokenizer.from_pretrained('someone/else'))");
  EXPECT_THAT(error(),
              AllOf(HasSubstr(file("moondream.py")), HasSubstr("names the tokenizer someone/else"),
                    HasSubstr("Moondream 2 of June 2025")));
  folder_.write("moondream.py", "no tokenizer here");
  EXPECT_EQ(error(), kRuns);
}

TEST_F(PublishedFiles, OlderReleasesRunWithTheirCodeAndTheirTokenizer) {
  for (const bool legacy : {false, true}) {
    write_weights(folder_, tensors_of(moondream2_config(), TensorDType::kF16, legacy));
    folder_.write("tokenizer.json", older_tokenizer().json());
    folder_.write("moondream.py", kJanuaryCode);
    EXPECT_EQ(error(), "runs as Moondream 2 of January 2025");
    EXPECT_EQ(find_model(folder_.path().string())->config, moondream2_january_config());
    folder_.write("moondream.py", kMarchCode);
    EXPECT_EQ(error(), "runs as Moondream 2 of March and April 2025");
    EXPECT_EQ(find_model(folder_.path().string())->config, moondream2_march_config());
  }
  EXPECT_THAT(describe_source(find_model(folder_.path().string()).value()).value(),
              AllOf(HasSubstr("Moondream 2 of March and April 2025"), HasSubstr("MB of F16")));
  // Token ids of a published config.json are ignored, and its sizes must be the model's.
  folder_.write("config.json", R"({"config": {}, "tokenizer": {"bos_id": 7, "templates": {}}})");
  EXPECT_EQ(find_model(folder_.path().string())->config, moondream2_march_config());
  folder_.write("config.json", R"({"region": {"linear_sizes": true}})");
  EXPECT_THAT(error(), HasSubstr("region.linear_sizes is true; Moondream 2 of March and April"));
}

TEST_F(PublishedFiles, OlderReleasesAreRefusedInMixtures) {
  write_weights(folder_, tensors_of(moondream2_config(), TensorDType::kF16));
  // Without the code January and March cannot be told apart.
  folder_.write("tokenizer.json", older_tokenizer().json());
  EXPECT_THAT(error(), AllOf(HasSubstr(file("model.safetensors")),
                             HasSubstr("its tensors are F16, so its release cannot be told"),
                             HasSubstr("Put the moondream.py of its release beside it")));
  // Code that says nothing of sizes, or both things.
  folder_.write("moondream.py", R"(Tokenizer.from_pretrained("vikhyatk/moondream2"))");
  EXPECT_THAT(error(),
              AllOf(HasSubstr(file("moondream.py")), HasSubstr("does not say how a size is made"),
                    HasSubstr("Moondream 2 of January 2025, Moondream 2 of March and April 2025")));
  folder_.write("moondream.py", std::string(kJanuaryCode) + kMarchCode);
  EXPECT_THAT(error(), HasSubstr("is that of Moondream 2 of January 2025, Moondream 2 of March and "
                                 "April 2025 at once"));
  // The other tokenizer, and none.
  folder_.write("moondream.py", kMarchCode);
  EXPECT_THAT(error_with(june_tokenizer()),
              AllOf(HasSubstr("not the tokenizer of these weights: id 50256 is no token"),
                    HasSubstr("it is the tokenizer of Moondream 2 of June 2025"),
                    HasSubstr("expected is the tokenizer.json of vikhyatk/moondream2")));
  TokenizerText other = older_tokenizer();
  other.vocab.erase("Point");
  EXPECT_THAT(error_with(other),
              HasSubstr("it has no token 12727, which the prompts of Moondream 2 "
                        "of March"));
  remove("tokenizer.json");
  EXPECT_THAT(error(), HasSubstr("tokenizer.json of vikhyatk/moondream2"));
  remove("config.json");
  EXPECT_THAT(error(), HasSubstr("the config.json of Moondream 2 of March and April 2025"));
}

TEST_F(PublishedFiles, AnotherDtypeDoesNotTellTheRelease) {
  EXPECT_THAT(error_with(tensors_of(moondream2_config(), TensorDType::kF32)),
              AllOf(HasSubstr(file("model.safetensors")),
                    HasSubstr("its tensors are F32, so its release cannot be told"),
                    HasSubstr("Moondream 2 of June 2025 in BF16"),
                    HasSubstr("Moondream 2 of January 2025 in F16"),
                    HasSubstr("Put the moondream.py of its release beside it")));
}

TEST_F(PublishedFiles, HalfABillionRuns) {
  const ModelConfig half = moondream_half_billion_config();
  folder_.write("tokenizer.json", older_tokenizer().json());
  for (const bool legacy : {false, true}) {
    EXPECT_EQ(error_with(tensors_of(half, TensorDType::kF16, legacy)), "runs as Moondream 0.5B");
  }
  // Its own config.json makes it no other model.
  folder_.write("config.json", R"({"text": {"dim": 1024, "n_heads": 16}, "region": {"dim": 1024},
      "vision": {"enc_dim": 720, "enc_ff_dim": 2690, "enc_n_heads": 10, "proj_out_dim": 1024}})");
  EXPECT_EQ(error_with(tensors_of(half, TensorDType::kBF16)), "runs as Moondream 0.5B");
  EXPECT_EQ(find_model(folder_.path().string())->config, half);
  folder_.write("moondream.py", kMarchCode);  // which knows it too
  EXPECT_EQ(error(), "runs as Moondream 0.5B");
  folder_.write("moondream.py", kJuneCode);
  EXPECT_THAT(error(), AllOf(HasSubstr(file("moondream.py")),
                             HasSubstr("names the tokenizer moondream/starmie-v1, which Moondream "
                                       "0.5B does not use, and that is what the tensors are")));
  remove("moondream.py");
  folder_.write("config.json", R"({"text": {"dim": 2048}})");
  EXPECT_THAT(error(), HasSubstr("text.dim = 2048"));
  folder_.write("config.json", "{}");
  EXPECT_THAT(error_with(june_tokenizer()),
              HasSubstr("id 50256 is no token, but Moondream 0.5B has '<|endoftext|>' there"));
}

TEST_F(PublishedFiles, OtherModelsOfTheFamilyAreNamed) {
  EXPECT_THAT(error_after([](Tensors& tensors) {
                for (StoredTensor& tensor : tensors) {
                  if (!tensor.name.ends_with(".mlp.fc1.weight") || tensor.shape[0] != 8192)
                    continue;
                  tensor = {tensor.name + ".packed", TensorDType::kU8, {65536, 128}};
                }
              }),
              AllOf(HasSubstr("this is Moondream 2 in 4 bits"), HasSubstr("packed integers")));
}

constexpr const char* kRunsAs3 = "runs as Moondream 3 and 3.1";

TEST_F(PublishedFiles, Moondream3RunsInBothNamings) {
  for (const char* config : {kMoondream3Config, R"({"model_type": "moondream3", "config": {}})"}) {
    folder_.write("config.json", config);
    for (const bool legacy : {false, true}) EXPECT_EQ(error_with(moondream3(legacy)), kRunsAs3);
  }
  const auto source = find_model(folder_.path().string());
  EXPECT_EQ(source->config, moondream3_config());
  EXPECT_THAT(describe_source(*source).value(), HasSubstr("18537.3 MB of BF16"));
  folder_.write("config.json", kMoondream3Config);
  EXPECT_EQ(find_model(folder_.path().string())->config.text.max_context, 4096);
  // The June weights do not become Moondream 3 by its configuration, nor the other way round.
  EXPECT_THAT(error_with(june_), HasSubstr("config.json: text.max_context is 4096; Moondream 2"));
  folder_.write("config.json", R"({"text": {"n_layers": 23}})");
  EXPECT_THAT(error_with(moondream3(false)),
              AllOf(HasSubstr("text.n_layers is 23; Moondream 3"), HasSubstr("has 24")));
}

TEST_F(PublishedFiles, Moondream3RunsWithExpertsIn8Bits) {
  folder_.write("config.json", kMoondream3Config);
  EXPECT_EQ(error_with(moondream3_fp8()), kRunsAs3);
  EXPECT_THAT(describe_source(find_model(folder_.path().string()).value()).value(),
              AllOf(HasSubstr("MB of F8_E4M3"), HasSubstr("MB of BF16")));
  const auto edited = [](const char* end, const std::function<bool(StoredTensor&)>& keep) {
    Tensors tensors = moondream3_fp8();
    std::erase_if(tensors, [&](StoredTensor& t) { return t.name.ends_with(end) && !keep(t); });
    return tensors;
  };
  const auto drop = [](StoredTensor&) { return false; };
  EXPECT_THAT(error_with(edited("h.9.moe_quant.down_scale", drop)),
              AllOf(HasSubstr("'model.text.blocks.9.mlp.fc2.weight' is F8_E4M3, and "
                              "'text_model.transformer.h.9.moe_quant.down_scale'"),
                    HasSubstr("is missing")));
  EXPECT_THAT(error_with(edited("h.9.moe_quant.up_scale",
                                [](StoredTensor& t) { return t.shape = {64}, true; })),
              HasSubstr("is F32 [64]; F32 [64, 2048] is expected"));
  EXPECT_THAT(error_with(edited("h.0.tau_wqwv",
                                [](StoredTensor& t) {
                                  return t.shape = {32, 6144}, true;
                                })),
              AllOf(HasSubstr("'text_model.transformer.h.0.tau_wqwv' is BF16 [32, 6144]"),
                    HasSubstr("BF16 or F32 [64, 6144] is expected")));
  EXPECT_THAT(
      error_with(edited("h.3.tau_wqwv", drop)),
      HasSubstr("'model.text.blocks.3.attn.tau.wq' (or 'text_model.transformer.h.3.tau_wq') "
                "is missing"));
  // Other matrices are not read in 8 bits.
  EXPECT_THAT(
      error_with(edited("h.3.mixer.Wqkv.weight",
                        [](StoredTensor& t) { return t.dtype = TensorDType::kF8E4M3, true; })),
      HasSubstr("has dtype F8_E4M3"));
}

TEST_F(PublishedFiles, AnythingElseIsUnknown) {
  EXPECT_THAT(
      error_with(Tensors{{"model.embed_tokens.weight", TensorDType::kBF16, {128256, 2048}},
                         {"lm_head.weight", TensorDType::kBF16, {128256, 2048}}}),
      AllOf(HasSubstr(file("model.safetensors")),
            HasSubstr("not a model that gapless knows (2 tensors, none of them 'text.wte')"),
            HasSubstr(kWhereJuneIs)));
  EXPECT_THAT(error_after([](Tensors& tensors) {
                for (StoredTensor& tensor : tensors) {
                  if (tensor.name == "model.text.wte") tensor.shape = {50304, 2048};
                }
              }),
              HasSubstr("(592 tensors, 'text.wte' [50304, 2048] BF16)"));
  remove("config.json");
  EXPECT_THAT(error(), HasSubstr("BF16, no config.json beside them)"));
}

TEST_F(PublishedFiles, ConfigMissingOrOfAnotherModel) {
  remove("config.json");
  EXPECT_THAT(error(),
              AllOf(HasSubstr("not found"), HasSubstr(file("config.json") + "is not there"),
                    HasSubstr("the config.json of Moondream 2 of June 2025"),
                    HasSubstr("vikhyatk/moondream2, revision 2025-06-21")));
  folder_.write("config.json", R"({"config": {"text": {"n_layers": 23}}})");
  EXPECT_THAT(error(), AllOf(HasSubstr(file("config.json") + "text.n_layers is 23;"),
                             HasSubstr("Moondream 2 of June 2025"), HasSubstr("has 24")));
  folder_.write("config.json", R"({"text": {"rope_theta": 500000}})");
  EXPECT_THAT(error(), HasSubstr("text.rope_theta is 500000;"));
  folder_.write("config.json", R"({"text": {"moe": {"num_experts": 64, "experts_per_token": 8,
                                                    "expert_inner_dim": 1024}}})");
  EXPECT_THAT(error(), HasSubstr("text.moe.num_experts is 64; Moondream 2 of June 2025"));
  folder_.write("config.json", "<html>");
  EXPECT_THAT(error(), HasSubstr(file("config.json") + "not valid JSON"));
}

TEST_F(PublishedFiles, TokenizerMissingOrOfOtherWeights) {
  const char* expected = "expected is the tokenizer.json of moondream/starmie-v1";
  remove("tokenizer.json");
  EXPECT_THAT(error(),
              AllOf(HasSubstr(file("tokenizer.json") + "is not there"), HasSubstr(expected)));
  // The one that lies beside the June weights where they are published.
  EXPECT_THAT(
      error_with(older_tokenizer()),
      AllOf(
          HasSubstr(file("tokenizer.json") + "not the tokenizer of these weights"),
          HasSubstr("id 0 is '!', but Moondream 2 of June 2025 has '<|endoftext|>' there"),
          HasSubstr("it is the tokenizer of Moondream 2 of January 2025, Moondream 2 of March and "
                    "April 2025, Moondream 0.5B"),
          HasSubstr(expected)));
  TokenizerText other = june_tokenizer();
  other.vocab.erase("query");
  EXPECT_THAT(error_with(other), AllOf(HasSubstr("id 15381 is no token"), HasSubstr("'query'")));
  other = june_tokenizer();
  other.added[2].as_object()["content"] = "<|other|>";
  EXPECT_THAT(error_with(other),
              AllOf(HasSubstr("id 2 is '<|other|>'"), HasSubstr("'<|md_reserved_1|>'")));
  other = june_tokenizer();
  other.vocab.erase("normal");
  EXPECT_THAT(error_with(other), HasSubstr("it has no token 6382, which the prompts of"));
  other = june_tokenizer();
  other.token(51200, "one too many");
  EXPECT_THAT(error_with(other), AllOf(HasSubstr("it has 51201 tokens"), HasSubstr("only 51200")));
  EXPECT_EQ(error_with(june_tokenizer()), kRuns);
}

// What loading says of a value that is no number; reading 3.9 GB of them is not needed for it.
TEST_F(PublishedFiles, ErrorsOfReadingSayWhereTheWeightsAre) {
  const ModelSource source = find_model(folder_.path().string()).value();
  EXPECT_EQ(
      with_expected_weights(data_loss("model.safetensors: tensor 'x' is nan"), source).message(),
      "model.safetensors: tensor 'x' is nan; expected is model.safetensors of "
      "vikhyatk/moondream2, revision 2025-06-21");
  EXPECT_TRUE(with_expected_weights(ok_status(), source).ok());
}

TEST_F(PublishedFiles, TensorsMissingSurplusOrOfAnotherKind) {
  const char* expected =
      "expected is model.safetensors of vikhyatk/moondream2, revision 2025-06-21";
  const auto edit_of = [](const char* name, const std::function<void(StoredTensor&)>& edit) {
    return [=](Tensors& tensors) {
      for (StoredTensor& tensor : tensors) {
        if (tensor.name == name) edit(tensor);
      }
    };
  };
  const char* victim = "model.text.blocks.23.mlp.fc2.bias";
  EXPECT_THAT(error_after([&](Tensors& tensors) {
                std::erase_if(tensors, [&](const auto& tensor) { return tensor.name == victim; });
              }),
              AllOf(HasSubstr(file("model.safetensors")), HasSubstr(victim),
                    HasSubstr("is missing"), HasSubstr(expected)));
  EXPECT_THAT(error_after([&](Tensors& tensors) {
                tensors.push_back({"model.text.blocks.24.ln.bias", TensorDType::kBF16, {2048}});
                tensors.push_back({"model.text.blocks.24.ln.weight", TensorDType::kBF16, {2048}});
              }),
              AllOf(HasSubstr(file("model.safetensors") +
                              "tensor 'model.text.blocks.24.ln.bias' is not one of this model's (2 "
                              "such)"),
                    HasSubstr(expected)));
  EXPECT_THAT(error_after(edit_of(victim, [](auto& tensor) { tensor.dtype = TensorDType::kI16; })),
              AllOf(HasSubstr(victim), HasSubstr("dtype I16"), HasSubstr(expected)));
  EXPECT_THAT(
      error_after(edit_of(victim, [](auto& tensor) { tensor.dtype = TensorDType::kF16; })),
      AllOf(HasSubstr("its tensors are F16 and BF16, where Moondream 2 of June 2025 has one dtype"),
            HasSubstr(expected)));
  EXPECT_THAT(
      error_after(edit_of(victim, [](auto& tensor) { tensor.shape = {2047}; })),
      AllOf(HasSubstr(victim), HasSubstr("[2047]"), HasSubstr("[2048]"), HasSubstr(expected)));
}

TEST(PublishedFilesPage, TheTableIsInThePage) {
  const auto page = read_file(GAPLESS_SOURCE_DIR "/docs/published_weights.md", 1u << 20).value();
  for (const CheckpointProfile& row : checkpoint_profiles()) {
    const std::string line =
        fmt::format("\n| {} | {} | {} | {} |\n", row.title, row.weights_from, row.tokenizer_from,
                    row.runs ? "runs" : "recognised, refused");
    const auto squeezed = [](std::string text) {
      for (std::size_t at; (at = text.find("|  |")) != text.npos;) text.erase(at + 1, 1);
      return text;
    };
    EXPECT_THAT(squeezed(page), HasSubstr(squeezed(line)));
  }
}

TEST(ShippedFiles, AreAModelMadeForGaplessAndTakeTheirOwnTokenizerOnly) {
  const auto shipped = find_model("");
  ASSERT_TRUE(shipped.ok()) << shipped.status().to_string();
  EXPECT_EQ(shipped->profile, nullptr);
  EXPECT_THAT(describe_source(*shipped).value(),
              AllOf(HasSubstr("a model made for gapless"), HasSubstr("768 tokens")));
  const TemporaryFolder folder;
  for (const char* name : {"model.safetensors", "config.json"}) {
    std::filesystem::copy(shipped_model_folder().value() / name, folder.path() / name);
  }
  const auto error_with = [&](const std::function<void(boost::json::object&)>& edit) {
    const auto text = read_file(shipped->tokenizer, 1u << 20).value();
    boost::json::value json = boost::json::parse(text);
    edit(json.as_object());
    folder.write("tokenizer.json", boost::json::serialize(json));
    const auto source = find_model(folder.path().string());
    if (!source.ok()) return source.status().to_string();
    const auto tokenizer = load_tokenizer(*source);
    return tokenizer.ok() ? std::string("no error") : tokenizer.status().to_string();
  };
  EXPECT_EQ(error_with([](auto&) {}), "no error");
  EXPECT_THAT(
      error_with([](auto& json) {
        json["added_tokens"].as_array()[5].as_object()["content"] = "<|x|>";
        auto& vocab = json["model"].as_object()["vocab"].as_object();
        vocab.erase("<|coord|>");
        vocab["<|x|>"] = 5;
      }),
      AllOf(HasSubstr("tokenizer.json: not the tokenizer of these weights: id 5 is '<|x|>', but a "
                      "model made for gapless has '<|coord|>' there"),
            HasSubstr("the tokenizer.json that config.json beside it describes")));
  EXPECT_THAT(error_with([](auto& json) {
                auto& vocab = json["model"].as_object()["vocab"].as_object();
                std::swap(vocab.at("Ġquery"), vocab.at("Ġpoint"));
              }),
              HasSubstr("id 567 is ' point'"));
  EXPECT_THAT(
      error_with([](auto& json) { json["model"].as_object()["vocab"].as_object()["more"] = 768; }),
      AllOf(HasSubstr("it has 769 tokens"), HasSubstr("has 768")));
}

}  // namespace
}  // namespace gapless
