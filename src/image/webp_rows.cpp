#include "image/webp_rows.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "base/log.h"

// What libwebp's own thread_utils.h declares, which distributions do not install. The same since version 0.4.1 (2014);
// whether this library still has it so is tried out before it is used.
extern "C" {
struct WebPWorker {
  void* impl;
  int status;  // 0: ended, 1: ready
  int (*hook)(void*, void*);
  void* data1;
  void* data2;
  int had_error;
};
struct WebPWorkerInterface {
  void (*Init)(WebPWorker* worker);
  int (*Reset)(WebPWorker* worker);
  int (*Sync)(WebPWorker* worker);
  void (*Launch)(WebPWorker* worker);
  void (*Execute)(WebPWorker* worker);
  void (*End)(WebPWorker* worker);
};
int WebPSetWorkerInterface(const WebPWorkerInterface* winterface);
const WebPWorkerInterface* WebPGetWorkerInterface(void);
}

namespace gapless::internal {
namespace {

thread_local const StopCheck* stop_of_this_thread = nullptr;

void init(WebPWorker* worker) {
  *worker = {};
}

int reset(WebPWorker* worker) {
  worker->had_error = 0;
  worker->status = 1;
  return 1;
}

int sync(WebPWorker* worker) {
  return worker->had_error == 0 ? 1 : 0;
}

void execute(WebPWorker* worker) {
  const bool stopped = stop_of_this_thread != nullptr && is_stopped(*stop_of_this_thread);
  if (stopped || worker->hook == nullptr || worker->hook(worker->data1, worker->data2) == 0) {
    worker->had_error = 1;
  }
}

void end(WebPWorker* worker) {
  worker->status = 0;
}

// Whether the library's own functions take a worker for what it is here.
bool knows_workers(const WebPWorkerInterface& theirs) {
  constexpr std::byte kUntouched{0xaa};
  alignas(WebPWorker) std::byte memory[4 * sizeof(WebPWorker)];
  std::fill(std::begin(memory), std::end(memory), kUntouched);
  auto* const worker = reinterpret_cast<WebPWorker*>(memory);
  theirs.Init(worker);
  const std::byte* const whole = memory;
  const std::byte* const behind = whole + sizeof(WebPWorker);
  if (!std::all_of(whole, behind, [](std::byte byte) { return byte == std::byte{0}; }) ||
      !std::all_of(behind, whole + sizeof(memory),
                   [](std::byte byte) { return byte == kUntouched; })) {
    return false;
  }
  int first = 1, second = 2;
  worker->data1 = &first;
  worker->data2 = &second;
  worker->hook = [](void* one, void* other) {
    std::swap(*static_cast<int*>(one), *static_cast<int*>(other));
    return 0;
  };
  theirs.Execute(worker);
  return first == 2 && second == 1 && worker->had_error != 0;
}

bool install() {
  const WebPWorkerInterface ours{init, reset, sync, execute, execute, end};
  if (knows_workers(*WebPGetWorkerInterface()) && WebPSetWorkerInterface(&ours) != 0) return true;
  log_warning(
      "this libwebp's workers are others: lossy WebP is given up between pieces of the file alone");
  return false;
}

}  // namespace

WebpRowStops::WebpRowStops(const StopCheck& stop) {
  static const bool installed = install();
  stop_of_this_thread = installed ? &stop : nullptr;
}

WebpRowStops::~WebpRowStops() {
  stop_of_this_thread = nullptr;
}

}  // namespace gapless::internal
