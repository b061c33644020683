// A StageRecorder that keeps every stage on the host as float32. Waits for the stream at each
// stage.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "model/stage_recorder.h"

namespace gapless {

struct RecordedStage {
  std::int64_t num_rows = 0;
  std::int64_t num_columns = 0;
  std::vector<float> values;  // row-major

  const float* row(std::int64_t i) const { return values.data() + i * num_columns; }
};

class RecordedStages final : public StageRecorder {
 public:
  explicit RecordedStages(Device& device) : device_(device) {}

  Status record(Stream& stream, std::string_view stage, const StageView& view) override;

  // The stage's recordings in order of launch; the test fails in at() when there is none.
  const std::vector<RecordedStage>& all(const std::string& stage) const {
    return stages_.at(stage);
  }
  const RecordedStage& last(const std::string& stage) const { return all(stage).back(); }
  bool has(const std::string& stage) const { return stages_.contains(stage); }
  void clear() { stages_.clear(); }

 private:
  Device& device_;
  std::map<std::string, std::vector<RecordedStage>> stages_;
};

}  // namespace gapless
