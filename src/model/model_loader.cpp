#include "model/model_loader.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "base/limits.h"
#include "base/log.h"
#include "constraint/path_tokens.h"
#include "kernels/dry_kernels.h"
#include "model/decode_path.h"
#include "model/int8_weights.h"
#include "model/llama/llama_prompts.h"
#include "model/llama/tensors.h"
#include "model/load_source.h"
#include "model/prepared_weights.h"
#include "model/rope_table.h"
#include "model/step_limits.h"
#include "model/weight_loading.h"

namespace gapless {
namespace {

StatusOr<std::unique_ptr<Kernels>> make_kernels_for(Device& device, const ModelOptions& options) {
  if (options.make_kernels) return options.make_kernels(device);
  return options.dry_run ? make_dry_kernels(device, options.compute)
                         : make_kernels(device, options.compute);
}

// Fills allocated weights from the source, some tensors at a time.
class WeightFiller {
 public:
  // A dry run reads nothing.
  static StatusOr<WeightFiller> create(Device& device, Kernels& kernels, Stream& stream,
                                       const ModelSource& source, const ModelOptions& options) {
    WeightFiller filler(device, kernels, stream, source, options);
    if (!source.random_seed && !options.dry_run) {
      GAPLESS_ASSIGN_OR_RETURN(filler.files_, open_weights(source));
    }
    return filler;
  }

  // `layout`: tensors of the buffer.
  Status fill(const TensorLayout& layout, const Buffer& buffer) {
    if (options_.dry_run) return ok_status();
    void* const to = buffer.data();
    if (layout.shared_offset > 0) GAPLESS_RETURN_IF_ERROR(zero_padding(layout, to));
    if (source_.random_seed) {
      GAPLESS_RETURN_IF_ERROR(fill_random_weights(kernels_, stream_, weight_specs(source_),
                                                  *source_.random_seed, layout, to));
    } else {
      if (!upload_) {
        GAPLESS_ASSIGN_OR_RETURN(
            upload_, StagedUpload::create(device_, stream_,
                                          std::min(kWeightPieceBytes, layout.total_bytes)));
      }
      GAPLESS_RETURN_IF_ERROR(with_expected_weights(
          load_weights(*upload_, *files_, layout, kernels_.activation_dtype(), to), source_));
    }
    if (prepared_format(options_.weights) == PreparedFormat::kNative) return ok_status();
    return round_weights_to_fp8(kernels_, stream_, layout, to);
  }

 private:
  // Other numbers may lie where a tensor's padding is.
  Status zero_padding(const TensorLayout& layout, void* to) {
    for (const TensorPlacement& tensor : layout.tensors) {
      const std::int64_t count = tensor.device_rows * tensor.row_stride;
      if (count == tensor.num_parameters()) continue;
      GAPLESS_RETURN_IF_ERROR(stream_.fill_bytes(
          static_cast<std::byte*>(to) + tensor.offset_bytes, 0,
          static_cast<std::size_t>(count) * dtype_bytes(kernels_.activation_dtype())));
    }
    return ok_status();
  }

  WeightFiller(Device& device, Kernels& kernels, Stream& stream, const ModelSource& source,
               const ModelOptions& options)
      : device_(device), kernels_(kernels), stream_(stream), source_(source), options_(options) {}

  Device& device_;
  Kernels& kernels_;
  Stream& stream_;
  const ModelSource& source_;
  const ModelOptions& options_;
  std::optional<WeightSource> files_;
  std::optional<StagedUpload> upload_;
};

// Products in 8 bits read copies of their own, so there is nothing to share.
StatusOr<bool> shares_rows(Device&, const Kernels& kernels, const ModelConfig& config,
                           const ModelOptions& options) {
  // Nobody reads the rows again, so there is nothing to restore.
  if (options.weights == WeightFormat::kInt8) return may_share_rows(config);
  if (!options.shares_rows || !may_share_rows(config) || options.weights == WeightFormat::kW8A8) {
    return false;
  }
  const TextShape shape = text_shape(config);
  const TextWeights text = describe_text_weights(config);
  return check_one_launch_decode(shape, text).ok() &&
         prepared_weights_bytes(kernels, shape, text, prepared_format(options.weights)) > 0;
}

// Where they are told to, and where the rows and their copy would take more than half of a device's memory: these models
// are large, and a copy must not be what makes one not fit.
StatusOr<bool> shares_rows(Device& device, const Kernels& kernels, const LlamaConfig& config,
                           const ModelOptions& options) {
  if (options.weights == WeightFormat::kInt8) return false;
  const TextShape shape = text_shape(config);
  const TextWeights text = describe_text_weights(config);
  if (!check_one_launch_decode(shape, text).ok()) return false;
  const std::size_t copy =
      prepared_weights_bytes(kernels, shape, text, prepared_format(options.weights));
  if (copy == 0 || options.shares_rows) return copy > 0;
  const std::size_t rows = lay_out_tensors(weight_specs(config), DType::kBF16).total_bytes;
  GAPLESS_ASSIGN_OR_RETURN(const DeviceInfo info, device.info());
  return rows + copy > info.total_memory_bytes / 2;
}

// Whether blocks are prepared too. Experts' rows cannot share memory, and their copy takes as much as they do: it is made where
// both take no more than half of a device's memory, and not where memory is short or no launch would read it: with a cache of 8 bits,
// or a backend without such a launch.
template <typename Config>
StatusOr<bool> prepares_blocks(Device& device, const Kernels& kernels, const Config& config,
                               const ModelOptions& options) {
  if constexpr (std::is_same_v<Config, ModelConfig>) {
    const TextShape shape = text_shape(config);
    if (shape.experts.num_experts == 0) return true;
    const TextWeights text = describe_text_weights(config);
    if (options.shares_rows || !check_one_launch_decode(shape, text, options.kv_cache).ok() ||
        kernels.decoder_blocks_scratch_bytes(1, shape.dim, shape.ff_dim, shape.heads,
                                             shape.max_context, shape.experts) == 0) {
      return false;
    }
    const std::size_t copy =
        prepared_weights_bytes(kernels, shape, text, prepared_format(options.weights));
    if (copy == 0) return false;
    const TensorLayout layout = lay_out_weights(config, DType::kBF16);
    std::size_t rows = layout.total_bytes;
    if (options.weights == WeightFormat::kW8A8) {
      rows += lay_out_fp8(layout, kernels.fp8_element_bytes(), kernels.multiplies_fp8_experts())
                  .total_bytes;
    }
    GAPLESS_ASSIGN_OR_RETURN(const DeviceInfo info, device.info());
    return rows + copy <= info.total_memory_bytes / 2;
  }
  return true;
}

StatusOr<ModelWeights> allocate_for(Device& device, Stream& stream, const ModelConfig& config,
                                    DType dtype, bool shared, WeightFormat format) {
  if (!shared) return allocate_weights(device, stream, config, dtype);
  if (format != WeightFormat::kInt8) {
    return allocate_weights(device, stream, config, dtype, [&](const std::string& name) {
      return shared_group_of(config, prepared_format(format), name);
    });
  }
  return allocate_weights(device, stream, config, dtype, [&config](const std::string& name) {
    return int8_group_of(config, name);
  });
}

StatusOr<DecoderWeights> allocate_for(Device& device, Stream& stream, const LlamaConfig& config,
                                      DType dtype, bool shared, WeightFormat) {
  return allocate_weights(device, stream, config, dtype,
                          shared ? GroupOfTensor(llama_group_of) : nullptr);
}

// The weights of a family's configuration, in their format, ready for prefill and decode.
template <typename Weights, typename Config>
StatusOr<Weights> make_weights(Device& device, Kernels& kernels, const ModelSource& source,
                               const Config& config, const ModelOptions& options) {
  const WeightFormat format = options.weights;
  if (format == WeightFormat::kInt8) GAPLESS_RETURN_IF_ERROR(check_int8_products(kernels));
  GAPLESS_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device.create_stream("weights"));
  GAPLESS_ASSIGN_OR_RETURN(WeightFiller filler,
                           WeightFiller::create(device, kernels, *stream, source, options));
  GAPLESS_ASSIGN_OR_RETURN(const bool shared, shares_rows(device, kernels, config, options));
  GAPLESS_ASSIGN_OR_RETURN(
      Weights weights,
      allocate_for(device, *stream, config, kernels.activation_dtype(), shared, format));
  const auto fill = [&](int group) {
    return filler.fill(tensors_of_group(weights.layout, group), weights.buffer);
  };
  GAPLESS_RETURN_IF_ERROR(fill(TensorPlacement::kResident));
  if (format == WeightFormat::kInt8) {
    if constexpr (std::is_same_v<Weights, ModelWeights>) {
      GAPLESS_RETURN_IF_ERROR(make_int8_products(device, kernels, *stream, weights,
                                                 int8_groups(weights),
                                                 shared ? FillGroup(fill) : nullptr));
    } else {
      GAPLESS_RETURN_IF_ERROR(make_int8_products(device, kernels, *stream, weights,
                                                 int8_groups(weights.text), nullptr));
    }
    GAPLESS_RETURN_IF_ERROR(stream->synchronize());
    return weights;
  }
  // Llama's products stay in T: its list has no matrix with Fp8Use::kMultiplied.
  if constexpr (std::is_same_v<Weights, ModelWeights>) {
    if (format == WeightFormat::kW8A8) {
      GAPLESS_RETURN_IF_ERROR(make_fp8_products(device, kernels, *stream, config, weights));
    }
  }
  SharedRows rows{.fill = fill, .fill_rows = [&](std::int64_t first, std::int64_t count) {
                    return filler.fill(rows_in_parts(weights.layout, first, count), weights.buffer);
                  }};
  if constexpr (std::is_same_v<Weights, ModelWeights>) {
    rows.others = other_prepared_matrices(prepared_format(format), weights);
  }
  GAPLESS_ASSIGN_OR_RETURN(const bool blocks, prepares_blocks(device, kernels, config, options));
  GAPLESS_RETURN_IF_ERROR(prepare_decode_weights(device, kernels, *stream, text_shape(config),
                                                 prepared_format(format), weights,
                                                 shared ? &rows : nullptr, blocks));
  if constexpr (std::is_same_v<Weights, ModelWeights>) {
    GAPLESS_RETURN_IF_ERROR(prepare_in_place(device, kernels, *stream, region_matrices(weights)));
  }
  GAPLESS_RETURN_IF_ERROR(stream->synchronize());
  return weights;
}

// What of `trained` positions a sequence may have.
StatusOr<int> choose_context(int trained, int usual, const ModelOptions& options) {
  if (!options.max_context) return std::min(trained, usual);
  if (*options.max_context >= 1 && *options.max_context <= trained) return *options.max_context;
  return invalid_argument("a context of {} positions: the model was trained for {}",
                          *options.max_context, trained);
}

StatusOr<StepLimits> choose_limits(LoadedModel& loaded, const ModelShape& shape,
                                   const ModelOptions& options) {
  GAPLESS_ASSIGN_OR_RETURN(
      StepLimits limits,
      choose_step_limits(*loaded.device, *loaded.kernels, shape, options.kv_cache,
                         {.max_rows = options.max_rows,
                          .sizing = options.sizing,
                          .kv_cache_bytes = options.kv_cache_bytes,
                          .sized_to_machine = options.kv_cache_sized_to_machine,
                          .reserve_bytes = options.reserve_bytes}));
  if (options.adjust_limits) options.adjust_limits(limits);
  return limits;
}

StatusOr<std::unique_ptr<LoadedModel>> load_moondream(std::unique_ptr<Device> device,
                                                      const ModelSource& source,
                                                      const ModelOptions& options) {
  GAPLESS_RETURN_IF_ERROR(check_model_shape(source.config).with_context(source.name));
  GAPLESS_ASSIGN_OR_RETURN(Tokenizer tokenizer, load_tokenizer(source));
  // User text must never become one of them, whether or not tokenizer.json marks them.
  tokenizer.mark_special(source.config.tokenizer.all_ids());

  ModelConfig config = source.config;
  for (const auto& [option, choice] : options.numerics) {
    GAPLESS_RETURN_IF_ERROR(set_numerics(option, choice, config.numerics));
  }
  const bool feeds_again = config.numerics.answer_feed == AnswerFeed::kTwice;
  config.tokenizer.num_answer_ids_fed_again = feeds_again ? 1 : 0;
  auto loaded = std::make_unique<LoadedModel>(std::move(device), source.name, std::move(tokenizer),
                                              config.tokenizer);
  loaded->family = "moondream";
  loaded->config = std::move(config);
  // A published config.json may say less than the model takes.
  const int said = source.config.text.max_context;
  const int trained =
      source.profile != nullptr ? std::max(said, source.profile->config.text.max_context) : said;
  GAPLESS_ASSIGN_OR_RETURN(loaded->config.text.max_context,
                           choose_context(trained, std::min(said, kDefaultTextContext), options));
  GAPLESS_RETURN_IF_ERROR(loaded->crop_geometry().validate().with_context(source.name));
  GAPLESS_ASSIGN_OR_RETURN(loaded->kernels, make_kernels_for(*loaded->device, options));
  GAPLESS_ASSIGN_OR_RETURN(ModelWeights weights,
                           make_weights<ModelWeights>(*loaded->device, *loaded->kernels, source,
                                                      loaded->config, options));
  GAPLESS_ASSIGN_OR_RETURN(const StepLimits limits,
                           choose_limits(*loaded, model_shape(loaded->config), options));
  GAPLESS_ASSIGN_OR_RETURN(
      loaded->model,
      VisionLanguageModel::create(*loaded->device, *loaded->kernels, loaded->config,
                                  std::move(weights), limits, options.kv_cache,
                                  path_token_classes(loaded->tokenizer.text_of_tokens())));
  return loaded;
}

StatusOr<std::unique_ptr<LoadedModel>> load_llama(std::unique_ptr<Device> device,
                                                  const ModelSource& source,
                                                  const ModelOptions& options) {
  LlamaConfig config = *source.llama;
  if (!options.numerics.empty()) {
    return invalid_argument("{}: has no option of numerics '{}': it is a text model", source.name,
                            options.numerics.front().first);
  }
  GAPLESS_ASSIGN_OR_RETURN(Tokenizer tokenizer, load_tokenizer(source));
  GAPLESS_ASSIGN_OR_RETURN(
      TokenizerConfig prompts,
      read_llama_prompts(source.random_seed ? "" : source.tokenizer.parent_path(), config,
                         tokenizer));
  const int trained = config.max_context;
  GAPLESS_ASSIGN_OR_RETURN(config.max_context,
                           choose_context(trained, kDefaultTextContext, options));
  if (config.max_context < trained && !options.max_context) {
    log_info("context {} of the {} that {} was trained for; --max-context takes up to that",
             config.max_context, trained, source.name);
  }
  auto loaded = std::make_unique<LoadedModel>(std::move(device), source.name, std::move(tokenizer),
                                              std::move(prompts));
  loaded->family = config.qk_norm ? "qwen3" : "llama";
  GAPLESS_ASSIGN_OR_RETURN(loaded->kernels, make_kernels_for(*loaded->device, options));
  GAPLESS_ASSIGN_OR_RETURN(
      DecoderWeights weights,
      make_weights<DecoderWeights>(*loaded->device, *loaded->kernels, source, config, options));
  const TextShape shape = text_shape(config);
  GAPLESS_ASSIGN_OR_RETURN(
      const StepLimits limits,
      choose_limits(*loaded, {.text = shape, .vision = {}, .region = {}}, options));
  GAPLESS_ASSIGN_OR_RETURN(
      loaded->model, TextModel::create(*loaded->device, *loaded->kernels, shape, std::move(weights),
                                       make_rope_table(shape.max_context, shape.rotary_dim,
                                                       config.rope_theta, config.rope_scaling),
                                       limits, options.kv_cache));
  return loaded;
}

}  // namespace

LoadedModel::LoadedModel(std::unique_ptr<Device> device_in, std::string name_in,
                         Tokenizer tokenizer_in, TokenizerConfig prompts_in)
    : device(std::move(device_in)),
      name(std::move(name_in)),
      tokenizer(std::move(tokenizer_in)),
      prompts(tokenizer, std::move(prompts_in)) {}

VisionLanguageModel* LoadedModel::vision_language_model() const {
  return dynamic_cast<VisionLanguageModel*>(model.get());
}

CropGeometry LoadedModel::crop_geometry() const {
  return {.crop_size = config.vision.crop_size,
          .patch_size = config.vision.enc_patch_size,
          .overlap_margin = config.vision.overlap_margin,
          .max_crops = config.vision.max_crops};
}

StatusOr<std::unique_ptr<LoadedModel>> load_model(std::unique_ptr<Device> device,
                                                  const std::string& name,
                                                  const ModelOptions& options) {
  GAPLESS_ASSIGN_OR_RETURN(const ModelSource source, find_model(name));
  return load_model(std::move(device), source, options);
}

StatusOr<std::unique_ptr<LoadedModel>> load_model(std::unique_ptr<Device> device,
                                                  const ModelSource& source,
                                                  const ModelOptions& options) {
  GAPLESS_ASSIGN_OR_RETURN(std::unique_ptr<LoadedModel> loaded,
                           source.llama ? load_llama(std::move(device), source, options)
                                        : load_moondream(std::move(device), source, options));
  const bool small = options.sizing == StepSizing::kSmall;
  GAPLESS_RETURN_IF_ERROR(loaded->model->hold_grammars(
      loaded->tokenizer.text_of_tokens(), loaded->prompts.config().eos_id.value,
      small ? kSmallDeviceGrammarBytes : kDeviceGrammarBytes));
  return loaded;
}

}  // namespace gapless
