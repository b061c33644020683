// The op table: everything that the model asks of a device, one params struct per op.
//
// Contract for every op
//   * Pointers are device memory of the stream's device unless they say otherwise.
//   * Tensors are dense and row-major; `*_stride` is in elements between rows.
//   * T is activation_dtype() of the backend (float32 or bfloat16 on the CPU, bfloat16 on CUDA): weights,
//     activations and, unless KvFormat says otherwise, the KV cache are of type T.
//   * Statistics, softmax, GELU, RoPE and every accumulation are float32, with one rounding to T at
//     the end of the op.
//   * An op only enqueues work on `stream` (or records it during a capture). It allocates nothing
//     and never waits. Sizes fixed at call time may be captured in a graph; sizes that change from
//     step to step are read from device memory.
//   * *Row invariance*: row r of an output depends on row r of the input (and its sequence), and
//     not on how many rows there are or what they hold, bit for bit. Invariant I8 stands on this.
//   * Policy stays out: kernels know nothing of requests, skills or slots.
//
// Backends: reference/ (float32, obvious: the oracle), cpu/ (float32 or bfloat16, fast), cuda/ (bfloat16).
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/host_device.h"
#include "base/status.h"
#include "device/device.h"
#include "grammar/grammar_tables.h"
#include "kernels/compute.h"
#include "kernels/dtype.h"
#include "kernels/grammar_mask_cache.h"
#include "kernels/kv_format.h"
#include "kernels/kv_layout.h"
#include "kernels/needed_logits.h"
#include "kernels/prepared_format.h"
#include "kernels/shared_prefix.h"
#include "step/row_state.h"
#include "step/token_memory.h"

namespace gapless {

// The way back from what prepare_linear made (PrepareLinearParams): a part's rows again, [out, in] T, as it read them; of kFp8 as
// round_to_fp8 left them.
struct RestoreLinearParams {
  const void* prepared = nullptr;
  PreparedFormat format = PreparedFormat::kNative;
  int total_in = 0;
  int total_out = 0;
  int first_out = 0;
  int first_in = 0;
  bool halves_alternate = false;
  void* weight = nullptr;  // out
  int in = 0;
  int out = 0;
};

// y = x W^T + b. weight: [out, in] T; bias: [out] T or nullptr. `prepared`: nullptr, or what
// prepare_linear made of the same weights, in prepared_format. Where that is kNative a decode product
// reads nothing else of them, and `weight` may be nullptr; where it is kFp8, decoder_blocks does.
struct LinearWeights {
  const void* weight = nullptr;
  const void* bias = nullptr;
  int in = 0;
  int out = 0;
  const void* prepared = nullptr;
  PreparedFormat prepared_format = PreparedFormat::kNative;
  // What rows_to_fp8 made of `weight`, densely; nullptr: nothing. For products of rows in 8 bits. These are the same numbers as
  // there (round_to_fp8 left them): a GPU that cannot multiply 8 bits reads those.
  const void* fp8 = nullptr;
  const float* fp8_scales = nullptr;  // [out]
  // What pack_int8 made of `weight`; nullptr: nothing. Products read it then, and not `weight`.
  const void* int8 = nullptr;
  // Unless restore.prepared is nullptr: other matrices' rows lie in the memory of `weight` too, and this brings there as many of
  // these rows at a time as it holds, restore.out. Whoever reads rows restores them first (restored_linear.h).
  RestoreLinearParams restore;
};

// Packs weights for products in 8-bit whole numbers, to which activations are rounded as well: each row of both with a
// scale of its own (int8_layout.h).
struct PackInt8Params {
  LinearWeights weights;
  void* packed = nullptr;  // int8_bytes(in, out)
};

// Lays weights out for decode products. `prepared` has prepared_linear_bytes(total_in, total_out) bytes; the
// part's rows become its rows from first_out on, its columns those from first_in on, so that several
// matrices (qkv and fc1; proj and fc2) may become one. Starts are multiples of 16 rows and 128 columns;
// parts cover the whole. kFp8: in 8 bits, with the part's own scale for each row (fp8.h); of weights
// that round_to_fp8 has rounded nothing is lost. Products agree with those from kNative; a backend
// may compute them in half precision.
struct PrepareLinearParams {
  LinearWeights weights;
  void* prepared = nullptr;
  PreparedFormat format = PreparedFormat::kNative;
  int total_in = 0;
  int total_out = 0;
  int first_out = 0;
  int first_in = 0;
  // Of a part of gate and up below each other: rows of both alternate, a gate's row in front of its up's.
  bool halves_alternate = false;
};

//   kSilu     x / (1 + exp(-x))
//   kGeluErf  x / 2 (1 + erf(x / sqrt(2)))
// A product does not end in these two.
enum class Activation { kNone, kGeluTanh, kSilu, kGeluErf };

// x and y must not overlap.
struct LinearParams {
  const void* x = nullptr;  // [num_rows, in] T
  std::int64_t x_stride = 0;
  LinearWeights weights;
  void* y = nullptr;  // [num_rows, out], y_dtype
  std::int64_t y_stride = 0;
  DType y_dtype = DType::kBF16;  // T, or kF32 for logits
  int num_rows = 0;
  Activation activation = Activation::kNone;
  int activation_begin = 0;  // first column of y that it applies to; 0 unless weights are prepared
  // y = activation(x W^T + b) + residual[row % residual_rows]; nullptr: none. May be y itself.
  const void* residual = nullptr;  // [residual_rows, out] T
  std::int64_t residual_stride = 0;
  int residual_rows = 0;
  // Unless nullptr: [num_rows], and x is in 8 bits (rows_to_fp8, NormParams::y_scales), row r
  // times x_scales[r]; the product is with weights.fp8. Not with `decode`; `in` is a multiple of
  // 16; x_scales lies on 16 bytes.
  const float* x_scales = nullptr;
  // Matrix shapes that occur with many rows (vision, prefill) and with few (decode) may use different
  // algorithms, each row-invariant. Decode steps set this.
  bool decode = false;
  // Unless nullptr: on the device, and columns of y that it does not name may be left as they are. Those that it
  // names have the same bits as among all. Only with `decode`.
  const StepLogits* needed = nullptr;
};

//   kLayer  y = (x - mean(x)) / sqrt(variance(x) + eps) * gamma + beta
//   kRms    y = x / sqrt(mean(x^2) + eps) * gamma                        (arXiv 1910.07467)
enum class NormKind { kLayer, kRms };

struct NormWeights {
  NormKind kind = NormKind::kLayer;
  const void* gamma = nullptr;  // [dim] T
  const void* beta = nullptr;   // [dim] T; kLayer only
  float eps = 1e-5f;
};

struct NormParams {
  const void* x = nullptr;  // [num_rows, dim] T
  std::int64_t x_stride = 0;
  NormWeights weights;
  void* y = nullptr;  // [num_rows, dim] T; may be x
  std::int64_t y_stride = 0;
  int num_rows = 0;
  int dim = 0;
  // Unless nullptr: out [num_rows], and y is in 8 bits, as rows_to_fp8 makes it.
  float* y_scales = nullptr;
  // Unless nullptr: out [num_rows, dim] T, the same rows as they are without y_scales. Only with these; not x.
  void* exact_y = nullptr;
};

// Bytes to normalised patch vectors: patches[n*grid*grid + p][c*ps*ps + dy*ps + dx] =
// lut[crops[n][py*ps+dy][px*ps+dx][c]], p = py*grid + px; columns from 3*ps*ps on are zero.
struct PatchifyParams {
  const std::uint8_t* crops = nullptr;  // [num_crops, crop_size, crop_size, 3]
  const void* lut = nullptr;            // [256] T
  void* patches = nullptr;              // [num_crops*grid*grid, patch_stride] T
  int num_crops = 0;
  int crop_size = 0;
  int patch_size = 0;
  int patch_stride = 0;
};

// Full attention inside each crop: softmax(q k^T / sqrt(head_dim)) v.
struct VisionAttentionParams {
  const void* qkv = nullptr;  // [num_crops*seq_len, 3*num_heads*head_dim] T: Q | K | V, head-major
  void* out = nullptr;        // [num_crops*seq_len, num_heads*head_dim] T
  int num_crops = 0;
  int seq_len = 0;
  int num_heads = 0;
  int head_dim = 0;
};

// Stitches the local crops' features, pools them to grid x grid (adaptive average), and puts
// them beside the global crop's: out[p] = [global[p] | pooled[p]]. With one tile (rows = cols = 1)
// the local crop is the global crop.
struct StitchAndPoolParams {
  const void* features =
      nullptr;          // [num_crops, grid*grid, dim] T: global crop, then tiles row-major
  void* out = nullptr;  // [grid*grid, 2*dim] T
  int tile_rows = 1;
  int tile_cols = 1;
  int grid = 0;            // patches per crop side (27)
  int overlap_margin = 0;  // patches (4)
  int dim = 0;
};

// Weights of the coordinate and size encoders. features: cos|sin of 2*pi*v*W.
struct RegionEncoderWeights {
  LinearWeights coord_encoder;           // [dim, coord_feat_dim]
  LinearWeights size_encoder;            // [dim, size_feat_dim]
  const void* coord_features = nullptr;  // [1, coord_feat_dim/2] T
  const void* size_features = nullptr;   // [2, size_feat_dim/2] T
  // What embed makes of every coordinate that decode_regions makes: row b is that of coordinate_of_bin(b, num_bins,
  // divisor). nullptr: there is no table. It saves the encoder's product where a coordinate is one of these, and changes no bit.
  const void* coord_table = nullptr;  // [num_bins, dim] T
  int num_bins = 0;
  int coord_divisor = 0;  // as in DecodeRegionsParams
};

// out[i] = embedding of inputs[index ? index[i] : i], zeros where the index is negative: a decode step
// has nothing to embed for padding and for rows that are done. A text id outside the vocabulary
// reads row 0.
// Intermediate Fourier values are rounded to T where the published reference rounds them: x, 2*pi*x,
// z, cos/sin.
struct EmbedParams {
  const TokenInput* inputs = nullptr;
  std::int64_t input_stride_bytes = sizeof(TokenInput);  // sizeof(RowState) when inputs lie in rows
  const std::int32_t* index = nullptr;                   // [num_tokens] or nullptr
  const void* wte = nullptr;                             // [vocab, dim] T
  const void* image_embeddings = nullptr;                // [pool rows, dim] T
  RegionEncoderWeights region;
  void* out = nullptr;  // [num_tokens, dim] T
  int num_tokens = 0;
  int dim = 0;
  int vocab = 0;
};

// Puts new sequences into their rows and page-table entries before a launch; both lists may be empty.
// A new row with kRowAdjustsLogits also gets its token memory: zeros, then its notes, of which no two
// are of the same token. Other rows' memories are left alone.
struct BeginStepParams {
  const std::int32_t* install_rows = nullptr;  // [num_installs]
  const RowState* installs = nullptr;          // [num_installs]
  const std::int32_t* first_notes =
      nullptr;  // [num_installs + 1]: install i has notes [i] to [i+1]
  const TokenNote* notes = nullptr;
  const PageTableDelta* deltas = nullptr;      // [num_deltas]
  const std::int32_t* num_installs = nullptr;  // read on the device
  const std::int32_t* num_deltas = nullptr;    // read on the device
  int max_installs = 0;                        // bounds for the launch
  int max_deltas = 0;
  RowState* row_states = nullptr;      // [max rows]
  std::int32_t* page_table = nullptr;  // [max rows, page_table_stride]
  int page_table_stride = 0;
  TokenMemory token_memory;
};

// From the rows of a decode step: positions, cache slots and attention lengths. A done row, and a
// padding row (rows[i] < 0), gets position 0 (its own may lie past the RoPE table), a cache slot in
// page 0 (trash), and sequences[i] = {its row or 0, i, num_tokens 0, num_cached 0, prefix_len 0}.
// A live row's sequence is {row, i, 1, position, 0}.
struct PlanDecodeParams {
  const std::int32_t* rows = nullptr;  // [num_rows], -1 = padding
  const RowState* row_states = nullptr;
  const std::int32_t* page_table = nullptr;
  int page_table_stride = 0;
  int num_rows = 0;
  std::int32_t* positions = nullptr;       // out [num_rows]
  std::int32_t* cache_slots = nullptr;     // out [num_rows]: page * kPageTokens + offset
  AttentionSequence* sequences = nullptr;  // out [num_rows]
  std::int32_t* input_index = nullptr;     // out [num_rows]: a live row, or -1 (EmbedParams)
  // Which logits the live rows will read (needed_logits.h).
  const AutomatonState* automata = nullptr;
  int vocab = 0;
  StepLogits* needed_logits = nullptr;  // out; nullptr: nobody asks
  // Which of them begin with the same pages (shared_prefix.h). Live rows of a slice with the same first page are sets in the order
  // of the step, of up to kMaxSharingRows; a set of one row shares nothing.
  SharedPrefix* shared_prefixes = nullptr;  // out [num_rows]; nullptr: nobody asks
  // Whether any of the rows lives: 0 or 1.
  std::uint32_t* any_lives = nullptr;  // out, one; nullptr: nobody asks
};

// The heads of an attention. Query head h reads the keys and values of head h / (num_heads / num_kv_heads)
// (grouped queries, arXiv 2305.13245); num_kv_heads divides num_heads.
struct AttentionHeads {
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;

  GAPLESS_HOST_DEVICE int q_width() const { return num_heads * head_dim; }
  GAPLESS_HOST_DEVICE int kv_width() const { return num_kv_heads * head_dim; }
  GAPLESS_HOST_DEVICE int qkv_width() const { return q_width() + 2 * kv_width(); }
  GAPLESS_HOST_DEVICE int group_size() const { return num_heads / num_kv_heads; }
  GAPLESS_HOST_DEVICE KvLayout kv_layout() const {
    return {.num_heads = num_kv_heads, .head_dim = head_dim};
  }

  friend bool operator==(const AttentionHeads&, const AttentionHeads&) = default;
};

// The KV cache of one layer: pages of elements of `format`, as AttentionHeads::kv_layout() says.
struct KvLayer {
  void* pages = nullptr;
  KvFormat format = KvFormat::kNative;
};

// Normalises each head of q and k where there are weights for it, rotates q and k (half-split pairs
// (j, j + rotary_dim/2) of the first rotary_dim dims), q in place, and writes k and v, as numbers of
// type T, into the cache in its format. A trash slot (KvLayout::is_trash) may be written or not.
struct RopeAndCacheParams {
  void* qkv = nullptr;  // [num_tokens, heads.qkv_width()] T: Q | K | V, each head-major
  std::int64_t qkv_stride = 0;
  const std::int32_t* positions = nullptr;    // [num_tokens]
  const std::int32_t* cache_slots = nullptr;  // [num_tokens]
  const float* rope_table = nullptr;          // [max_context, rotary_dim/2, 2]: cos, sin
  // kRms over head_dim, before the rotation; gamma nullptr: none. Both or neither.
  NormWeights q_norm, k_norm;
  KvLayer kv;
  int num_tokens = 0;
  AttentionHeads heads;
  int rotary_dim = 0;
};

// Copies whole pages in every layer, keys and values: a sequence that shares a cached prefix gets its own
// copy of the prefix's last, partly filled page.
struct CopyPagesParams {
  void* kv_base = nullptr;      // the whole cache: [num_layers, num_pages, page_bytes]
  std::int64_t page_bytes = 0;  // of one layer: KvLayout::page_size() * kv_element_bytes()
  std::int64_t num_pages = 0;
  int num_layers = 0;
  const PageCopy* copies = nullptr;          // [max_copies]
  const std::int32_t* num_copies = nullptr;  // read on the device
  int max_copies = 0;
};

// Query at position p of a sequence sees key k iff k <= p, or p and k are both below prefix_len.
// Keys and values come from the cache alone (this launch's were written by RopeAndCache).
struct PagedAttentionParams {
  const void* qkv = nullptr;  // [num_tokens, heads.qkv_width()] T; only the rotated q is read
  std::int64_t qkv_stride = 0;
  void* out = nullptr;  // [num_tokens, heads.q_width()] T; rows of done sequences: undefined
  std::int64_t out_stride = 0;
  KvLayer kv;
  const std::int32_t* page_table = nullptr;
  int page_table_stride = 0;
  const AttentionSequence* sequences = nullptr;  // [num_sequences]
  int num_sequences = 0;
  int num_tokens = 0;  // of the whole launch (an upper bound)
  // The longest sequence's num_tokens (an upper bound). 1 says that this is a decode step; a prefill
  // passes at least 2, so that a sequence of one token takes the same path alone and in a pack.
  int max_new_tokens = 1;
  int max_context = 0;  // upper bound of num_cached + num_tokens
  AttentionHeads heads;
  void* scratch = nullptr;  // attention_scratch_bytes()
};

// y = activation(gate) * (up + up_offset), for x = [gate | up].
struct GateParams {
  const void* x = nullptr;  // [num_rows, 2*dim] T
  std::int64_t x_stride = 0;
  void* y = nullptr;  // [num_rows, dim] T; may be x
  std::int64_t y_stride = 0;
  int num_rows = 0;
  int dim = 0;
  Activation activation = Activation::kSilu;
  float up_offset = 0;
};

// A block's feed-forward:
//   kDense    down(activation(up(n)))
//   kGated    down(activation(gate) * (up + up_offset)), [gate | up] = up(n)  (arXiv 2002.05202)
//   kExperts  the weighted sum of some of many gated ones, which a router chooses (ExpertsParams)
enum class FeedForwardKind { kDense, kGated, kExperts };

struct FeedForward {
  FeedForwardKind kind = FeedForwardKind::kDense;
  Activation activation = Activation::kGeluTanh;
  float up_offset = 0;
  LinearWeights up;    // [inner, dim]; gated: [2*inner, dim], the gate's rows first
  LinearWeights down;  // [dim, inner]
  // kExperts: up and down are those of the first expert, without biases. The others' lie right behind, one after the other, and so
  // do their copies in 8 bits (LinearWeights::fp8; both have them or neither, rows are multiples of 16 long then).
  int num_experts = 0;        // at most kMaxExperts
  int experts_per_token = 0;  // at most kMaxExpertsPerToken
  LinearWeights router;       // [num_experts, dim]

  int inner() const { return down.in; }
};

// What the sizes of an experts op follow from. num_experts 0: there are none.
struct ExpertSizes {
  int dim = 0;
  int inner = 0;  // of one expert
  int num_experts = 0;
  int experts_per_token = 0;

  friend bool operator==(const ExpertSizes&, const ExpertSizes&) = default;
};

// For each row, with logits = router(x) rounded to T: the experts_per_token experts of the largest
// logits, the lower index first among equals; their weights are the softmax of the chosen logits,
// computed in float32 and rounded to T. y = residual + sum over the chosen e of weight_e * out_e,
// where out_e is expert e's gated feed-forward of x, rounded to T.
//
// Weights of an expert that no row chose are not read; those of a chosen one are read once for many
// rows.
//
// With x_fp8 all products of experts are of rows in 8 bits: of these, and of an expert's inner rows, which are rounded to T and then
// as rows_to_fp8 does. The router's is not.
//
// The op may be launched as two halves: the first reads neither residual nor y, so other work may make the residual meanwhile.
// Nothing else may write x, logits or scratch in between. Which part of the work is in which half is the backend's to say.
enum class ExpertsHalf : std::uint8_t { kBoth, kFirst, kSecond };

struct ExpertsParams {
  const void* x = nullptr;  // [num_rows, dim] T
  // Unless nullptr: the rows in 8 bits, with their scales [num_rows], as a norm leaves them beside exact_y. ff has copies in 8 bits. Only
  // where Kernels::multiplies_fp8_experts(), and not with `decode`.
  const void* x_fp8 = nullptr;
  std::int64_t x_fp8_stride = 0;  // multiple of 16
  const float* x_scales = nullptr;
  const void* residual = nullptr;  // [num_rows, dim] T
  void* y = nullptr;               // [num_rows, dim] T; may be the residual, not x
  int num_rows = 0;
  FeedForward ff;  // kExperts
  bool decode = false;
  // Unless nullptr: router(x) rounded to T, [num_rows, num_experts] T, as an earlier op left it.
  const void* logits = nullptr;
  // Unless nullptr: those of a decode step, sequence i is row i. A row without new tokens has an undefined y, and experts that
  // only such rows chose need not be read.
  const AttentionSequence* sequences = nullptr;
  ExpertsHalf half = ExpertsHalf::kBoth;
  void* scratch = nullptr;  // experts_scratch_bytes()
};

// Scales of the query and value heads that depend on a token and its position p (Moondream 3 calls it tau).
// Keys are not scaled.
//   u = activation(qkv); t = tanh(u W^T): num_heads of them for the queries, then as many for the values
//   q_h <- q_h (t_q[h] + s[h]),  v_h <- v_h (t_v[h] + s[h]),  s[h] = 1/2 + sigmoid(alpha[h] ln(p + 1))
struct HeadScales {
  LinearWeights products;       // W: [2*num_heads, heads.qkv_width()], without a bias
  const void* alpha = nullptr;  // [num_heads] T; nullptr: heads are not scaled
  Activation activation = Activation::kGeluTanh;
  bool bf16_positions = true;  // s is rounded to bfloat16 on every backend (tau_position.h)
};

// Scales q and v in place. There are as many value heads as query heads.
struct ScaleHeadsParams {
  void* qkv = nullptr;  // [num_tokens, heads.qkv_width()] T: Q | K | V, each head-major
  std::int64_t qkv_stride = 0;
  const std::int32_t* positions = nullptr;  // [num_tokens]
  HeadScales scales;
  int num_tokens = 0;
  AttentionHeads heads;
  bool decode = false;
  void* scratch = nullptr;  // scale_heads_scratch_bytes()
};

// How a block's two branches meet the residual stream.
//   kParallel    x <- x + proj(attention(n)) + ff(n), n = norm(x)
//   kSequential  x <- x + proj(attention(norm(x))); x <- x + ff(ff_norm(x))
enum class Residual { kParallel, kSequential };

// What prepare_linear made of all experts' matrices below each other; nullptr: not prepared.
struct PreparedExperts {
  // [num_experts * 2 * inner, dim]: of each expert gates and ups alternate.
  const void* up = nullptr;
  const void* down = nullptr;  // [num_experts * dim, inner]
};

// What layers with experts have read in decode steps, by how many rows of a step lived.
struct ChosenExperts {
  std::uint64_t layers[kMaxSeats + 1];
  // Of those layers together. An expert that several rows chose counts once.
  std::uint64_t experts[kMaxSeats + 1];
};

// One block of a decoder: a layer is data. Biases are optional (LinearWeights::bias).
struct DecoderBlock {
  Residual residual = Residual::kParallel;
  NormWeights norm;
  NormWeights ff_norm;         // kSequential only
  LinearWeights qkv;           // [heads.qkv_width(), dim]
  HeadScales head_scales;      // before everything else that is done to heads
  NormWeights q_norm, k_norm;  // as in RopeAndCacheParams
  LinearWeights proj;          // [dim, heads.q_width()]
  FeedForward ff;
  // What prepare_linear made of qkv and ff.up below each other, and of proj and ff.down beside each
  // other (prepared_parts.h); nullptr: not prepared. Experts are prepared apart, and routers are not.
  const void* prepared_in = nullptr;
  const void* prepared_out = nullptr;
  PreparedExperts prepared_experts;
  PreparedFormat prepared_format = PreparedFormat::kNative;
  KvLayer kv;  // the same format in all blocks
};

// logits = norm(x) W^T + b.
struct DecoderHead {
  NormWeights norm;
  LinearWeights linear;     // [vocab, dim]
  void* normed = nullptr;   // scratch, [num_tokens, dim] T
  float* logits = nullptr;  // out [num_tokens, vocab]
  // As in LinearParams, written by a launch of the same step; nullptr: all logits.
  const StepLogits* needed = nullptr;
};

// Runs blocks in order over the new tokens of several sequences, in place. A decode step (one token
// per sequence) may end with the head. A prefill may name the tokens whose results are wanted: the
// last block then computes, behind its attention, theirs alone, the same bits as among all. Scratch
// contents are undefined afterwards.
//
// A decode step: a sequence without new tokens is a row that is done, or padding. It reads no page and
// writes none but page 0; its x and logits are undefined. When no sequence has a token, the fast
// paths do nothing at all.
struct DecoderBlocksParams {
  const DecoderBlock* blocks = nullptr;  // [num_blocks], host memory, read during the call
  int num_blocks = 0;
  const DecoderHead* head = nullptr;          // host memory; nullptr: none
  void* x = nullptr;                          // [num_tokens, dim] T
  const std::int32_t* positions = nullptr;    // [num_tokens]
  const std::int32_t* cache_slots = nullptr;  // [num_tokens]
  const float* rope_table = nullptr;          // as in RopeAndCacheParams
  const std::int32_t* page_table = nullptr;
  int page_table_stride = 0;
  const AttentionSequence* sequences = nullptr;  // [num_sequences]; decode: sequence i is token i
  // [num_sequences], of a decode step, written by a launch of the same step: what a backend may read once for several rows. It
  // changes no bit of a result. nullptr: not told.
  const SharedPrefix* shared_prefixes = nullptr;
  // A decode step's rows and their states, as PlanDecodeParams has them; nullptr: not told. Where they
  // are told, a backend may look whether anybody lives before the launches ahead of this one have
  // ended, so only what ended before the step's first launch may have written them (a decode step
  // installs no row). `sequences` has the last word.
  const std::int32_t* rows = nullptr;    // [num_sequences]
  const RowState* row_states = nullptr;  // [max rows]
  // One, of a decode step, written by a launch of the same step: 0 where no row lives. Then nothing of what the op writes is read,
  // so it may do nothing. nullptr: not told.
  const std::uint32_t* any_lives = nullptr;
  // One, of a decode step: a backend that knows how many experts a layer's rows choose adds it. nullptr: nobody asks.
  ChosenExperts* chosen_experts = nullptr;
  int num_sequences = 0;
  int num_tokens = 0;
  int max_new_tokens = 1;  // as in PagedAttentionParams
  int max_context = 0;
  AttentionHeads heads;
  int rotary_dim = 0;
  bool decode = false;
  const std::int32_t* wanted_tokens = nullptr;  // [num_wanted]; nullptr: the results are in x
  int num_wanted = 0;
  void* wanted_x = nullptr;  // out [num_wanted, dim] T; x is undefined then
  // Scratch. N = max(num_tokens, num_wanted).
  void* norm = nullptr;       // [N, dim] T
  void* qkv = nullptr;        // [N, max(heads.qkv_width(), dim)] T
  void* attention = nullptr;  // [N, max(heads.q_width(), dim)] T
  void* inner = nullptr;      // [N, ff.up.out] T; in a prefill at least scale_heads_scratch_bytes()
  float* row_scales = nullptr;  // [N]; nullptr: only without weights in 8 bits
  void* router_rows = nullptr;  // [N, dim] T; nullptr: only without experts in 8 bits
  // The larger of attention_scratch_bytes() and, in a decode step, scale_heads_scratch_bytes().
  void* attention_scratch = nullptr;
  // experts_scratch_bytes()
  void* op_scratch = nullptr;
  void* block_scratch = nullptr;  // decoder_blocks_scratch_bytes()
};

// y[i] = x[index[i]].
struct GatherRowsParams {
  const void* x = nullptr;  // [*, dim] T
  const std::int32_t* index = nullptr;
  void* y = nullptr;  // [num_rows, dim] T
  int num_rows = 0;
  int dim = 0;
};

// Picks one token per row. The settings are those of RowState::sampling.
//
// 1. Candidates: with an automaton, those of the current state (AutomatonState), whatever the denied ids
//    and masks say; otherwise every token but the denied ids and, in a row with a mask (a kRowHostMask row,
//    or one with a grammar), those whose bit is 0. While num_generated < min_tokens stop ids drop out,
//    and candidates whose logit is not finite always do. When none is left: the row's first stop id, or
//    token 0 if it has none.
// 2. In a kRowAdjustsLogits row a candidate's logit l becomes, in float32 and in this order, with
//    `bias` and `uses` from the row's token memory and n the number of uses in the answer:
//      l + bias
//      repetition_penalty r, for tokens of the prompt or the answer: l > 0 ? l / r : l * r
//      l - n * frequency_penalty - (n > 0 ? presence_penalty : 0)
//    Sources: bias, presence and frequency as in OpenAI's API reference ("prior to sampling";
//    mu[j] - c[j] * frequency - (c[j] > 0) * presence, c counting the answer's tokens); repetition as
//    in CTRL (Keskar et al. 2019, section 4.1) with the sign rule of Hugging Face's
//    RepetitionPenaltyLogitsProcessor, which counts the prompt too; the order is vLLM's.
//    Everything below sees the adjusted logits.
// 3. Greedy when temperature <= 0 (or NaN), or when a candidate's logit was not finite: the largest
//    logit, the lowest id among equals.
// 4. Otherwise p = softmax(logit / temperature) over the candidates, in order of falling logit, the
//    lower id first among equals. Each filter keeps a prefix of that order, of at least one token;
//    all look at the same p (nothing is renormalised in between), so the shortest prefix wins:
//      top_k > 0: the first top_k
//      min_p > 0: those with p >= min_p * (p of the first)
//      top_p < 1: those where the sum of the p before them is <= top_p
// 5. u = sampling_uniform(seed, num_generated), see sampling_uniform.h; the token is the first kept
//    one at which the running sum of p exceeds u * (sum of the kept p).
//
// 6. In an automaton's state with `otherwise` a token without an edge is replaced by `otherwise`.
//
// A row with a short list (needed_logits.h) reads no logits but those of its list. A single candidate is picked without
// reading its logit, finite or not; its confidence is 1.
//
// logprob = logit - log(sum of exp(logit)) over the whole vocabulary (finite logits only), before
// masks, adjustments, temperature and filters, of the token before it is replaced; kImpossibleLogprob
// when the token's own logit is not finite; 0 in a kRowSkipsLogprob row.
struct SampleParams {
  const float* logits = nullptr;  // [num_rows, vocab]
  std::int64_t logits_stride = 0;
  const std::int32_t* rows = nullptr;  // [num_rows], -1 = padding
  const RowState* row_states = nullptr;
  const AutomatonState* automata = nullptr;
  const std::uint8_t* token_classes =
      nullptr;  // [vocab] of AutomatonState::classes; nullptr: no state has them
  const std::uint32_t* host_masks =
      nullptr;  // [num_rows, host_mask_stride] bits, 1 = allowed; read only for kRowHostMask rows
  int host_mask_stride = 0;  // words
  // [num_rows, host_mask_stride] of GrammarMasksParams; read only for rows with a grammar and without kRowHostMask
  const std::uint32_t* grammar_masks = nullptr;
  // The op right in front of this one on the stream is grammar_masks, and all else that is read here was there before that one.
  bool behind_grammar_masks = false;
  TokenMemory token_memory;        // read only for kRowAdjustsLogits rows
  std::int32_t* tokens = nullptr;  // out [num_rows]; -1 for padding and done rows
  float* logprobs = nullptr;       // out [num_rows]
  // out [num_rows]: `token` of live kRowWantsConfidence rows, exp(l) / (sum of exp(l) over the candidates) by the
  // logits l before adjustments; 0 for a token that was no candidate. May be nullptr without such rows.
  TokenConfidence* confidences = nullptr;
  int num_rows = 0;
  int vocab = 0;
  void* scratch = nullptr;  // sample_scratch_bytes()
};

// The tokens' bytes, one behind the other: those of token t are bytes[first[t]] up to bytes[first[t + 1]]. A token without bytes is
// no text, and no grammar allows it.
struct TokenTexts {
  const std::int32_t* first = nullptr;  // [vocab + 1]
  const std::uint8_t* bytes = nullptr;
  // [vocab]: the first eight bytes of each token once more, the first in the lowest bits, zeros behind its end. Most tokens need
  // only these, and need not wait for where their bytes are.
  const std::uint64_t* heads = nullptr;
  const TextSummary* summaries = nullptr;  // [vocab]
  int vocab = 0;
  std::int32_t eos_id = 0;  // ends an answer
};

// For each row with a grammar that is not done: brings the row's place in its grammar up to date (a row that has generated nothing
// begins it, another one takes the bytes of its last token, which is its next input), and finds the tokens that are legal
// there: those all of whose bytes the grammar takes, and eos_id where the answer may end. Once for each step of a row, before its
// sampling. A row whose last token was not legal gets no token. Masks of other rows are not written.
//
// What was found once is kept in `cache` and copied from there (grammar_mask_cache.h), except by the oracle.
struct GrammarMasksParams {
  const std::int32_t* rows = nullptr;  // [num_rows], -1 = padding
  const RowState* row_states = nullptr;
  const GrammarTables* grammars = nullptr;  // by RowState::grammar
  GrammarRow* grammar_rows = nullptr;       // in and out, [max rows]
  TokenTexts texts;
  GrammarMaskCache cache;
  std::uint32_t* masks =
      nullptr;          // out [num_rows, mask_stride], bits behind the vocabulary are zero
  int mask_stride = 0;  // words, at least (vocab + 31) / 32
  int num_rows = 0;
  GrammarSearch* searches = nullptr;  // [num_rows], scratch: rows whose place is new
  BoundedToken* bounded =
      nullptr;  // [num_rows, kMaxBoundedTokens], scratch: what the searches list
  GrammarArrivals* arrivals = nullptr;  // one, zeros before the first launch
};

// The most likely tokens of the rows that ask: for k = num_top_logprobs, the k tokens of the largest
// logits in falling order, the lower id first among equals, each with its logprob as SampleParams
// defines it (so whatever masks, denied ids, adjustments, temperature and filters say). Tokens whose logit is not
// finite are left out; when fewer than k are left, {-1, kImpossibleLogprob} follows. Only the first k
// entries of a row are written, and none for rows that do not ask and for padding.
//
// Reads nothing that the sampling changes, so it may come after it.
struct TopLogprobsParams {
  const float* logits = nullptr;  // [num_rows, vocab]
  std::int64_t logits_stride = 0;
  const std::int32_t* rows = nullptr;  // [num_rows], -1 = padding
  const RowState* row_states = nullptr;
  TopLogprob* top = nullptr;  // out [num_rows, kMaxTopLogprobs]
  int num_rows = 0;
  int vocab = 0;
};

// A head is fc2(gelu(fc1(h))) with tanh GELU, or fc2(h) alone where fc1 has no outputs. h is the hidden
// state after each of the norms that there are, in order.
struct RegionDecoderWeights {
  NormWeights norms[2];                // gamma nullptr: none
  LinearWeights coord_fc1, coord_fc2;  // [inner, dim], [coord_bins, inner or dim]
  LinearWeights size_fc1, size_fc2;    // [2*size_bins, inner or dim]: width bins, then height bins

  int dim() const { return coord_fc1.out > 0 ? coord_fc1.in : coord_fc2.in; }
};

// For rows whose sampled token is coord_id or size_id and whose kRowDecodesRegions is set: argmax of
// the region heads on the same step's hidden state, the lowest bin among equals. values[i] =
// {bin/coord_divisor, 0} for a coordinate, {width, height}, each 2^(10*bin/(bins-1) - 10) or with
// linear_sizes bin/bins, for a size. Other rows keep their values.
struct DecodeRegionsParams {
  const void* hidden = nullptr;  // [num_rows, dim] T: last hidden state before post_ln
  const std::int32_t* tokens = nullptr;
  const std::int32_t* rows = nullptr;
  const RowState* row_states = nullptr;
  RegionDecoderWeights weights;
  float* values = nullptr;  // out [num_rows, 2]
  // out [num_rows]: x and y of the kRowWantsConfidence rows whose values are written, each exp(l) / (sum of exp(l)
  // over its bins), y 0 for a coordinate. May be nullptr without such rows.
  TokenConfidence* confidences = nullptr;
  int num_rows = 0;
  int dim = 0;
  int coord_divisor = 0;  // 0: the number of bins less one
  bool linear_sizes = false;
  std::int32_t coord_id = 0;
  std::int32_t size_id = 0;
  void* scratch = nullptr;  // region_scratch_bytes()
};

// Ends a step for its rows: writes the outputs, and unless the row was done: next input, position + n
// (n = tokens consumed by this step), num_generated + 1, automaton transition, done at a stop id or
// at the length limit (a stop id at the limit is kStopped).
//   next input       {kCoord, token, x, 0} or {kSize, token, x, y} when the token is coord_id or
//                    size_id and the row has kRowDecodesRegions; else {kText, token, 0, 0}. The
//                    output carries the same x and y.
//   automaton        the first edge with tokens[e] == token moves to next[e] (kNoAutomaton: free from
//                    here on), and without one the token's class c, of a closed state that lists it, to class_next[c];
//                    another token, or one with a forbidden edge, stays put. By the exit of
//                    an open state: max_generated = num_generated + max_after_exit, with this token counted.
//   output.confidence  of a kRowWantsConfidence row; x and y only where the next input has them
//   token memory     of a kRowAdjustsLogits row: the token's uses + 1, up to kMaxTokenUses.
//   output.position  of the last token consumed: position + n - 1, with the old position.
// A done row's output is {-1, kAlreadyDone, 0, 0, 0, its position}; padding's is the same at 0.
struct AdvanceRowsParams {
  const std::int32_t* rows = nullptr;    // [num_rows], -1 = padding
  const std::int32_t* tokens = nullptr;  // [num_rows]
  const float* logprobs = nullptr;
  const float* values = nullptr;                  // [num_rows, 2]
  const TokenConfidence* confidences = nullptr;   // [num_rows]; nullptr: nobody asks
  const std::int32_t* tokens_consumed = nullptr;  // [num_rows]; nullptr: 1 each (decode)
  const AutomatonState* automata = nullptr;
  const std::uint8_t* token_classes = nullptr;  // as in SampleParams
  RowState* row_states = nullptr;
  TokenMemory token_memory;
  StepOutput* outputs = nullptr;  // out [num_rows]
  int num_rows = 0;
  std::int32_t coord_id = 0;
  std::int32_t size_id = 0;
};

// values of random_weights.h for rows of one tensor, converted to T; made on the device from the seed.
struct FillRandomParams {
  void* out = nullptr;  // [num_rows, row_stride] T; columns from row_size on are zero
  std::int64_t first_row = 0;
  std::int64_t num_rows = 0;
  std::int64_t row_size = 0;
  std::int64_t row_stride = 0;
  std::uint64_t seed = 0;
  std::uint64_t tensor_hash = 0;
  float mean = 0;
  float stddev = 0;
};

// Rounds every row of a dense matrix to e4m3 times a power of two, in place (fp8.h).
struct RoundToFp8Params {
  void* weight = nullptr;  // [num_rows, row_size] T, finite
  std::int64_t num_rows = 0;
  std::int64_t row_size = 0;
};

// Rows for products in 8 bits: y[r] = e4m3 numbers, scales[r] times which are the nearest to x[r];
// scales[r] is a power of two that depends on the row's largest value (fp8.h). y may be x where a
// row of y begins where that of x does.
struct RowsToFp8Params {
  const void* x = nullptr;  // [num_rows, dim] T, finite
  std::int64_t x_stride = 0;
  void* y = nullptr;  // [num_rows, dim], fp8_element_bytes() each
  std::int64_t y_stride = 0;
  float* scales = nullptr;  // out [num_rows]
  int num_rows = 0;
  int dim = 0;
};

class Kernels {
 public:
  virtual ~Kernels() = default;

  virtual const char* name() const = 0;  // "reference", "cpu", "cuda"
  // Of cuda, the path that the device runs ("9.0a": kernels/cuda/cuda_path.h).
  virtual const char* path() const { return ""; }
  virtual DType activation_dtype() const = 0;

  virtual Status linear(Stream& stream, const LinearParams& params) = 0;
  // Two products of a decode step with the same number of rows, neither of which reads what the other writes.
  // One after the other where a backend has nothing better.
  virtual Status linear_pair(Stream& stream, const LinearParams& first, const LinearParams& second);
  // Bytes of prepared weights; 0 where the backend has no use for them (prepare_linear then does nothing).
  virtual std::size_t prepared_linear_bytes(int /*total_in*/, int /*total_out*/,
                                            PreparedFormat /*format*/) const {
    return 0;
  }
  virtual Status prepare_linear(Stream& /*stream*/, const PrepareLinearParams& /*params*/) {
    return ok_status();
  }
  virtual Status restore_linear(Stream& /*stream*/, const RestoreLinearParams& /*params*/) {
    return make_error(StatusCode::kUnavailable, "{} prepares no weights", name());
  }
  // Bytes of weights packed for products in 8-bit whole numbers; 0 where the backend has no such products.
  virtual std::size_t int8_bytes(int /*in*/, int /*out*/) const { return 0; }
  virtual Status pack_int8(Stream& /*stream*/, const PackInt8Params& /*params*/) {
    return make_error(StatusCode::kUnavailable, "{} has no products in 8-bit whole numbers",
                      name());
  }
  // For products of many rows: tries, at each of these numbers of rows (and for those up to it),
  // which way is the fastest, and takes it from then on; no bit changes. What `params` says of
  // weights, strides, activation and residual counts; x, y and the residual are not touched. For
  // start-up: unlike an op it allocates, computes and waits.
  virtual Status tune_linear(Stream& /*stream*/, const LinearParams& /*params*/,
                             std::span<const int> /*row_counts*/) {
    return ok_status();
  }
  virtual Status norm(Stream& stream, const NormParams& params) = 0;
  virtual Status patchify(Stream& stream, const PatchifyParams& params) = 0;
  virtual Status vision_attention(Stream& stream, const VisionAttentionParams& params) = 0;
  virtual Status stitch_and_pool(Stream& stream, const StitchAndPoolParams& params) = 0;
  virtual Status embed(Stream& stream, const EmbedParams& params) = 0;
  virtual Status begin_step(Stream& stream, const BeginStepParams& params) = 0;
  virtual Status plan_decode(Stream& stream, const PlanDecodeParams& params) = 0;
  virtual Status copy_pages(Stream& stream, const CopyPagesParams& params) = 0;
  virtual Status rope_and_cache(Stream& stream, const RopeAndCacheParams& params) = 0;
  virtual Status paged_attention(Stream& stream, const PagedAttentionParams& params) = 0;
  // Composed of the ops above (decoder_blocks.cpp) where a backend has nothing better.
  virtual Status decoder_blocks(Stream& stream, const DecoderBlocksParams& params);
  // Ok where the backend runs these blocks in its fastest way; otherwise unavailable, with the reason why it
  // composes them. For a decode step of `params`, whose pointers to activations are not looked at.
  virtual Status check_fast_decoder(const DecoderBlocksParams& /*params*/) const {
    return ok_status();
  }
  virtual Status gate(Stream& stream, const GateParams& params) = 0;
  virtual Status experts(Stream& stream, const ExpertsParams& params) = 0;
  // Whether experts multiply rows in 8 bits (ExpertsParams::x_fp8).
  virtual bool multiplies_fp8_experts() const { return false; }
  virtual Status scale_heads(Stream& stream, const ScaleHeadsParams& params) = 0;
  // scale_heads, then rope_and_cache of the same rows; so composed where a backend has nothing better.
  virtual Status scale_rope_and_cache(Stream& stream, const ScaleHeadsParams& scale,
                                      const RopeAndCacheParams& rope);
  virtual Status gather_rows(Stream& stream, const GatherRowsParams& params) = 0;
  virtual Status grammar_masks(Stream& stream, const GrammarMasksParams& params) = 0;
  virtual Status sample(Stream& stream, const SampleParams& params) = 0;
  virtual Status top_logprobs(Stream& stream, const TopLogprobsParams& params) = 0;
  virtual Status decode_regions(Stream& stream, const DecodeRegionsParams& params) = 0;
  virtual Status advance_rows(Stream& stream, const AdvanceRowsParams& params) = 0;
  virtual Status fill_random(Stream& stream, const FillRandomParams& params) = 0;
  virtual Status round_to_fp8(Stream& stream, const RoundToFp8Params& params) = 0;
  virtual Status rows_to_fp8(Stream& stream, const RowsToFp8Params& params) = 0;
  // What an element of rows in 8 bits takes: 1 byte on a GPU; on the CPU, which has no such
  // products, the number as T, its scale multiplied in.
  virtual std::size_t fp8_element_bytes() const { return sizeof(float); }
  // Writes the device's clock, in nanoseconds, to *stamp when the stream gets there.
  virtual Status stamp_time(Stream& stream, std::uint64_t* stamp) = 0;

  // Upper bounds of the scratch that the ops above need at these sizes; 0 when none.
  virtual std::size_t attention_scratch_bytes(int max_tokens, int max_sequences, int max_context,
                                              const AttentionHeads& heads) const = 0;
  virtual std::size_t decoder_blocks_scratch_bytes(int /*max_rows*/, int /*dim*/, int /*ff_dim*/,
                                                   const AttentionHeads& /*heads*/,
                                                   int /*max_context*/,
                                                   const ExpertSizes& /*experts*/) const {
    return 0;
  }
  virtual std::size_t sample_scratch_bytes(int max_rows, int vocab) const = 0;
  virtual std::size_t experts_scratch_bytes(int max_rows, const ExpertSizes& sizes) const = 0;
  virtual std::size_t scale_heads_scratch_bytes(int max_tokens,
                                                const AttentionHeads& heads) const = 0;
  // inner_dim 0: heads of one product.
  virtual std::size_t region_scratch_bytes(int max_rows, int dim, int inner_dim,
                                           int max_out) const = 0;
};

// The kernels that fit a device: cpu/ for DeviceKind::kCpu, cuda/ for kCuda. `compute` is the CPU's T; a GPU
// computes in bfloat16, and kFloat32 is an error there.
StatusOr<std::unique_ptr<Kernels>> make_kernels(Device& device,
                                                Compute compute = Compute::kPortable);

// reference/ runs on the CPU device only.
std::unique_ptr<Kernels> make_reference_kernels();
std::unique_ptr<Kernels> make_cpu_kernels(DType dtype);
// Unavailable where CUDA was absent at build time.
StatusOr<std::unique_ptr<Kernels>> make_cuda_kernels(Device& device);

}  // namespace gapless
