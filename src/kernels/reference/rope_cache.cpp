#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/kv_index.h"
#include "kernels/reference/reference_ops.h"

namespace gapless::reference {
namespace {

// (x[j], x[j + half]) turned by the angle of pair j. `table` is one position's [half, 2]: cos, sin.
void rotate(float* x, const float* table, int half) {
  for (int j = 0; j < half; ++j) {
    const double cosine = table[2 * j], sine = table[2 * j + 1];
    const double a = x[j], b = x[j + half];
    x[j] = static_cast<float>(a * cosine - b * sine);
    x[j + half] = static_cast<float>(a * sine + b * cosine);
  }
}

}  // namespace

void rope_and_cache(const RopeAndCacheParams& params) {
  const AttentionHeads& heads = params.heads;
  const KvLayout layout = heads.kv_layout();
  const int half = params.rotary_dim / 2, head_dim = heads.head_dim;
  std::vector<float> key(static_cast<std::size_t>(head_dim));
  auto turn = [&](float* head, const NormWeights& norm, const float* table) {
    if (norm.gamma != nullptr) norm_row(norm, head, head, head_dim);
    rotate(head, table, half);
  };

  for (std::int64_t t = 0; t < params.num_tokens; ++t) {
    float* q = static_cast<float*>(params.qkv) + t * params.qkv_stride;
    const float* k = q + heads.q_width();
    const float* v = k + heads.kv_width();
    const float* table = params.rope_table + std::int64_t{params.positions[t]} * 2 * half;
    for (int h = 0; h < heads.num_heads; ++h) turn(q + h * head_dim, params.q_norm, table);
    for (int h = 0; h < heads.num_kv_heads; ++h) {
      const auto store = [&](KvPart part, const float* from) {
        store_kv(params.kv.format, params.kv.pages, layout.at(part, params.cache_slots[t], h), from,
                 head_dim);
      };
      std::copy_n(k + h * head_dim, head_dim, key.begin());
      turn(key.data(), params.k_norm, table);
      store(KvPart::kKeys, key.data());
      store(KvPart::kValues, v + h * head_dim);
    }
  }
}

void copy_pages(const CopyPagesParams& params) {
  auto* base = static_cast<unsigned char*>(params.kv_base);
  const int num_copies = std::min(*params.num_copies, params.max_copies);
  for (std::int64_t layer = 0; layer < params.num_layers; ++layer) {
    unsigned char* pages = base + layer * params.num_pages * params.page_bytes;
    for (int i = 0; i < num_copies; ++i) {
      std::memcpy(pages + params.copies[i].to * params.page_bytes,
                  pages + params.copies[i].from * params.page_bytes,
                  static_cast<std::size_t>(params.page_bytes));
    }
  }
}

}  // namespace gapless::reference
