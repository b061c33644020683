// step_bench MODEL ROWS[,ROWS] [CONTEXT]: times of the one launch, without the rest of a step.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>
#include "bench/cuda_bench.h"
#include "base/limits.h"
using namespace gapless;
using namespace gapless::bench;
int main(int argc, char** argv) {
  const std::string model = argc > 1 ? argv[1] : "llama";
  std::vector<int> rows_list;
  for (char* t = std::strtok(argv[2], ","); t; t = std::strtok(nullptr, ",")) rows_list.push_back(std::atoi(t));
  const int context = argc > 3 ? std::atoi(argv[3]) : 850;
  const bool llama = model == "llama", f8 = std::getenv("FP8") != nullptr;
  const int dim = llama ? 4096 : 2048, ff = llama ? 14336 : 8192, layers = std::getenv("LAYERS") ? std::atoi(std::getenv("LAYERS")) : llama ? 32 : 24, vocab = llama ? 128256 : 51200;
  const AttentionHeads heads{.num_heads = 32, .num_kv_heads = llama ? 8 : 32, .head_dim = llama ? 128 : 64};
  const int rotary = llama ? 128 : 32, max_context = 2048;
  const int up = llama ? 2 * ff : ff;
  CudaBench b("cuda");
  Kernels& k = b.kernels();
  Stream& s = b.stream();
  const int max_rows = 64, pages_per_row = max_context / 16;
  const int pages = 1 + max_rows * ((context + 16) / 16 + 1);
  std::vector<DecoderBlock> blocks;
  const void* bias = llama ? nullptr : b.noise(32768, 0.02f);
  const auto format = f8 ? PreparedFormat::kFp8 : PreparedFormat::kNative;
  const auto weights = [&](int in, int out) -> const void* {
    if (!f8) return b.noise(std::int64_t{in} * out, 0.02f);
    return nullptr;
  };
  for (int i = 0; i < layers; ++i) {
    DecoderBlock d;
    d.residual = llama ? Residual::kSequential : Residual::kParallel;
    const auto kind = llama ? NormKind::kRms : NormKind::kLayer;
    d.norm = {.kind = kind, .gamma = b.noise(dim, 0.5f), .beta = llama ? nullptr : b.noise(dim, 0.02f)};
    if (llama) d.ff_norm = {.kind = kind, .gamma = b.noise(dim, 0.5f)};
    d.qkv = {.weight = nullptr, .bias = bias, .in = dim, .out = heads.qkv_width()};
    d.proj = {.weight = nullptr, .bias = bias, .in = heads.q_width(), .out = dim};
    d.ff.kind = llama ? FeedForwardKind::kGated : FeedForwardKind::kDense;
    d.ff.activation = llama ? Activation::kSilu : Activation::kGeluTanh;
    d.ff.up = {.weight = nullptr, .bias = bias, .in = dim, .out = up};
    d.ff.down = {.weight = nullptr, .bias = bias, .in = ff, .out = dim};
    d.prepared_in = weights(dim, heads.qkv_width() + up);
    d.prepared_out = weights(heads.q_width() + ff, dim);
    d.prepared_format = format;
    const std::int64_t cache = std::int64_t{pages} * heads.num_kv_heads * 16 * heads.head_dim;
    d.kv = {b.noise(cache), b.noise(cache), KvFormat::kNative};
    blocks.push_back(d);
  }
  DecoderHead head;
  head.norm = {.kind = blocks[0].norm.kind, .gamma = b.noise(dim, 0.5f), .beta = llama ? nullptr : b.noise(dim, 0.02f)};
  head.linear = {.weight = nullptr, .bias = llama ? nullptr : b.noise(vocab, 0.02f), .in = dim, .out = vocab, .prepared = weights(dim, vocab), .prepared_format = format};
  head.logits = static_cast<float*>(b.allocate(std::size_t{max_rows} * vocab * 4));
  const void* x0 = b.noise(std::int64_t{max_rows} * dim);
  void* x = b.allocate(std::size_t{max_rows} * dim * 2);
  std::vector<std::int32_t> table(std::size_t{max_rows} * pages_per_row, 0);
  const int used = (context + 16) / 16 + 1;
  for (int r = 0; r < max_rows; ++r) for (int i = 0; i < used && i < pages_per_row; ++i) table[r * pages_per_row + i] = 1 + r * used + i;
  const auto* table_dev = b.upload(table);
  std::vector<float> rope(std::size_t{max_context} * rotary, 0.0f);
  for (std::size_t i = 0; i < rope.size(); i += 2) rope[i] = 1.0f;
  const auto* rope_dev = b.upload(rope);
  std::vector<AttentionSequence> seqs(max_rows);
  for (int r = 0; r < max_rows; ++r) { seqs[r].row = r; seqs[r].first_token = r; seqs[r].num_tokens = 1; seqs[r].num_cached = context; }
  const auto* seqs_dev = b.upload(seqs);
  std::vector<std::int32_t> pos(max_rows, context), slots(max_rows, 0);
  for (int r = 0; r < max_rows; ++r) slots[r] = (1 + r * used + context / 16) * 16 + context % 16;
  const auto* pos_dev = b.upload(pos); const auto* slots_dev = b.upload(slots);
  void* scratch = b.allocate(k.decoder_blocks_scratch_bytes(max_rows, dim, ff, heads, max_context, {}));
  DecoderBlocksParams p;
  p.blocks = blocks.data(); p.num_blocks = layers; p.head = &head; p.x = x; p.positions = pos_dev; p.cache_slots = slots_dev;
  p.rope_table = rope_dev; p.page_table = table_dev; p.page_table_stride = pages_per_row; p.sequences = seqs_dev;
  p.max_context = max_context; p.heads = heads; p.rotary_dim = rotary; p.decode = true; p.block_scratch = scratch;
  for (int rows : rows_list) {
    p.num_sequences = p.num_tokens = rows;
    require(k.check_fast_decoder(p));
    // The same bits whatever the batch: hashes of the first row's x and logits.
    require(s.copy_on_device(x, x0, std::size_t(max_rows) * dim * 2));
    require(k.decoder_blocks(s, p));
    require(s.synchronize());
    std::vector<float> logits(vocab);
    cudaMemcpy(logits.data(), head.logits, vocab * 4, cudaMemcpyDeviceToHost);
    unsigned long long hash = 1469598103934665603ull; int bad = 0; 
    for (float f : logits) { unsigned u; std::memcpy(&u, &f, 4); hash = (hash ^ u) * 1099511628211ull; bad += !(f == f); }
    const Spread t = b.time(2, [&] { require(k.decoder_blocks(s, p)); return k.decoder_blocks(s, p); });
    std::printf("%s rows %2d context %d: %.4f ms (%.4f .. %.4f) hash %016llx nans %d first %g %g\n", model.c_str(), rows, context, t.median_us / 1e3, t.low_us / 1e3, t.high_us / 1e3, hash, bad, logits[0], logits[1]);
    std::fflush(stdout);
  }
}
