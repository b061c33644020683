#include "model/prepared_weights.h"

#include <vector>

#include "base/check.h"
#include "device/bump_layout.h"
#include "kernels/prepared_parts.h"
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
  PreparedLayout(const Kernels& kernels, const TextShape& shape, PreparedFormat format, bool joins,
                 void* base)
      : kernels_(kernels), format_(format), layout_(base) {
    const int d = shape.dim;
    for (int i = 0; joins && i < shape.num_layers; ++i) {
      blocks.push_back({take(d, shape.heads.qkv_width() + shape.up_dim),
                        take(shape.heads.q_width() + shape.ff_dim, d)});
    }
    head = take(d, shape.vocab);
  }

  std::size_t total_bytes() const { return layout_.peak_bytes(); }

  struct Block {
    void* in;
    void* out;
  };
  std::vector<Block> blocks;  // empty where no launch would read them
  void* head = nullptr;

 private:
  void* take(int in, int out) {
    return layout_.take(kernels_.prepared_linear_bytes(in, out, format_));
  }

  const Kernels& kernels_;
  const PreparedFormat format_;
  BumpLayout layout_;
};

Status prepare_block(Kernels& kernels, Stream& stream, PreparedFormat format,
                     const PreparedLayout::Block& to, DecoderBlock& block) {
  for (const PreparedPart& part : prepared_parts(block)) {
    GAPLESS_RETURN_IF_ERROR(kernels.prepare_linear(
        stream, {.weights = *part.weights,
                 .prepared = part.matrix == PreparedMatrix::kIn ? to.in : to.out,
                 .format = format,
                 .total_in = part.total_in,
                 .total_out = part.total_out,
                 .first_out = part.first_out,
                 .first_in = part.first_in,
                 .halves_alternate = part.halves_alternate}));
  }
  block.prepared_in = to.in;
  block.prepared_out = to.out;
  block.prepared_format = format;
  return ok_status();
}

}  // namespace

std::size_t prepared_weights_bytes(const Kernels& kernels, const TextShape& shape,
                                   const TextWeights& text, PreparedFormat format) {
  if (kernels.prepared_linear_bytes(kAnyIn, kAnyOut, format) == 0) return 0;
  const bool joins = check_one_launch_decode(shape, text).ok();
  return PreparedLayout(kernels, shape, format, joins, nullptr).total_bytes();
}

Status prepare_decode_weights(Device& device, Kernels& kernels, Stream& stream,
                              const TextShape& shape, PreparedFormat format,
                              DecoderWeights& weights, const FillBlock& fill_block) {
  const std::size_t bytes = prepared_weights_bytes(kernels, shape, weights.text, format);
  if (bytes == 0) return ok_status();
  GAPLESS_ASSIGN_OR_RETURN(weights.prepared, device.allocate(bytes));
  const bool joins = check_one_launch_decode(shape, weights.text).ok();
  const PreparedLayout layout(kernels, shape, format, joins, weights.prepared.data());
  GAPLESS_CHECK(fill_block == nullptr || joins);
  for (std::size_t i = 0; i < layout.blocks.size(); ++i) {
    if (fill_block) GAPLESS_RETURN_IF_ERROR(fill_block(static_cast<int>(i)));
    DecoderBlock& block = weights.text.blocks[i];
    GAPLESS_RETURN_IF_ERROR(prepare_block(kernels, stream, format, layout.blocks[i], block));
    block.shares_rows = fill_block != nullptr;
  }
  LinearWeights& head = weights.text.lm_head;
  GAPLESS_RETURN_IF_ERROR(kernels.prepare_linear(stream, {.weights = head,
                                                          .prepared = layout.head,
                                                          .format = format,
                                                          .total_in = head.in,
                                                          .total_out = head.out}));
  head.prepared = layout.head;
  head.prepared_format = format;
  return ok_status();
}

}  // namespace gapless
