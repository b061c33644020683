// gapless bench pictures: what the host does with a new picture before the device sees it, stage by
// stage, on as many cores as there are.
#include <boost/json/array.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/num_cores.h"
#include "base/thread_pool.h"
#include "bench_options.h"
#include "engine_options.h"
#include "image/crop_tiles.h"
#include "image/decode_image.h"
#include "image/image_hash.h"
#include "load/pictures.h"
#include "measure/step_statistics.h"

namespace gapless {
namespace {

struct PicturesOptions {
  std::vector<std::string> formats{"jpeg", "png"};
  std::vector<std::string> sizes{"800x600"};
  int num_pictures = 50;
  int cores = 0;  // 0: all
  double rest_ms = 15;
  std::string json, commit;
};

struct Stage {
  std::string name;
  std::vector<double> times_ns;
};

// One kind of picture. Each repeat takes another picture, after a rest in which the pool's threads
// fall asleep as between the requests of a lone client.
class PictureStages {
 public:
  PictureStages(const PicturesOptions& options, ThreadPool& pool)
      : options_(options), pool_(pool) {}

  Status run(const std::vector<std::string>& pictures) {
    for (const std::string& picture : pictures) GAPLESS_RETURN_IF_ERROR(run_one(picture));
    return ok_status();
  }
  const std::vector<Stage>& stages() const { return stages_; }

 private:
  Status run_one(const std::string& picture) {
    const std::span<const std::byte> bytes = std::as_bytes(std::span(picture));
    time("hash", [&] { (void)hash_image_bytes(bytes); });
    Image image;
    Status status;
    time("decode", [&] { status = decode_image_by_rows(bytes, {}, nullptr, image); });
    GAPLESS_RETURN_IF_ERROR(status);
    GAPLESS_ASSIGN_OR_RETURN(const Tiling tiling,
                             select_tiling(image.width, image.height, geometry_));
    const auto count = static_cast<std::size_t>(num_crops(tiling));
    pixels_.resize(count * geometry_.crop_bytes());
    std::vector<std::uint8_t*> crops;
    for (std::size_t i = 0; i < count; ++i) {
      crops.push_back(pixels_.data() + i * geometry_.crop_bytes());
    }
    time("cut, one core", [&] {
      PictureRows rows(image.rgb.data(), image.height);
      make_crops_into(rows, image.width, image.height, tiling, geometry_, crops);
    });
    time("cut, all cores", [&] {
      PictureRows rows(image.rgb.data(), image.height);
      make_crops_into(rows, image.width, image.height, tiling, geometry_, crops, &pool_);
    });
    time("decode, then cut", [&] {
      status = decode_image_by_rows(bytes, {}, nullptr, image);
      PictureRows rows(image.rgb.data(), image.height);
      make_crops_into(rows, image.width, image.height, tiling, geometry_, crops, &pool_);
    });
    std::int64_t decoded_ns = 0;
    time("cut while decoding", [&] {
      DecodeHelpers helpers(pool_.num_threads());
      const DecodeOptions options{
          .helpers = &helpers,
          .keeps_all_rows = !crops_read_rows_once(image.width, image.height, tiling, geometry_)};
      PictureRows rows(rows_kept(*probe_image(bytes), options));
      Image passing;
      const auto decode = [&] {
        status = decode_image_by_rows(
            bytes, options,
            [&rows](const std::uint8_t* rgb, int num_rows) { rows.publish(rgb, num_rows); },
            passing);
        if (!status.ok()) rows.give_up();
        decoded_ns = host_now_ns();
      };
      const std::int64_t begin_ns = host_now_ns();
      make_crops_into(rows, image.width, image.height, tiling, geometry_, crops, &pool_, decode, {},
                      &helpers);
      decoded_ns -= begin_ns;
    });
    note("decode, of that", static_cast<double>(decoded_ns));
    return status;
  }

  void time(const std::string& name, const std::function<void()>& work) {
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(options_.rest_ms));
    const std::int64_t begin_ns = host_now_ns();
    work();
    note(name, static_cast<double>(host_now_ns() - begin_ns));
  }

  void note(const std::string& name, double ns) {
    for (Stage& stage : stages_) {
      if (stage.name == name) return stage.times_ns.push_back(ns);
    }
    stages_.push_back({name, {ns}});
  }

  const PicturesOptions& options_;
  ThreadPool& pool_;
  const CropGeometry geometry_;
  std::vector<std::uint8_t> pixels_;
  std::vector<Stage> stages_;
};

Status run_pictures(const PicturesOptions& options) {
  if (options.cores > 0) GAPLESS_RETURN_IF_ERROR(use_cores(options.cores));
  const int num_threads = options.cores > 0 ? options.cores : num_usable_cores();
  ThreadPool pool(num_threads);
  boost::json::array list;
  fmt::print("{:<6} {:<10} {:>7} | {:<20} | {:>9} {:>9} {:>9}\n", "format", "size", "KB", "stage",
             "median ms", "p10", "p90");
  for (const std::string& size_text : options.sizes) {
    GAPLESS_ASSIGN_OR_RETURN(const PictureSize size, parse_picture_size(size_text));
    for (const std::string& format_text : options.formats) {
      GAPLESS_ASSIGN_OR_RETURN(const PictureFormat format, parse_picture_format(format_text));
      GAPLESS_ASSIGN_OR_RETURN(const std::vector<std::string> pictures,
                               make_pictures(options.num_pictures, {size}, 1, format));
      PictureStages stages(options, pool);
      GAPLESS_RETURN_IF_ERROR(stages.run(pictures));
      boost::json::object times;
      for (const Stage& stage : stages.stages()) {
        const Spread spread = spread_of(stage.times_ns);
        fmt::print("{:<6} {:<10} {:>7.0f} | {:<20} | {:>9.3f} {:>9.3f} {:>9.3f}\n", format_text,
                   size_text, static_cast<double>(pictures.front().size()) / 1e3, stage.name,
                   spread.median / 1e6, spread.p10 / 1e6, spread.p90 / 1e6);
        times[stage.name] = boost::json::object{{"median", rounded(spread.median / 1e6, 4)},
                                                {"p10", rounded(spread.p10 / 1e6, 4)},
                                                {"p90", rounded(spread.p90 / 1e6, 4)}};
      }
      list.push_back(boost::json::object{{"format", format_text},
                                         {"size", size_text},
                                         {"bytes", pictures.front().size()},
                                         {"stage_ms", std::move(times)}});
    }
  }
  if (options.json.empty()) return ok_status();
  ResultHeader header;
  header.commit = options.commit;
  header.device = fmt::format("host, {} cores", num_threads);
  header.model = "crops of Moondream 2";
  header.ceiling = "none";
  return write_result(options.json, header,
                      {{"benchmark", "pictures"},
                       {"spread", "p10 and p90 of the pictures"},
                       {"pictures", options.num_pictures},
                       {"rest_ms", options.rest_ms},
                       {"kinds", list}});
}

}  // namespace

void add_bench_pictures_command(CLI::App& bench, Command& chosen) {
  auto options = std::make_shared<PicturesOptions>();
  CLI::App* command =
      bench.add_subcommand("pictures", "What the host does with a new picture, stage by stage");
  command->add_option("--image-format", options->formats, "jpeg, png")
      ->delimiter(',')
      ->check(CLI::IsMember({"jpeg", "png"}))
      ->capture_default_str();
  command->add_option("--image-size", options->sizes, "Of the pictures")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--pictures", options->num_pictures, "Of each kind")
      ->check(CLI::Range(1, 10'000))
      ->capture_default_str();
  command->add_option("--cores", options->cores, "Processor cores; 0: all");
  command
      ->add_option("--rest-ms", options->rest_ms,
                   "Before each measurement, so that threads sleep as between requests")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  add_result_options(*command, options->json, options->commit);
  command->callback(
      [options, &chosen] { chosen = [options] { return report(run_pictures(*options)); }; });
}

}  // namespace gapless
