#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/kv_index.h"
#include "kernels/reference/reference_ops.h"

namespace gapless::reference {
namespace {

// One query of one head: softmax(q k^T / sqrt(head_dim)) v over the first num_visible positions.
void attend(const PagedAttentionParams& params, const std::int32_t* page_table_row, int head,
            std::int64_t num_visible, const float* q, float* out) {
  const int head_dim = params.heads.head_dim;
  const int kv_head = head / params.heads.group_size();
  const double scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
  std::vector<float> cached(static_cast<std::size_t>(head_dim));
  auto load = [&](KvPart part, std::int64_t position) {
    const std::int64_t at =
        params.heads.kv_layout().at(part, kv_slot(page_table_row, position), kv_head);
    load_kv(params.kv.format, params.kv.pages, at, cached.data(), head_dim);
  };

  std::vector<double> weights(static_cast<std::size_t>(num_visible));
  double largest = -INFINITY;
  for (std::int64_t j = 0; j < num_visible; ++j) {
    load(KvPart::kKeys, j);
    double dot = 0;
    for (int d = 0; d < head_dim; ++d) dot += static_cast<double>(q[d]) * cached[d];
    weights[j] = dot * scale;
    largest = std::max(largest, weights[j]);
  }
  double sum = 0;
  for (double& weight : weights) sum += weight = std::exp(weight - largest);

  std::vector<double> mean(static_cast<std::size_t>(head_dim), 0.0);
  for (std::int64_t j = 0; j < num_visible; ++j) {
    load(KvPart::kValues, j);
    for (int d = 0; d < head_dim; ++d) mean[d] += weights[j] * cached[d];
  }
  for (int d = 0; d < head_dim; ++d) out[d] = static_cast<float>(mean[d] / sum);
}

}  // namespace

void paged_attention(const PagedAttentionParams& params) {
  for (int s = 0; s < params.num_sequences; ++s) {
    const AttentionSequence& sequence = params.sequences[s];
    const std::int64_t context = std::int64_t{sequence.num_cached} + sequence.num_tokens;
    const std::int32_t* page_table_row =
        params.page_table + std::int64_t{sequence.row} * params.page_table_stride;
    for (std::int64_t t = 0; t < sequence.num_tokens; ++t) {
      const std::int64_t position = sequence.num_cached + t;
      const std::int64_t num_visible = position < sequence.prefix_len
                                           ? std::min<std::int64_t>(sequence.prefix_len, context)
                                           : position + 1;
      const std::int64_t token = sequence.first_token + t;
      for (int h = 0; h < params.heads.num_heads; ++h) {
        const std::int64_t offset = std::int64_t{h} * params.heads.head_dim;
        attend(params, page_table_row, h, num_visible,
               static_cast<const float*>(params.qkv) + token * params.qkv_stride + offset,
               static_cast<float*>(params.out) + token * params.out_stride + offset);
      }
    }
  }
}

}  // namespace gapless::reference
