// How fast a GPU would be that nobody here has: from what the vendor says of it (gpu_specs.h) and what this engine
// reached, as shares of the same figures, on a GPU that was measured.
//
//   forward     = bytes of the step / (bandwidth x share)        the share of so many rows
//   step        = forward + sampling                             sampling: launches, as measured
//   period      = step + what the device idles between two steps at depth 2, as measured
//   blocking    = step + what the host takes between two steps at depth 1, as measured
//   gain        = blocking / period x (1 - z) - 1                overlap_model.h
//   encode      = operations / (matrix rate x share)             the share of about so many crops
//   prefill     = operations / (matrix rate x share)
//   first token = encode + prefill + the rest of a lone request's first token, as measured
//
// Bytes and operations are those of the model's own description. Shares are of the vendor's figures, on both sides.
// What is "as measured" is the measured GPU's host, not the user's.
//
// A path that has not run anywhere has no shares: the prediction takes another path's and says so.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "measure/gpu_specs.h"
#include "model/moondream/model_config.h"

namespace gapless {

struct MeasuredStep {
  int rows = 0;
  double context = 0;          // cached tokens of a row
  double bandwidth_share = 0;  // that the forward reached
  double sampling_ms = 0;
  double idle_ms = 0;  // of the device before a step, depth 2
  double host_ms = 0;  // between two steps, depth 1
};

struct MeasuredWork {
  int size = 0;  // crops of a picture, or sequences of a prefill
  double matrix_share = 0;
};

// What this engine reached on one path of one GPU.
struct MeasuredPath {
  GpuSpec gpu;
  std::string path;                   // "9.0a", or a name of bench/paths.py
  std::vector<std::string> files;     // where it is from, without the folder
  std::vector<MeasuredStep> steps;    // 1, 8 and 32 rows
  std::vector<MeasuredWork> encodes;  // one picture each, by size
  MeasuredWork prefill;               // of one sequence
  int prefill_tokens = 0;
  double rest_ms = 0;  // of a lone request's first token: everything but encode and prefill
};

// From the result files in `folder` (bench/results): decode-, forward-rest-, overlap- and serve-h200.json, and paths-h200.json
// where it is, whose names of paths are looked for first. `gpu`: for whom. The error names the file and the field.
StatusOr<MeasuredPath> load_measured_path(const std::string& folder, const ModelConfig& config,
                                          const GpuSpec& gpu);

struct PredictedStep {
  int rows = 0;
  double step_ms = 0;
  double period_ms = 0;    // depth 2
  double blocking_ms = 0;  // depth 1
  double gain = 0;         // of tokens per second by depth 2, a share
};

struct GpuPrediction {
  std::vector<PredictedStep> steps;
  double encode_ms = 0;
  double prefill_ms = 0;
  double first_token_ms = 0;
};

// `num_crops`: of the picture of the first token.
GpuPrediction predict_gpu(const GpuSpec& gpu, const MeasuredPath& measured,
                          const ModelConfig& config, int num_crops);

// The GPU with so much less bandwidth and matrix rate that none of its multiprocessors does more than one of `seen` does by
// the vendor's figures. Shares measured on `seen` say nothing about faster ones.
GpuSpec within_seen_rates(const GpuSpec& gpu, const GpuSpec& seen);

}  // namespace gapless
