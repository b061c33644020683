#include "bench/cuda_small_kernels.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/moondream2_shapes.h"
#include "kernels/dense_ops.h"

namespace gapless::bench {
namespace {

constexpr int kGrid = 27, kCropSize = 378, kPatchSize = 14, kPatchStride = 592;
constexpr int kRegionInner = 8192, kCoordBins = 1024, kSizeBins = 1024;

std::string of(const std::string& what, int count, const char* unit) {
  return what + ", " + std::to_string(count) + " " + unit;
}

void bench_pictures(CudaBench& b) {
  for (const int crops : {1, 13}) {
    const std::int64_t patches = std::int64_t{crops} * kPatches;
    const double pixels = static_cast<double>(crops) * kCropSize * kCropSize * 3;
    const auto* bytes =
        static_cast<const std::uint8_t*>(b.noise(static_cast<std::int64_t>(pixels)));
    const void* lut = b.noise(256);
    void* out = b.allocate(static_cast<std::size_t>(patches) * kPatchStride * 2);
    repeat(b, of("patchify", crops, "crops"),
           pixels + 2.0 * static_cast<double>(patches) * kPatchStride, [&] {
             return b.kernels().patchify(b.stream(), {.crops = bytes,
                                                      .lut = lut,
                                                      .patches = out,
                                                      .num_crops = crops,
                                                      .crop_size = kCropSize,
                                                      .patch_size = kPatchSize,
                                                      .patch_stride = kPatchStride});
           });
    b.free_all();
  }
  const void* features = b.noise(13LL * kPatches * kVisionDim);
  void* pooled = b.allocate(std::size_t{2} * kPatches * 2 * kVisionDim);
  repeat(b, "stitch_and_pool, 3 x 4 tiles",
         2.0 * kPatches * kVisionDim * 13 + 2.0 * kPatches * 2 * kVisionDim, [&] {
           return b.kernels().stitch_and_pool(b.stream(), {.features = features,
                                                           .out = pooled,
                                                           .tile_rows = 3,
                                                           .tile_cols = 4,
                                                           .grid = kGrid,
                                                           .overlap_margin = 4,
                                                           .dim = kVisionDim});
         });
  b.free_all();
}

void bench_tokens(CudaBench& b) {
  for (const int tokens : {1, 32, 770, 6160}) {
    std::vector<TokenInput> inputs(static_cast<std::size_t>(tokens));
    for (int i = 0; i < tokens; ++i) {
      TokenInput& input = inputs[static_cast<std::size_t>(i)];
      const bool image = i % 770 >= 1 && i % 770 <= kPatches;
      input.kind = image ? InputKind::kImage : InputKind::kText;
      input.id = image ? i % 770 - 1 : i * 7 % kVocab;
    }
    const auto* inputs_dev = b.upload(inputs);
    const void* wte = b.noise(std::int64_t{kVocab} * kDim);
    const void* pool = b.noise(std::int64_t{kPatches} * kDim);
    void* x = b.noise(std::int64_t{tokens} * kDim);
    repeat(b, of("embed", tokens, "tokens"), 4.0 * tokens * kDim, [&] {
      return b.kernels().embed(b.stream(), {.inputs = inputs_dev,
                                            .wte = wte,
                                            .image_embeddings = pool,
                                            .out = x,
                                            .num_tokens = tokens,
                                            .dim = kDim,
                                            .vocab = kVocab});
    });
    void* norm = b.allocate(std::size_t{2} * static_cast<std::size_t>(tokens) * kDim);
    const void* gamma = b.noise(kDim);
    const void* beta = b.noise(kDim);
    repeat(b, of("layer norm", tokens, "tokens"), 4.0 * tokens * kDim, [&] {
      return b.kernels().norm(b.stream(),
                              dense_norm(x, {.gamma = gamma, .beta = beta}, norm, kDim, tokens));
    });
    const int rows = std::min(tokens, 64);
    const auto* index = b.upload(seats(rows));
    repeat(b, of("gather_rows", rows, "rows"), 4.0 * rows * kDim, [&] {
      return b.kernels().gather_rows(
          b.stream(), {.x = x, .index = index, .y = norm, .num_rows = rows, .dim = kDim});
    });
    b.free_all();
  }
  for (const int tokens : {770, 6160}) {
    void* qkv = b.noise(std::int64_t{tokens} * 3 * kDim);
    std::vector<std::int32_t> positions, slots;
    for (int i = 0; i < tokens; ++i) {
      positions.push_back(i % 770);
      slots.push_back(kPageTokens + i);
    }
    const KvLayout layout{.num_heads = kHeads, .head_dim = kHeadDim};
    const KvLayer kv{.pages = b.noise((tokens / kPageTokens + 2) * layout.page_size())};
    const auto* positions_dev = b.upload(positions);
    const auto* slots_dev = b.upload(slots);
    const auto* table = b.upload(std::vector<float>(std::size_t{kMaxContext} * kRotaryDim, 0.7f));
    // Reads q's and k's rotated part and what goes into the cache, writes the one and the other.
    const double bytes = 2.0 * tokens * (2.0 * kHeads * kRotaryDim + 4.0 * kDim);
    repeat(b, of("rope and cache", tokens, "tokens"), bytes, [&] {
      return b.kernels().rope_and_cache(
          b.stream(), {.qkv = qkv,
                       .qkv_stride = 3 * kDim,
                       .positions = positions_dev,
                       .cache_slots = slots_dev,
                       .rope_table = table,
                       .kv = kv,
                       .num_tokens = tokens,
                       .heads = {.num_heads = kHeads, .num_kv_heads = kHeads, .head_dim = kHeadDim},
                       .rotary_dim = kRotaryDim});
    });
    const void* inner = b.noise(std::int64_t{tokens} * kFfDim);
    void* bytes_of_rows = b.allocate(static_cast<std::size_t>(tokens) * kFfDim);
    auto* scales =
        static_cast<float*>(b.allocate(static_cast<std::size_t>(tokens) * sizeof(float)));
    repeat(b, of("rows to 8 bits", tokens, "rows of 8192"), 3.0 * tokens * kFfDim, [&] {
      return b.kernels().rows_to_fp8(b.stream(), {.x = inner,
                                                  .x_stride = kFfDim,
                                                  .y = bytes_of_rows,
                                                  .y_stride = kFfDim,
                                                  .scales = scales,
                                                  .num_rows = tokens,
                                                  .dim = kFfDim});
    });
    b.free_all();
  }
}

// What a step does for its rows besides the model: no bytes to speak of, a launch each.
void bench_steps(CudaBench& b) {
  for (const int rows : {1, 64}) {
    const auto count = static_cast<std::size_t>(rows);
    auto* states_dev = b.upload(row_states(rows, 0, 1));
    const int pages = kMaxContext / kPageTokens;
    auto* table = b.upload(std::vector<std::int32_t>(count * static_cast<std::size_t>(pages), 1));
    const auto* rows_dev = b.upload(seats(rows));
    const auto* tokens = b.upload(std::vector<std::int32_t>(count, 5));
    const auto* logprobs = b.upload(std::vector<float>(count, -1.0f));
    const auto* values = b.upload(std::vector<float>(2 * count, 0.5f));
    auto* positions = b.upload(seats(rows));
    auto* slots = b.upload(seats(rows));
    auto* index = b.upload(seats(rows));
    auto* sequences =
        static_cast<AttentionSequence*>(b.allocate(count * sizeof(AttentionSequence)));
    auto* outputs = static_cast<StepOutput*>(b.allocate(count * sizeof(StepOutput)));
    const double state_bytes = sizeof(RowState);
    repeat(b, of("plan_decode", rows, "rows"),
           rows * (state_bytes + sizeof(AttentionSequence) + 4 * sizeof(std::int32_t)), [&] {
             return b.kernels().plan_decode(b.stream(), {.rows = rows_dev,
                                                         .row_states = states_dev,
                                                         .page_table = table,
                                                         .page_table_stride = pages,
                                                         .num_rows = rows,
                                                         .positions = positions,
                                                         .cache_slots = slots,
                                                         .sequences = sequences,
                                                         .input_index = index});
           });
    const std::vector<AutomatonState> none(1);
    const auto* automata = b.upload(none);
    const std::vector<std::int32_t> no_tokens(count, 0);
    const auto* consumed = b.upload(no_tokens);  // positions stay where they are
    repeat(b, of("advance_rows", rows, "rows"),
           rows * (2 * state_bytes + sizeof(StepOutput) + 6 * sizeof(std::int32_t)), [&] {
             return b.kernels().advance_rows(b.stream(), {.rows = rows_dev,
                                                          .tokens = tokens,
                                                          .logprobs = logprobs,
                                                          .values = values,
                                                          .tokens_consumed = consumed,
                                                          .automata = automata,
                                                          .row_states = states_dev,
                                                          .outputs = outputs,
                                                          .num_rows = rows,
                                                          .coord_id = -1,
                                                          .size_id = -1});
           });
    const auto* one = b.upload(std::vector<std::int32_t>{1});
    const auto* deltas = b.upload(std::vector<PageTableDelta>(1));
    repeat(b, of("begin_step, one new row and page;", rows, "rows"),
           2 * state_bytes + sizeof(PageTableDelta) + 4 * sizeof(std::int32_t), [&] {
             return b.kernels().begin_step(b.stream(), {.install_rows = rows_dev,
                                                        .installs = states_dev,
                                                        .deltas = deltas,
                                                        .num_installs = one,
                                                        .num_deltas = one,
                                                        .max_installs = 8,
                                                        .max_deltas = 1024,
                                                        .row_states = states_dev,
                                                        .page_table = table,
                                                        .page_table_stride = pages});
           });
    b.free_all();
  }
  const KvLayout layout{.num_heads = kHeads, .head_dim = kHeadDim};
  const std::int64_t page_bytes = 2 * layout.page_size(), num_pages = 64;
  void* cache = b.noise(kLayers * num_pages * layout.page_size());
  std::vector<PageCopy> copies;
  for (int i = 0; i < 8; ++i) copies.push_back({.from = i, .to = 32 + i});
  const auto* copies_dev = b.upload(copies);
  for (const int count : {0, 8}) {
    const auto* count_dev = b.upload(std::vector<std::int32_t>{count});
    repeat(b, of("copy_pages", count, "pages"),
           2.0 * count * kLayers * static_cast<double>(page_bytes), [&] {
             return b.kernels().copy_pages(b.stream(), {.kv_base = cache,
                                                        .page_bytes = page_bytes,
                                                        .num_pages = num_pages,
                                                        .num_layers = kLayers,
                                                        .copies = copies_dev,
                                                        .num_copies = count_dev,
                                                        .max_copies = 8});
           });
  }
  b.free_all();
}

// As a model has those of which only decode products read (prepare_in_place).
LinearWeights prepared_alone(CudaBench& b, int in, int out) {
  LinearWeights made = weights(b, in, out);
  void* const prepared =
      b.allocate(b.kernels().prepared_linear_bytes(in, out, PreparedFormat::kNative));
  require(b.kernels().prepare_linear(
      b.stream(), {.weights = made, .prepared = prepared, .total_in = in, .total_out = out}));
  made.prepared = prepared;
  made.weight = nullptr;
  return made;
}

void bench_regions(CudaBench& b) {
  constexpr int kCoord = 5, kSize = 6;
  const RegionDecoderWeights heads{.coord_fc1 = prepared_alone(b, kDim, kRegionInner),
                                   .coord_fc2 = prepared_alone(b, kRegionInner, kCoordBins),
                                   .size_fc1 = prepared_alone(b, kDim, kRegionInner),
                                   .size_fc2 = prepared_alone(b, kRegionInner, 2 * kSizeBins)};
  for (const int rows : {1, 8, 32, 64}) {
    const auto count = static_cast<std::size_t>(rows);
    std::vector<RowState> states = row_states(rows, 0, 1);
    for (RowState& state : states) state.flags = kRowDecodesRegions;
    const auto* states_dev = b.upload(states);
    const auto* rows_dev = b.upload(seats(rows));
    const void* hidden = b.noise(std::int64_t{rows} * kDim);
    auto* values = static_cast<float*>(b.allocate(count * 2 * sizeof(float)));
    void* scratch =
        b.allocate(b.kernels().region_scratch_bytes(rows, kDim, kRegionInner, 2 * kSizeBins));
    struct Case {
      const char* what;
      std::int32_t even, odd;  // tokens of rows
      int num_heads, bins;     // whose weights are read
    };
    for (const Case& c : {Case{"coordinate", kCoord, kCoord, 1, kCoordBins},
                          Case{"size", kSize, kSize, 1, 2 * kSizeBins},
                          Case{"both", kCoord, kSize, 2, kCoordBins + 2 * kSizeBins},
                          Case{"none asked", 0, 0, 0, 0}}) {
      if (rows == 1 && c.even != c.odd) continue;
      std::vector<std::int32_t> of_rows(count, c.even);
      for (std::size_t i = 1; i < count; i += 2) of_rows[i] = c.odd;
      const auto* tokens = b.upload(of_rows);
      const double bytes = 2.0 * kRegionInner * (c.num_heads * kDim + c.bins);
      const char* what = c.what;
      repeat(b, of(std::string("decode_regions, ") + what, rows, "rows"), bytes, [&] {
        return b.kernels().decode_regions(b.stream(), {.hidden = hidden,
                                                       .tokens = tokens,
                                                       .rows = rows_dev,
                                                       .row_states = states_dev,
                                                       .weights = heads,
                                                       .values = values,
                                                       .num_rows = rows,
                                                       .dim = kDim,
                                                       .coord_id = kCoord,
                                                       .size_id = kSize,
                                                       .scratch = scratch});
      });
    }
  }
  b.free_all();
}

// What loading a model runs once for each matrix.
void bench_loading(CudaBench& b) {
  const LinearWeights w = weights(b, kDim, kFfDim);
  const double elements = static_cast<double>(kDim) * kFfDim;
  void* prepared =
      b.allocate(b.kernels().prepared_linear_bytes(kDim, kFfDim, PreparedFormat::kNative));
  repeat(b, "fill_random, 8192 x 2048", 2 * elements, [&] {
    return b.kernels().fill_random(b.stream(), {.out = prepared,
                                                .num_rows = kFfDim,
                                                .row_size = kDim,
                                                .row_stride = kDim,
                                                .seed = 1,
                                                .stddev = 0.02f});
  });
  repeat(b, "round_to_fp8, 8192 x 2048", 4 * elements, [&] {
    return b.kernels().round_to_fp8(b.stream(),
                                    {.weight = prepared, .num_rows = kFfDim, .row_size = kDim});
  });
  for (const PreparedFormat format : {PreparedFormat::kNative, PreparedFormat::kFp8}) {
    const bool fp8 = format == PreparedFormat::kFp8;
    repeat(b, std::string("prepare_linear, 8192 x 2048, ") + (fp8 ? "8 bits" : "native"),
           (fp8 ? 3 : 4) * elements, [&] {
             return b.kernels().prepare_linear(b.stream(), {.weights = w,
                                                            .prepared = prepared,
                                                            .format = format,
                                                            .total_in = kDim,
                                                            .total_out = kFfDim});
           });
  }
  b.free_all();
}

}  // namespace

void bench_small_kernels(CudaBench& b) {
  bench_pictures(b);
  bench_tokens(b);
  bench_steps(b);
  bench_regions(b);
  bench_loading(b);
}

}  // namespace gapless::bench
