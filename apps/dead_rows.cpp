#include "dead_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "measure/result_file.h"
#include "model/step_driver.h"
#include "pipeline/step_graphs.h"

namespace gapless {
namespace {

constexpr int kMoreSteps = 8;  // than are counted
constexpr int kTurns = 4;      // of a measurement with and one without dead rows

class DeadRows {
 public:
  DeadRows(StepDriver& driver, const StepModel& model, int context, int repeats)
      : driver_(driver),
        model_(model),
        num_tokens_(std::max(1, context - repeats / 2)),
        repeats_(repeats) {}

  // The driver gives each row pages of its own, which a small cache may not have.
  bool fits(int rows) const {
    return rows <= model_.limits().max_seats &&
           driver_.page_of(rows - 1, num_tokens_ + repeats_ + kMoreSteps) <
               model_.limits().num_pages;
  }

  StatusOr<DeadRowsPoint> measure(int rows) {
    DeadRowsPoint point{.rows = rows};
    GAPLESS_ASSIGN_OR_RETURN(point.live_ns, time(rows, 0));
    if (rows > 1) {
      const int half = rows / 2;
      GAPLESS_RETURN_IF_ERROR(time_pair(rows - 1, 1, point.without_one_ns, point.with_one_ns));
      GAPLESS_RETURN_IF_ERROR(
          time_pair(half, rows - half, point.without_half_ns, point.with_half_ns));
    }
    GAPLESS_ASSIGN_OR_RETURN(point.dead_ns, time(0, rows));
    return point;
  }

 private:
  // A dead row has used up its tokens with its prefill; a live one has enough for all steps.
  Status fill(int row, bool lives) {
    DriverPrompt prompt{.row = row};
    for (int i = 0; i < num_tokens_; ++i) {
      const auto id = static_cast<std::int32_t>((i * 7919 + row) % model_.info().vocab);
      prompt.inputs.push_back({.kind = InputKind::kText, .id = id});
    }
    prompt.state.max_generated = lives ? repeats_ + kMoreSteps : 1;
    return driver_.prefill({&prompt, 1}, false).status();
  }

  // By turns: the difference is small, and the machine drifts.
  Status time_pair(int num_live, int num_dead, Spread& without, Spread& with) {
    std::vector<double> without_ns, with_ns;
    for (int turn = 0; turn < kTurns; ++turn) {
      GAPLESS_RETURN_IF_ERROR(add_times(num_live, 0, without_ns));
      GAPLESS_RETURN_IF_ERROR(add_times(num_live, num_dead, with_ns));
    }
    without = spread_of(std::move(without_ns));
    with = spread_of(std::move(with_ns));
    return ok_status();
  }

  StatusOr<Spread> time(int num_live, int num_dead) {
    std::vector<double> times;
    GAPLESS_RETURN_IF_ERROR(add_times(num_live, num_dead, times));
    return spread_of(std::move(times));
  }

  Status add_times(int num_live, int num_dead, std::vector<double>& all) {
    const int count = num_live + num_dead;
    for (int row = 0; row < count; ++row) GAPLESS_RETURN_IF_ERROR(fill(row, row < num_live));
    std::vector<std::int32_t> rows(
        static_cast<std::size_t>(decode_bucket(count, model_.limits().max_seats)), -1);
    std::iota(rows.begin(), rows.begin() + count, 0);
    GAPLESS_ASSIGN_OR_RETURN(const std::vector<double> times, driver_.time_decode(rows, repeats_));
    all.insert(all.end(), times.begin(), times.end());
    return ok_status();
  }

  StepDriver& driver_;
  const StepModel& model_;
  const int num_tokens_;  // of every prompt
  const int repeats_;
};

boost::json::object ms(const Spread& ns) {
  return {{"median", rounded(ns.median / 1e6, 5)},
          {"p10", rounded(ns.p10 / 1e6, 5)},
          {"p90", rounded(ns.p90 / 1e6, 5)}};
}

}  // namespace

double DeadRowsPoint::zombie_tax(double mean_tokens) const {
  const double added_ns =
      rows == 1 ? dead_ns.median : rows * (with_one_ns.median - without_one_ns.median);
  return added_ns / live_ns.median / mean_tokens;
}

StatusOr<std::vector<DeadRowsPoint>> measure_dead_rows(LoadedModel& model,
                                                       std::span<const int> row_counts, int context,
                                                       int repeats) {
  const int max_context = model.model->info().max_context;
  if (context + repeats + kMoreSteps > max_context) {
    return invalid_argument("context {}: {} steps more do not fit into {}", context, repeats,
                            max_context);
  }
  GAPLESS_ASSIGN_OR_RETURN(const std::unique_ptr<StepDriver> driver,
                           StepDriver::create(*model.device, *model.model));
  DeadRows measurement(*driver, *model.model, context, repeats);
  std::vector<DeadRowsPoint> points;
  for (const int rows : row_counts) {
    if (!measurement.fits(rows)) continue;
    GAPLESS_ASSIGN_OR_RETURN(const DeadRowsPoint point, measurement.measure(rows));
    points.push_back(point);
  }
  return points;
}

std::string dead_rows_table(std::span<const DeadRowsPoint> points, double mean_tokens) {
  std::string table = fmt::format(
      "{:>4} | {:>9} {:>9} {:>7} | {:>9} {:>9} | {:>9} {:>9} | {:>11}\n", "rows", "live ms",
      "dead ms", "share", "1 less", "1 dead", "half", "half dead", "zombie tax");
  const auto cell = [](const Spread& ns) {
    return ns.count > 0 ? fmt::format("{:.4f}", ns.median / 1e6) : "-";
  };
  for (const DeadRowsPoint& point : points) {
    table += fmt::format("{:>4} | {:>9} {:>9} {:>6.2f}% | {:>9} {:>9} | {:>9} {:>9} | {:>10.3f}%\n",
                         point.rows, cell(point.live_ns), cell(point.dead_ns),
                         100 * point.dead_share(), cell(point.without_one_ns),
                         cell(point.with_one_ns), cell(point.without_half_ns),
                         cell(point.with_half_ns), 100 * point.zombie_tax(mean_tokens));
  }
  return table;
}

boost::json::array to_json(std::span<const DeadRowsPoint> points, double mean_tokens) {
  boost::json::array json;
  for (const DeadRowsPoint& point : points) {
    boost::json::object object{{"rows", point.rows},
                               {"live_step_ms", ms(point.live_ns)},
                               {"dead_step_ms", ms(point.dead_ns)},
                               {"dead_step_percent", rounded(100 * point.dead_share(), 3)}};
    if (point.rows > 1) {
      object["one_row_less_ms"] = ms(point.without_one_ns);
      object["one_row_dead_ms"] = ms(point.with_one_ns);
      object["half_the_rows_ms"] = ms(point.without_half_ns);
      object["half_the_rows_dead_ms"] = ms(point.with_half_ns);
    }
    object["zombie_tax_percent"] = rounded(100 * point.zombie_tax(mean_tokens), 4);
    json.push_back(std::move(object));
  }
  return json;
}

}  // namespace gapless
