// Asks for each row of macroblocks of a lossy WebP whether to decode on.
//
// libwebp decodes all that the bytes it was given make, however much that is: of a picture of one colour a few bytes make
// thousands of rows. What it does ask is a worker interface, once for each 16 pixel rows (WebPSetWorkerInterface, which
// the library exports so that programs bring their own threads). Ours has no threads: it asks, and then does the row, or tells the
// library that a worker failed, which ends the decoding as the library's own errors do.
#pragma once

#include "image/stop_check.h"

namespace gapless::internal {

// As long as it lives, decoders of this thread ask `stop`, if they were told to use threads (options.use_threads) and the
// picture is at least 512 pixels wide; of narrower ones libwebp gives its workers nothing. One on a thread at a time.
class WebpRowStops {
 public:
  explicit WebpRowStops(const StopCheck& stop);
  ~WebpRowStops();
  WebpRowStops(const WebpRowStops&) = delete;
  WebpRowStops& operator=(const WebpRowStops&) = delete;
};

}  // namespace gapless::internal
