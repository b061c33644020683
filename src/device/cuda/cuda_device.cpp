#include "device/cuda/cuda_device.h"

#include <limits>
#include <optional>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda_support.h"
#include "device/device_list.h"

namespace gapless {
namespace {

constexpr std::int64_t kClockPatienceNs = 1'000'000'000;

Status unavailable(int ordinal, std::string_view why) {
  return make_error(StatusCode::kUnavailable, "no CUDA device: cuda:{}: {}", ordinal, why);
}

// One round of the clock's ping-pong.
struct ClockRound {
  std::int64_t round_trip_ns = 0;
  std::int64_t offset_ns = 0;
};

// nullopt when the device does not answer.
std::optional<ClockRound> ping(ClockPings& pings, int round) {
  std::atomic_ref<std::uint64_t> pong(pings.pongs[round - 1]);
  const std::int64_t begin_ns = host_now_ns();
  std::atomic_ref(pings.ping).store(static_cast<std::uint32_t>(round), std::memory_order_release);
  std::uint64_t device_ns = 0;
  std::int64_t end_ns = begin_ns;
  while (device_ns == 0) {
    if (end_ns - begin_ns > kClockPatienceNs) return std::nullopt;
    device_ns = pong.load(std::memory_order_acquire);
    end_ns = host_now_ns();
  }
  // The device read its clock about half way through the round trip.
  const std::int64_t middle_ns = begin_ns + (end_ns - begin_ns) / 2;
  return ClockRound{.round_trip_ns = end_ns - begin_ns,
                    .offset_ns = middle_ns - static_cast<std::int64_t>(device_ns)};
}

}  // namespace

StatusOr<std::unique_ptr<Device>> CudaDevice::open(int ordinal) {
  int num_devices = 0;
  const cudaError_t counted = cudaGetDeviceCount(&num_devices);
  if (counted == cudaErrorInsufficientDriver) {
    int driver = 0, needed = 0;
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&needed);
    return unavailable(ordinal, driver_too_old(driver, needed));
  }
  if (counted != cudaSuccess) return unavailable(ordinal, cudaGetErrorString(counted));
  if (ordinal < 0 || ordinal >= num_devices) {
    return unavailable(ordinal, fmt::format("this machine has {}", num_devices));
  }
  cudaDeviceProp properties;
  GAPLESS_RETURN_IF_ERROR(
      cuda_status(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties"));
  GAPLESS_RETURN_IF_ERROR(
      check_cuda_capability(properties.name, 10 * properties.major + properties.minor));
  std::unique_ptr<CudaDevice> device(new CudaDevice(ordinal, properties));
  GAPLESS_RETURN_IF_ERROR(device->start());
  return std::unique_ptr<Device>(std::move(device));
}

CudaDevice::CudaDevice(int ordinal, const cudaDeviceProp& properties)
    : ordinal_(ordinal),
      name_(properties.name),
      capability_(10 * properties.major + properties.minor),
      num_multiprocessors_(properties.multiProcessorCount) {}

Status CudaDevice::start() {
  GAPLESS_RETURN_IF_ERROR(make_current());
  const cudaError_t image = check_kernel_image();
  if (image == cudaErrorNoKernelImageForDevice || image == cudaErrorInvalidDeviceFunction) {
    (void)cudaGetLastError();
    return unavailable(ordinal_, no_cuda_code(name_, capability_));
  }
  GAPLESS_RETURN_IF_ERROR(cuda_status(image, "cudaFuncGetAttributes"));
  void* pings = nullptr;
  GAPLESS_RETURN_IF_ERROR(cuda_status(
      cudaHostAlloc(&pings, sizeof(ClockPings), cudaHostAllocDefault), "cudaHostAlloc"));
  clock_pings_pinned_ = static_cast<ClockPings*>(pings);
  return cuda_status(cudaStreamCreateWithFlags(&clock_stream_, cudaStreamNonBlocking),
                     "cudaStreamCreateWithFlags (clock)");
}

CudaDevice::~CudaDevice() {
  GAPLESS_CHECK_MSG(num_live_ == 0, "something made by the CUDA device outlives it");
  // Nobody is left to hear of an error.
  (void)make_current();
  if (clock_stream_ != nullptr) (void)cudaStreamDestroy(clock_stream_);
  if (clock_pings_pinned_ != nullptr) (void)cudaFreeHost(clock_pings_pinned_);
}

Status CudaDevice::make_current() const {
  // Only this function changes the current device, so the thread may remember it.
  thread_local int current = -1;
  if (current == ordinal_) return ok_status();
  GAPLESS_RETURN_IF_ERROR(cuda_status(cudaSetDevice(ordinal_), "cudaSetDevice"));
  current = ordinal_;
  return ok_status();
}

StatusOr<DeviceInfo> CudaDevice::info() {
  GAPLESS_RETURN_IF_ERROR(make_current());
  DeviceInfo info{.kind = DeviceKind::kCuda,
                  .name = name_,
                  .total_memory_bytes = 0,
                  .free_memory_bytes = 0,
                  .num_multiprocessors = num_multiprocessors_};
  GAPLESS_RETURN_IF_ERROR(cuda_status(
      cudaMemGetInfo(&info.free_memory_bytes, &info.total_memory_bytes), "cudaMemGetInfo"));
  return info;
}

StatusOr<Buffer> CudaDevice::allocate(std::size_t bytes) {
  if (bytes == 0) return Buffer();
  count(counter_cells_.allocations);
  GAPLESS_RETURN_IF_ERROR(make_current());
  void* data = nullptr;
  GAPLESS_RETURN_IF_ERROR(
      cuda_status(cudaMalloc(&data, bytes), fmt::format("cudaMalloc ({} bytes)", bytes)));
  ++num_live_;
  return Buffer(this, data, bytes);
}

StatusOr<PinnedBuffer> CudaDevice::allocate_pinned(std::size_t bytes) {
  if (bytes == 0) return PinnedBuffer();
  count(counter_cells_.allocations);
  GAPLESS_RETURN_IF_ERROR(make_current());
  void* data = nullptr;
  GAPLESS_RETURN_IF_ERROR(cuda_status(cudaHostAlloc(&data, bytes, cudaHostAllocDefault),
                                      fmt::format("cudaHostAlloc ({} bytes)", bytes)));
  pinned_ranges_.add(data, bytes);
  ++num_live_;
  return PinnedBuffer(this, data, bytes);
}

void CudaDevice::free_with(cudaError_t (*free_function)(void*), std::string_view call, void* data) {
  count(counter_cells_.synchronizations);
  Status status = make_current();
  // An error of the work itself reaches whoever waits for that work; here only its end matters.
  (void)cudaDeviceSynchronize();
  const cudaError_t error = free_function(data);
  if (status.ok()) status = cuda_status(error, call);
  // A lost device fails every call: its memory went with it.
  if (!status.ok() && !is_sticky(error)) log_error("{}", status.to_string());
  --num_live_;
}

void CudaDevice::free_device(void* data) {
  free_with(cudaFree, "cudaFree", data);
}

void CudaDevice::free_pinned(void* data) {
  pinned_ranges_.remove(data);
  free_with(cudaFreeHost, "cudaFreeHost", data);
}

StatusOr<std::unique_ptr<Stream>> CudaDevice::create_stream(std::string_view name) {
  count(counter_cells_.allocations);
  GAPLESS_RETURN_IF_ERROR(make_current());
  cudaStream_t stream = nullptr;
  GAPLESS_RETURN_IF_ERROR(cuda_status(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                                      fmt::format("cudaStreamCreateWithFlags (stream {})", name)));
  return std::unique_ptr<Stream>(std::make_unique<CudaStream>(*this, name, stream));
}

StatusOr<std::unique_ptr<Event>> CudaDevice::create_event() {
  count(counter_cells_.allocations);
  GAPLESS_RETURN_IF_ERROR(make_current());
  cudaEvent_t event = nullptr;
  // Blocking, because CudaEvent::synchronize itself spins first.
  GAPLESS_RETURN_IF_ERROR(
      cuda_status(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync),
                  "cudaEventCreateWithFlags"));
  return std::unique_ptr<Event>(std::make_unique<CudaEvent>(*this, event));
}

StatusOr<std::int64_t> CudaDevice::clock_offset_ns() {
  std::lock_guard lock(clock_mutex_);
  count(counter_cells_.synchronizations);
  GAPLESS_RETURN_IF_ERROR(make_current());
  *clock_pings_pinned_ = ClockPings{};
  GAPLESS_RETURN_IF_ERROR(
      cuda_status(launch_answer_pings(clock_pings_pinned_, clock_stream_), "answer_pings launch"));
  ClockRound best{.round_trip_ns = std::numeric_limits<std::int64_t>::max(), .offset_ns = 0};
  int num_answers = 0;
  for (int round = 1; round <= kNumClockPings; ++round) {
    const std::optional<ClockRound> answer = ping(*clock_pings_pinned_, round);
    if (!answer) break;
    ++num_answers;
    if (answer->round_trip_ns < best.round_trip_ns) best = *answer;
  }
  // The kernel ends by itself, and must have ended before its memory is used again.
  GAPLESS_RETURN_IF_ERROR(
      cuda_status(cudaStreamSynchronize(clock_stream_), "cudaStreamSynchronize (clock)"));
  if (num_answers == 0) {
    return make_error(StatusCode::kDeviceError, "cuda:{}: the device clock does not answer",
                      ordinal_);
  }
  return best.offset_ns;
}

StatusOr<std::unique_ptr<Device>> open_cuda_device(int ordinal) {
  return CudaDevice::open(ordinal);
}

int num_cuda_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  (void)cudaGetLastError();
  return 0;
}

}  // namespace gapless
