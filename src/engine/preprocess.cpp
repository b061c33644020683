#include "engine/preprocess.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

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

DecodeOptions decode_options(const SkillRequest& request) {
  DecodeOptions options;
  options.exif =
      request.apply_exif_orientation ? ExifOrientation::kApply : ExifOrientation::kIgnore;
  return options;
}

// What the images say about themselves. All are decoded at once, so the bound of one holds for their
// sum too. Before any is decoded.
StatusOr<std::vector<ImageInfo>> read_headers(const SkillRequest& request) {
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

// Memory that the images take until their crops are made: one is decoded, then resized, after the
// other, and the rasters of all are held.
std::int64_t decode_bytes_of(const std::vector<ImageInfo>& infos, const DecodeOptions& options,
                             const CropGeometry& geometry) {
  std::int64_t rasters_bytes = 0;
  std::int64_t most_beside_bytes = 0;
  for (const ImageInfo& info : infos) {
    const DecodeMemory memory = decode_memory(info, options);
    rasters_bytes += memory.image_bytes;
    most_beside_bytes = std::max(most_beside_bytes, memory.peak_bytes - memory.image_bytes);
    int width = info.width, height = info.height;
    if (options.exif == ExifOrientation::kApply && info.orientation >= 5) std::swap(width, height);
    // What has no tiling is refused once it is decoded.
    const StatusOr<Tiling> tiling = select_tiling(width, height, geometry);
    if (!tiling.ok()) continue;
    most_beside_bytes =
        std::max(most_beside_bytes, crop_memory_bytes(width, height, *tiling, geometry));
  }
  return rasters_bytes + most_beside_bytes;
}

StatusOr<std::vector<Image>> decode_images(const SkillRequest& request, const StopCheck& stop) {
  DecodeOptions options = decode_options(request);
  options.stop = stop;
  std::vector<Image> images;
  for (const auto& encoded : request.images) {
    StatusOr<Image> image = decode_image(std::as_bytes(std::span(*encoded)), options);
    if (!image.ok()) return at_image(images.size(), request.images.size(), image.status());
    images.push_back(std::move(image).value());
  }
  return images;
}

ContentHash hash_of_image(const std::string& encoded, bool apply_exif_orientation) {
  ContentHash hash = hash_image_bytes(std::as_bytes(std::span(encoded))).bytes;
  // Orientation changes the pixels, so it is part of the key.
  if (!apply_exif_orientation) hash.back() ^= 1;
  return hash;
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
  return hash_image_bytes(std::as_bytes(std::span(both))).bytes;
}

}  // namespace

StatusOr<PreparedPrompt> Preprocessor::prepare(const SkillRequest& request) const {
  GAPLESS_ASSIGN_OR_RETURN(Begun begun, begin(request));
  if (begun.decode_bytes > 0) GAPLESS_RETURN_IF_ERROR(finish(request, begun.prompt, {}));
  return std::move(begun.prompt);
}

StatusOr<Preprocessor::Begun> Preprocessor::begin(const SkillRequest& request) const {
  const StepModelInfo& info = model_.model->info();
  GAPLESS_ASSIGN_OR_RETURN(
      SkillPrompt skill_prompt,
      build_skill_prompt(request, model_.prompts, {info.max_context, info.image_tokens}));
  Begun begun;
  PreparedPrompt& prompt = begun.prompt;
  prompt.inputs = std::move(skill_prompt.inputs);
  prompt.prefix_len = skill_prompt.prefix_len;
  prompt.row = skill_prompt.row;
  prompt.host_constraint = std::move(skill_prompt.host_constraint);
  if (request.images.empty()) return begun;

  GAPLESS_ASSIGN_OR_RETURN(const std::vector<ImageInfo> headers, read_headers(request));
  for (const auto& encoded : request.images) {
    PreparedImage image;
    image.hash = hash_of_image(*encoded, request.apply_exif_orientation);
    image.prefix_hash = prompt.images.empty()
                            ? image.hash
                            : hash_of_both(prompt.images.back().prefix_hash, image.hash);
    prompt.images.push_back(std::move(image));
  }
  if (!find_crops(prompt.images)) {
    begun.decode_bytes =
        decode_bytes_of(headers, decode_options(request), model_.crop_geometry());
  }
  return begun;
}

Status Preprocessor::finish(const SkillRequest& request, PreparedPrompt& prompt,
                            const std::stop_token& stop) const {
  // Another request about the same picture may have come first.
  if (find_crops(prompt.images)) return ok_status();
  return make_crops(request, prompt.images, stop);
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

Status Preprocessor::make_crops(const SkillRequest& request,
                                std::vector<PreparedImage>& prepared,
                                const std::stop_token& stop) const {
  const StopCheck is_stop_requested = [&stop] { return stop.stop_requested(); };
  GAPLESS_ASSIGN_OR_RETURN(const std::vector<Image> images,
                           decode_images(request, is_stop_requested));
  const CropGeometry geometry = model_.crop_geometry();
  std::vector<Tiling> tilings;
  int num_all_crops = 0;
  for (const Image& image : images) {
    const StatusOr<Tiling> tiling = select_tiling(image.width, image.height, geometry);
    if (!tiling.ok()) return at_image(tilings.size(), images.size(), tiling.status());
    tilings.push_back(*tiling);
    num_all_crops += num_crops(*tiling);
  }
  if (num_all_crops > crops_->capacity()) {
    return invalid_argument(
        "the {} images are cut into {} crops, more than the {} there is room for", images.size(),
        num_all_crops, crops_->capacity());
  }
  // For all images at once: workers that hold some and wait for more would hold each other up.
  const std::shared_ptr<CropPool::Lease> lease = crops_->acquire(num_all_crops, stop);
  if (!lease && stop.stop_requested()) return stopped_status();
  if (!lease) return make_error(StatusCode::kUnavailable, "the engine is shutting down");
  int first = 0;
  for (std::size_t i = 0; i < images.size(); ++i) {
    const int count = num_crops(tilings[i]);
    std::vector<std::uint8_t*> crops_pinned;
    for (int c = 0; c < count; ++c) crops_pinned.push_back(lease->crop_pinned(first + c));
    if (!make_crops_into(images[i], tilings[i], geometry, crops_pinned, resize_pool_,
                         is_stop_requested)) {
      return stopped_status();
    }
    crops_->remember(prepared[i].hash, *lease, first, count, tilings[i]);
    hand_over(lease, first, count, tilings[i], prepared[i]);
    first += count;
  }
  return ok_status();
}

}  // namespace gapless
