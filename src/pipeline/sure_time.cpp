#include "pipeline/sure_time.h"

#include <algorithm>

namespace gapless {

std::size_t SureTime::index(const Work& work) {
  switch (work.kind) {
    case StepKind::kDecode:
      return static_cast<std::size_t>(
          std::bit_width(static_cast<unsigned>(work.num_live_rows - 1)));
    case StepKind::kPrefill:
      return kDecodeHistories;
    case StepKind::kEncode:
      return kDecodeHistories + 1;
  }
  return 0;
}

void SureTime::committed(const Work& work, std::int64_t duration_ns) {
  if (work.num_live_rows <= 0 || work.size <= 0) return;
  History& history = histories_[index(work)];
  history.last[static_cast<std::size_t>(history.num_seen++ % kRemembered)] = {work.size,
                                                                              duration_ns};
}

std::int64_t SureTime::of(const Work& work) const {
  if (work.num_live_rows <= 0 || work.size <= 0) return 0;
  const History& history = histories_[index(work)];
  if (history.num_seen < kRemembered) return 0;
  double least_ns = 0;
  for (const Seen& seen : history.last) {
    const double scaled =
        static_cast<double>(seen.duration_ns) * std::min(1.0, work.size / seen.size);
    least_ns = least_ns == 0 ? scaled : std::min(least_ns, scaled);
  }
  return static_cast<std::int64_t>(kSureShare * least_ns);
}

}  // namespace gapless
