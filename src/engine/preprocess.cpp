#include "engine/preprocess.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "image/crop_tiles.h"
#include "image/decode_image.h"
#include "image/image_hash.h"
#include "skill/skill_prompt.h"

namespace gapless {
namespace {

// "image 2 of 3: ..."; an image that comes alone is not numbered.
Status at_image(std::size_t index, std::size_t num_images, const Status& status) {
  if (num_images == 1) return status;
  return status.with_context(fmt::format("image {} of {}", index + 1, num_images));
}

ExifOrientation exif_mode(const SkillRequest& request) {
  return request.apply_exif_orientation ? ExifOrientation::kApply : ExifOrientation::kIgnore;
}

DecodeOptions decode_options(const SkillRequest& request, const DecodedSize& size,
                             const Tiling& tiling, const CropGeometry& geometry,
                             DecodeHelpers& helpers) {
  DecodeOptions options;
  options.exif = exif_mode(request);
  options.helpers = &helpers;
  // A mirror needs whole pictures.
  options.keeps_all_rows =
      request.mirrored || !crops_read_rows_once(size.width, size.height, tiling, geometry);
  return options;
}

// From the headers, before any image is decoded. The bound of one image holds for the sum of a
// request's too.
StatusOr<std::vector<ImageInfo>> probe_images(const SkillRequest& request) {
  const std::size_t num_images = request.images.size();
  std::vector<ImageInfo> infos;
  std::int64_t num_pixels = 0;
  for (std::size_t i = 0; i < num_images; ++i) {
    const auto info = probe_image(std::as_bytes(std::span(*request.images[i])));
    if (!info.ok()) return at_image(i, num_images, info.status());
    const Status bounds = check_image_bounds(*info, {});
    if (!bounds.ok()) return at_image(i, num_images, bounds);
    num_pixels += std::int64_t{info->width} * info->height;
    infos.push_back(*info);
  }
  if (num_pixels > kMaxImagePixels) {
    return invalid_argument("the {} images have {} pixels together, more than the {} allowed",
                            num_images, num_pixels, kMaxImagePixels);
  }
  return infos;
}

// Memory that the images take until their crops are made. One is decoded, and cut beside that, after
// the other.
std::int64_t decode_bytes_of(const std::vector<ImageInfo>& infos, const SkillRequest& request,
                             const CropGeometry& geometry, DecodeHelpers& helpers) {
  std::int64_t most_bytes = 0;
  for (const ImageInfo& info : infos) {
    const DecodedSize size = decoded_size(info, exif_mode(request));
    const auto tiling = select_tiling(size.width, size.height, geometry);
    if (!tiling.ok()) continue;  // refused before it is decoded
    const DecodeOptions options = decode_options(request, size, *tiling, geometry, helpers);
    const std::int64_t bytes = decode_memory(info, options).peak_bytes +
                               crop_memory_bytes(size.width, size.height, *tiling, geometry);
    most_bytes = std::max(most_bytes, bytes);
  }
  return most_bytes;
}

StatusOr<std::vector<Tiling>> select_tilings(const SkillRequest& request,
                                             const CropGeometry& geometry) {
  GAPLESS_ASSIGN_OR_RETURN(const std::vector<ImageInfo> infos, probe_images(request));
  std::vector<Tiling> tilings;
  for (const ImageInfo& info : infos) {
    const DecodedSize size = decoded_size(info, exif_mode(request));
    const StatusOr<Tiling> tiling = select_tiling(size.width, size.height, geometry);
    if (!tiling.ok()) return at_image(tilings.size(), infos.size(), tiling.status());
    tilings.push_back(*tiling);
  }
  return tilings;
}

// Adds the time from its making to its end.
class StageTimer {
 public:
  StageTimer(StageTimes& stages, RequestStage stage)
      : stages_(stages), stage_(stage), begin_ns_(host_now_ns()) {}
  ~StageTimer() { stages_[stage_] += host_now_ns() - begin_ns_; }
  StageTimer(const StageTimer&) = delete;
  StageTimer& operator=(const StageTimer&) = delete;

 private:
  StageTimes& stages_;
  const RequestStage stage_;
  const std::int64_t begin_ns_;
};

ContentHash hash_of_image(const std::string& encoded, const SkillRequest& request) {
  ContentHash hash = hash_image_bytes(std::as_bytes(std::span(encoded)));
  // What changes the pixels is part of the key.
  if (!request.apply_exif_orientation) hash.back() ^= 1;
  if (request.mirrored) hash.back() ^= 2;
  return hash;
}

void exchange_left_and_right(Image& image) {
  const auto row_bytes = static_cast<std::ptrdiff_t>(image.width) * 3;
  for (int y = 0; y < image.height; ++y) {
    const auto row = image.rgb.begin() + y * row_bytes;
    for (std::ptrdiff_t left = 0, right = row_bytes - 3; left < right; left += 3, right -= 3) {
      std::swap_ranges(row + left, row + left + 3, row + right);
    }
  }
}

// The lease's crops [first, first + count) become the image's.
void hand_over(std::shared_ptr<CropPool::Lease> lease, int first, int count, const Tiling& tiling,
               PreparedImage& image) {
  image.tile_rows = tiling.rows;
  image.tile_cols = tiling.cols;
  for (int i = 0; i < count; ++i) image.crops_pinned.push_back(lease->crop_pinned(first + i));
  image.crops_owner = std::move(lease);
}

ContentHash hash_of_both(const ContentHash& first, const ContentHash& second) {
  std::array<std::uint8_t, 2 * std::tuple_size_v<ContentHash>> both;
  std::copy(second.begin(), second.end(), std::copy(first.begin(), first.end(), both.begin()));
  return hash_image_bytes(std::as_bytes(std::span(both)));
}

}  // namespace

StatusOr<PreparedPrompt> Preprocessor::prepare(const SkillRequest& request) const {
  GAPLESS_ASSIGN_OR_RETURN(std::vector<PreparedPrompt> prompts, prepare_choices(request, 1));
  return std::move(prompts.front());
}

StatusOr<std::vector<PreparedPrompt>> Preprocessor::prepare_choices(const SkillRequest& request,
                                                                    int num_choices) const {
  StageTimes stages;
  GAPLESS_ASSIGN_OR_RETURN(Begun begun, begin(request, num_choices, stages));
  if (begun.decode_bytes > 0) {
    GAPLESS_RETURN_IF_ERROR(finish(request, begun.prompts, {}, stages));
  }
  return std::move(begun.prompts);
}

StatusOr<Preprocessor::Begun> Preprocessor::begin(const SkillRequest& request, int num_choices,
                                                  StageTimes& stages,
                                                  const Constrain& constrain) const {
  Begun begun;
  {
    const StageTimer timer(stages, RequestStage::kTokenise);
    for (int i = 0; i < num_choices; ++i) {
      const bool is_of_one_name = !request.objects.empty();
      GAPLESS_ASSIGN_OR_RETURN(
          PreparedPrompt prompt,
          is_of_one_name
              ? prepare_text(request_of_choice(request, static_cast<std::size_t>(i)), constrain)
              : prepare_text(request, constrain));
      begun.prompts.push_back(std::move(prompt));
    }
  }
  if (request.images.empty()) return begun;
  std::vector<PreparedImage> images;
  const StatusOr<std::int64_t> bytes = begin_images(request, images, stages);
  if (!bytes.ok()) return bytes.status().with_field("image_url");
  begun.decode_bytes = *bytes;
  for (PreparedPrompt& prompt : begun.prompts) prompt.images = images;
  return begun;
}

Status Preprocessor::finish(const SkillRequest& request, std::span<PreparedPrompt> prompts,
                            const std::stop_token& stop, StageTimes& stages) const {
  std::vector<PreparedImage> images = prompts.front().images;
  // Another request about the same picture may have come first.
  if (!find_crops(images)) {
    const Status made = make_crops(request, images, stop, stages);
    if (!made.ok()) return made.with_field("image_url");
  }
  for (PreparedPrompt& prompt : prompts) prompt.images = images;
  return ok_status();
}

StatusOr<PreparedPrompt> Preprocessor::prepare_text(const SkillRequest& request,
                                                    const Constrain& constrain) const {
  const StepModelInfo& info = model_.model->info();
  GAPLESS_ASSIGN_OR_RETURN(SkillPrompt skill_prompt,
                           build_skill_prompt(request, model_.prompts,
                                              {info.max_context, info.image_tokens, info.vocab}));
  PreparedPrompt prompt;
  prompt.inputs = std::move(skill_prompt.inputs);
  prompt.prefix_len = skill_prompt.prefix_len;
  prompt.row = skill_prompt.row;
  prompt.num_region_tokens = skill_prompt.num_region_tokens;
  prompt.token_notes = std::move(skill_prompt.token_notes);
  prompt.host_constraint = std::move(skill_prompt.host_constraint);
  if (constrain) GAPLESS_RETURN_IF_ERROR(constrain(prompt));
  return prompt;
}

StatusOr<std::int64_t> Preprocessor::begin_images(const SkillRequest& request,
                                                  std::vector<PreparedImage>& images,
                                                  StageTimes& stages) const {
  GAPLESS_ASSIGN_OR_RETURN(const std::vector<ImageInfo> infos, probe_images(request));
  {
    const StageTimer timer(stages, RequestStage::kHash);
    for (const auto& encoded : request.images) {
      PreparedImage image;
      image.hash = hash_of_image(*encoded, request);
      image.prefix_hash =
          images.empty() ? image.hash : hash_of_both(images.back().prefix_hash, image.hash);
      images.push_back(std::move(image));
    }
  }
  if (find_crops(images)) return std::int64_t{0};
  DecodeHelpers helpers = decode_helpers();
  return decode_bytes_of(infos, request, model_.crop_geometry(), helpers);
}

bool Preprocessor::find_crops(std::vector<PreparedImage>& images) const {
  std::vector<CropPool::Picture> found;
  for (const PreparedImage& image : images) {
    std::optional<CropPool::Picture> picture = crops_->find(image.hash);
    if (!picture) return false;
    found.push_back(std::move(*picture));
  }
  for (std::size_t i = 0; i < images.size(); ++i) {
    hand_over(found[i].crops, 0, found[i].crops->size(), found[i].tiling, images[i]);
  }
  return true;
}

Status Preprocessor::make_crops(const SkillRequest& request, std::vector<PreparedImage>& prepared,
                                const std::stop_token& stop, StageTimes& stages) const {
  const std::size_t num_images = prepared.size();
  GAPLESS_ASSIGN_OR_RETURN(const std::vector<Tiling> tilings,
                           select_tilings(request, model_.crop_geometry()));
  int num_all_crops = 0;
  for (const Tiling& tiling : tilings) num_all_crops += num_crops(tiling);
  if (num_all_crops > crops_->capacity()) {
    return invalid_argument(
        "the {} images are cut into {} crops, more than the {} there is room for", num_images,
        num_all_crops, crops_->capacity());
  }
  std::shared_ptr<CropPool::Lease> lease;
  {
    // For all images at once: workers that hold some and wait for more would hold each other up.
    const StageTimer timer(stages, RequestStage::kCropWait);
    lease = crops_->acquire(num_all_crops, stop);
  }
  if (!lease && stop.stop_requested()) return stopped_status();
  if (!lease) return make_error(StatusCode::kUnavailable, "the engine is shutting down");
  int first = 0;
  for (std::size_t i = 0; i < num_images; ++i) {
    const int count = num_crops(tilings[i]);
    std::vector<std::uint8_t*> crops_pinned;
    for (int c = 0; c < count; ++c) crops_pinned.push_back(lease->crop_pinned(first + c));
    const Status cut = cut_image(
        *request.images[i], request, tilings[i], crops_pinned,
        [&stop] { return stop.stop_requested(); }, stages);
    if (!cut.ok()) return at_image(i, num_images, cut);
    crops_->remember(prepared[i].hash, *lease, first, count, tilings[i]);
    hand_over(lease, first, count, tilings[i], prepared[i]);
    first += count;
  }
  return ok_status();
}

DecodeHelpers Preprocessor::decode_helpers() const {
  return DecodeHelpers(resize_pool_ != nullptr ? resize_pool_->num_threads() : 0);
}

Status Preprocessor::cut_image(const std::string& encoded, const SkillRequest& request,
                               const Tiling& tiling, std::span<std::uint8_t* const> crops,
                               const StopCheck& stop, StageTimes& stages) const {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(encoded));
  GAPLESS_ASSIGN_OR_RETURN(const ImageInfo info, probe_image(bytes));
  const DecodedSize size = decoded_size(info, exif_mode(request));
  DecodeHelpers helpers = decode_helpers();
  DecodeOptions options = decode_options(request, size, tiling, model_.crop_geometry(), helpers);
  options.stop = stop;
  Image image;
  PictureRows rows(rows_kept(info, options));
  Status decoded;
  std::int64_t decoded_ns = 0;
  const std::int64_t begin_ns = host_now_ns();
  const auto decode = [&] {
    decoded = decode_image_by_rows(
        bytes, options,
        [&](const std::uint8_t* rgb, int num_rows) {
          if (!request.mirrored) rows.publish(rgb, num_rows);
        },
        image);
    if (!decoded.ok()) {
      rows.give_up();
    } else if (request.mirrored) {
      exchange_left_and_right(image);
      rows.publish(image.rgb.data(), image.height);
    }
    decoded_ns = host_now_ns();
  };
  const bool is_whole =
      make_crops_into(rows, size.width, size.height, tiling, model_.crop_geometry(), crops,
                      resize_pool_, decode, stop, &helpers);
  stages[RequestStage::kDecode] += decoded_ns - begin_ns;
  stages[RequestStage::kCut] += host_now_ns() - decoded_ns;
  if (decoded.ok() && !is_whole) return stopped_status();
  return decoded;
}

}  // namespace gapless
