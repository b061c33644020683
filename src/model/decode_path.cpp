#include "model/decode_path.h"

#include <fmt/format.h>

#include <vector>

#include "kernels/one_launch_decoder.h"

namespace gapless {

Status check_one_launch_decode(const TextShape& shape, const TextWeights& weights,
                               KvFormat kv_format) {
  const DecoderHead head{.norm = weights.post_ln, .linear = weights.lm_head};
  std::vector<DecoderBlock> blocks = weights.blocks;
  for (DecoderBlock& block : blocks) block.kv.format = kv_format;
  DecoderBlocksParams params;
  params.blocks = blocks.data();
  params.num_blocks = shape.num_layers;
  params.head = &head;
  params.heads = shape.heads;
  params.rotary_dim = shape.rotary_dim;
  params.max_context = shape.max_context;
  params.decode = true;
  return check_one_launch_decoder(params);
}

std::string describe_decode_path(const TextShape& shape, const TextWeights& weights,
                                 KvFormat kv_format) {
  const Status one_launch = check_one_launch_decode(shape, weights, kv_format);
  if (one_launch.ok() && shape.experts.num_experts > 0) {
    return "decode steps on a GPU: one launch each\n"
           "  of capability 9.0, with twice the memory of the weights and their copy; on others "
           "composed\n";
  }
  if (one_launch.ok()) return "decode steps on a GPU: one launch each\n";
  return fmt::format("decode steps on a GPU: composed of single ops, because {}\n",
                     one_launch.message());
}

}  // namespace gapless
