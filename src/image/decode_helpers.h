// Threads that may help to decode a picture. They belong to whoever decodes (the pool that resizes the
// picture); the decoder says whether it has work for them.
#pragma once

#include <algorithm>
#include <functional>

#include "base/mutex.h"

namespace gapless {

// More bring little: each of them reads all bits down to its rows.
inline constexpr int kMaxDecodeHelpers = 3;

class DecodeHelpers {
 public:
  // Of a pool of so many threads a quarter helps: the others have rows to resize.
  explicit DecodeHelpers(int pool_threads)
      : count_(std::min(kMaxDecodeHelpers, pool_threads / 4)) {}
  DecodeHelpers(const DecodeHelpers&) = delete;
  DecodeHelpers& operator=(const DecodeHelpers&) = delete;

  // So many threads call help(), at some time or never.
  int count() const { return count_; }

  // A helper's thread: waits until the decoder offers work and does it, or closes.
  void help();

  // The decoder's thread. Helpers run `work`, each once and beside each other, until close().
  void offer(const std::function<void()>& work);
  // The decoder's thread, as soon as it knows that it needs no help (any more), and in any case: returns when nobody helps.
  void close();

 private:
  const int count_;
  Mutex mutex_;
  ConditionVariable changed_;
  const std::function<void()>* work_ GAPLESS_GUARDED_BY(mutex_) = nullptr;
  bool closed_ GAPLESS_GUARDED_BY(mutex_) = false;
  int num_helping_ GAPLESS_GUARDED_BY(mutex_) = 0;
};

}  // namespace gapless
