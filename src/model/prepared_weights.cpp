#include "model/prepared_weights.h"

#include <algorithm>
#include <span>
#include <vector>

#include "base/check.h"
#include "device/bump_layout.h"
#include "model/decode_path.h"

namespace gapless {
namespace {

// Any shape that every backend which prepares weights can prepare.
constexpr int kAnyIn = 128;
constexpr int kAnyOut = 16;

// Where the prepared matrices lie.
class PreparedLayout {
 public:
  // `joins`: the blocks too, whose two products each read as one; otherwise the head alone.
  PreparedLayout(const Kernels& kernels, const TextShape& shape,
                 std::span<const DecoderBlock> described, PreparedFormat format, bool joins,
                 std::span<LinearWeights* const> alone, void* base)
      : kernels_(kernels), format_(format), layout_(base) {
    const int d = shape.dim, num_experts = shape.experts.num_experts;
    for (const DecoderBlock& block : described) {
      if (!joins) break;
      const PreparedSizes sizes = PreparedSizes::of(block);
      blocks.push_back({.in = take(d, sizes.in_rows), .out = take(sizes.out_columns, d)});
      const FeedForward& ff = block.ff;
      if (ff.kind != FeedForwardKind::kExperts) continue;
      blocks.back().experts = {.up = take(d, num_experts * ff.up.out),
                               .down = take(ff.down.in, num_experts * d)};
    }
    head = take(d, shape.vocab);
    for (const LinearWeights* one : alone) others.push_back(take(one->in, one->out));
  }

  std::size_t total_bytes() const { return layout_.peak_bytes(); }

  struct Block {
    void* in = nullptr;
    void* out = nullptr;
    PreparedExperts experts = {};

    void* of(PreparedMatrix matrix) const {
      switch (matrix) {
        case PreparedMatrix::kIn:
          return in;
        case PreparedMatrix::kOut:
          return out;
        case PreparedMatrix::kExpertsUp:
          return const_cast<void*>(experts.up);
        case PreparedMatrix::kExpertsDown:
          break;
      }
      return const_cast<void*>(experts.down);
    }
  };
  std::vector<Block> blocks;  // empty where no launch would read them
  void* head = nullptr;
  std::vector<void*> others;

 private:
  void* take(int in, int out) {
    return layout_.take(kernels_.prepared_linear_bytes(in, out, format_));
  }

  const Kernels& kernels_;
  const PreparedFormat format_;
  BumpLayout layout_;
};

// What brings back the rows of a part of a prepared matrix.
RestoreLinearParams restore_of(const PrepareLinearParams& made) {
  return {.prepared = made.prepared,
          .format = made.format,
          .total_in = made.total_in,
          .total_out = made.total_out,
          .first_out = made.first_out,
          .first_in = made.first_in,
          .halves_alternate = made.halves_alternate,
          .weight = const_cast<void*>(made.weights.weight),
          .in = made.weights.in,
          .out = made.weights.out};
}

class WeightPreparer {
 public:
  WeightPreparer(Kernels& kernels, Stream& stream, PreparedFormat format, const SharedRows* shared)
      : kernels_(kernels), stream_(stream), format_(format), shared_(shared) {}

  // Block i.
  Status prepare_block(int i, const PreparedLayout::Block& to, DecoderBlock& block) const {
    if (block.ff.kind == FeedForwardKind::kExperts) {
      const std::size_t element_bytes = dtype_bytes(kernels_.activation_dtype());
      for (const PreparedPart& part : prepared_expert_parts(block, element_bytes)) {
        GAPLESS_RETURN_IF_ERROR(kernels_.prepare_linear(stream_, params_of(part, to)));
      }
      block.prepared_experts = to.experts;
    } else {
      int group = group_of_matrix(i, 0);
      const auto matrices = matrices_of(block);
      const auto parts = prepared_parts(block);
      for (std::size_t n = 0; n < parts.size(); ++n) {
        GAPLESS_RETURN_IF_ERROR(prepare(*matrices[n], group++, params_of(parts[n], to)));
      }
    }
    block.prepared_in = to.in;
    block.prepared_out = to.out;
    block.prepared_format = format_;
    return ok_status();
  }

  Status prepare_alone(LinearWeights& matrix, int group, void* to) const {
    return prepare(matrix, group, whole(matrix, to));
  }

  // rows_at_once: of those that are there; 0: all are.
  Status prepare_head(LinearWeights& head, std::int64_t rows_at_once, void* to) const {
    PrepareLinearParams params = whole(head, to);
    if (rows_at_once == 0) {
      GAPLESS_RETURN_IF_ERROR(kernels_.prepare_linear(stream_, params));
    } else {
      for (std::int64_t first = 0; first < head.out; first += rows_at_once) {
        params.first_out = static_cast<int>(first);
        params.weights.out = static_cast<int>(std::min(rows_at_once, head.out - first));
        GAPLESS_RETURN_IF_ERROR(shared_->fill_rows(first, params.weights.out));
        GAPLESS_RETURN_IF_ERROR(kernels_.prepare_linear(stream_, params));
      }
      keep_nothing_else(head, rows_at_once, whole(head, to));
    }
    head.prepared = to;
    head.prepared_format = format_;
    return ok_status();
  }

 private:
  PrepareLinearParams whole(const LinearWeights& matrix, void* to) const {
    return {.weights = matrix,
            .prepared = to,
            .format = format_,
            .total_in = matrix.in,
            .total_out = matrix.out};
  }

  PrepareLinearParams params_of(const PreparedPart& part, const PreparedLayout::Block& to) const {
    return {.weights = part.weights,
            .prepared = to.of(part.matrix),
            .format = format_,
            .total_in = part.total_in,
            .total_out = part.total_out,
            .first_out = part.first_out,
            .first_in = part.first_in,
            .halves_alternate = part.halves_alternate};
  }

  Status prepare(LinearWeights& matrix, int group, const PrepareLinearParams& params) const {
    if (shared_ != nullptr) {
      GAPLESS_RETURN_IF_ERROR(shared_->fill(group));
      matrix.restore = restore_of(params);
    }
    return kernels_.prepare_linear(stream_, params);
  }

  // Its products with few rows read what is prepared in T themselves, and it has no others.
  static void keep_nothing_else(LinearWeights& head, std::int64_t rows_at_once,
                                const PrepareLinearParams& params) {
    if (params.format == PreparedFormat::kNative) {
      head.weight = nullptr;
      return;
    }
    head.restore = restore_of(params);
    head.restore.out = static_cast<int>(std::min<std::int64_t>(rows_at_once, head.out));
  }

  Kernels& kernels_;
  Stream& stream_;
  const PreparedFormat format_;
  const SharedRows* const shared_;
};

std::span<LinearWeights* const> others_of(const SharedRows* shared) {
  return shared != nullptr ? std::span<LinearWeights* const>(shared->others)
                           : std::span<LinearWeights* const>();
}

}  // namespace

std::size_t prepared_weights_bytes(const Kernels& kernels, const TextShape& shape,
                                   const TextWeights& text, PreparedFormat format, bool blocks) {
  if (kernels.prepared_linear_bytes(kAnyIn, kAnyOut, format) == 0) return 0;
  const bool joins = blocks && check_one_launch_decode(shape, text).ok();
  return PreparedLayout(kernels, shape, text.blocks, format, joins, {}, nullptr).total_bytes();
}

Status prepare_decode_weights(Device& device, Kernels& kernels, Stream& stream,
                              const TextShape& shape, PreparedFormat format,
                              DecoderWeights& weights, const SharedRows* shared, bool blocks) {
  if (kernels.prepared_linear_bytes(kAnyIn, kAnyOut, format) == 0) return ok_status();
  const bool joins = blocks && check_one_launch_decode(shape, weights.text).ok();
  GAPLESS_CHECK(shared == nullptr || joins);
  const auto others = others_of(shared);
  const std::size_t bytes =
      PreparedLayout(kernels, shape, weights.text.blocks, format, joins, others, nullptr)
          .total_bytes();
  GAPLESS_ASSIGN_OR_RETURN(weights.prepared, device.allocate(bytes));
  const PreparedLayout layout(kernels, shape, weights.text.blocks, format, joins, others,
                              weights.prepared.data());
  const WeightPreparer preparer(kernels, stream, format, shared);
  const auto num_blocks = static_cast<int>(layout.blocks.size());
  for (int i = 0; i < num_blocks; ++i) {
    const auto at = static_cast<std::size_t>(i);
    GAPLESS_RETURN_IF_ERROR(preparer.prepare_block(i, layout.blocks[at], weights.text.blocks[at]));
  }
  for (std::size_t i = 0; i < others.size(); ++i) {
    GAPLESS_RETURN_IF_ERROR(preparer.prepare_alone(
        *others[i], group_of_matrix(num_blocks, static_cast<int>(i)), layout.others[i]));
  }
  return preparer.prepare_head(weights.text.lm_head,
                               max_rows_in_parts(weights.layout, kernels.activation_dtype()),
                               layout.head);
}

Status prepare_in_place(Device& device, Kernels& kernels, Stream& stream,
                        std::span<LinearWeights* const> matrices) {
  const auto rows_bytes = [&](const LinearWeights& matrix) {
    return static_cast<std::size_t>(matrix.in) * static_cast<std::size_t>(matrix.out) *
           dtype_bytes(kernels.activation_dtype());
  };
  const auto fits = [&](const LinearWeights& matrix) {
    const std::size_t bytes =
        kernels.prepared_linear_bytes(matrix.in, matrix.out, PreparedFormat::kNative);
    return bytes > 0 && bytes == rows_bytes(matrix);
  };
  std::size_t most_bytes = 0;
  for (const LinearWeights* matrix : matrices) {
    if (fits(*matrix)) most_bytes = std::max(most_bytes, rows_bytes(*matrix));
  }
  if (most_bytes == 0) return ok_status();
  GAPLESS_ASSIGN_OR_RETURN(const Buffer made, device.allocate(most_bytes));
  for (LinearWeights* matrix : matrices) {
    if (!fits(*matrix)) continue;
    auto* const place = const_cast<void*>(matrix->weight);
    GAPLESS_RETURN_IF_ERROR(kernels.prepare_linear(stream, {.weights = *matrix,
                                                            .prepared = made.data(),
                                                            .total_in = matrix->in,
                                                            .total_out = matrix->out}));
    GAPLESS_RETURN_IF_ERROR(stream.copy_on_device(place, made.data(), rows_bytes(*matrix)));
    matrix->prepared = place;
    matrix->prepared_format = PreparedFormat::kNative;
    matrix->weight = nullptr;
  }
  return stream.synchronize();
}

}  // namespace gapless
