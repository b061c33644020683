#include "pipeline/step_graphs.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/limits.h"

namespace gapless {
namespace {

constexpr int kSmallestTokenBucket = 16;
constexpr int kTokenBucketStep = 128;

struct Launch {
  StepPart part;
  StepShape shape;
};

// Calls use(bucket) for each bucket up to and including that of `limit`.
template <typename BucketOf, typename Use>
void for_each_bucket(int limit, const BucketOf& bucket_of, const Use& use) {
  for (int bucket = 0; bucket < limit;) {
    bucket = bucket_of(bucket + 1);
    use(bucket);
  }
}

// What samplings there are: each costs only what its rows ask for.
std::vector<StepShape> samplings(StepShape shape, bool holds_grammars) {
  std::vector<StepShape> shapes;
  for (const bool with_grammars : {false, true}) {
    if (with_grammars && !holds_grammars) continue;
    for (const bool with_regions : {false, true}) {
      shape.with_grammars = with_grammars;
      shape.with_regions = with_regions;
      shapes.push_back(shape);
    }
  }
  return shapes;
}

void add_decodes(const StepLimits& limits, bool holds_grammars, std::vector<Launch>& launches) {
  const auto bucket_of = [&](int rows) { return decode_bucket(rows, limits.max_seats); };
  for_each_bucket(limits.max_seats, bucket_of, [&](int rows) {
    const StepShape decode{.kind = StepKind::kDecode, .num_rows = rows};
    for (const StepShape& shape : samplings(decode, holds_grammars)) {
      for (const StepPart part : {StepPart::kForward, StepPart::kSampling, StepPart::kBoth}) {
        launches.push_back({part, shape});
      }
    }
  });
}

void add_prefills(const StepLimits& limits, bool holds_grammars, std::vector<Launch>& launches) {
  if (limits.max_graph_tokens == 0) return;
  const int max_rows = limits.max_prefill_sequences;
  const auto rows_of = [&](int rows) { return prefill_row_bucket(rows, max_rows); };
  const auto tokens_of = [&](int tokens) { return prefill_token_bucket(tokens, limits); };
  for_each_bucket(max_rows, rows_of, [&](int rows) {
    StepShape shape{.kind = StepKind::kPrefill, .num_rows = rows, .num_segments = rows};
    for_each_bucket(limits.max_graph_tokens, tokens_of, [&](int tokens) {
      shape.num_tokens = tokens;
      shape.max_new_tokens = tokens;
      launches.push_back({StepPart::kForward, shape});
    });
    for (const StepShape& sampling : samplings(shape, holds_grammars)) {
      launches.push_back({StepPart::kSampling, sampling});
    }
  });
}

void add_encodes(const StepLimits& limits, std::vector<Launch>& launches) {
  for (int crops = 1; crops <= limits.max_graph_crops; ++crops) {
    launches.push_back({StepPart::kForward, {.kind = StepKind::kEncode, .num_crops = crops}});
  }
}

}  // namespace

int decode_bucket(int num_rows, int max_rows) {
  int bucket = 1;
  while (bucket < num_rows) bucket *= 2;
  return std::min(bucket, max_rows);
}

int prefill_token_bucket(int num_tokens, const StepLimits& limits) {
  if (num_tokens > limits.max_graph_tokens) return num_tokens;
  int bucket = kSmallestTokenBucket;
  while (bucket < num_tokens) bucket += std::min(bucket, kTokenBucketStep);
  return std::min(bucket, limits.max_graph_tokens);
}

int prefill_row_bucket(int num_rows, int max_rows) {
  constexpr int kFew = 4;
  if (num_rows <= 1) return 1;
  return num_rows <= kFew ? std::min(kFew, max_rows) : max_rows;
}

// What a part of a step does not depend on is left at zero.
StepGraphs::Key StepGraphs::key_of(StepPart part, const StepShape& shape) {
  Key key{.part = part, .kind = shape.kind, .num_rows = shape.num_rows};
  if (part == StepPart::kForward) {
    key.num_tokens = shape.num_tokens;
    key.num_crops = shape.num_crops;
    key.first_crop = shape.first_crop;
  } else {
    key.with_regions = shape.with_regions;
    key.with_grammars = shape.with_grammars;
  }
  return key;
}

Status StepGraphs::capture(Stream& stream, const StepLimits& limits, const Enqueue& enqueue,
                           bool holds_grammars) {
  std::vector<Launch> launches;
  add_decodes(limits, holds_grammars, launches);
  add_prefills(limits, holds_grammars, launches);
  add_encodes(limits, launches);
  for (const Launch& launch : launches) {
    std::unique_ptr<Graph>& place = graphs_[key_of(launch.part, launch.shape)];
    if (place != nullptr) continue;  // a forward is the same whatever is sampled
    GAPLESS_RETURN_IF_ERROR(stream.begin_capture());
    const Status enqueued = enqueue(launch.part, launch.shape);
    auto graph = stream.end_capture();  // also after a failure: nothing may stay capturing
    GAPLESS_RETURN_IF_ERROR(enqueued);
    GAPLESS_ASSIGN_OR_RETURN(place, std::move(graph));
  }
  return ok_status();
}

Graph* StepGraphs::find(StepPart part, const StepShape& shape) const {
  const auto found = graphs_.find(key_of(part, shape));
  return found == graphs_.end() ? nullptr : found->second.get();
}

}  // namespace gapless
