#include "sim/faulty_device.h"

#include <atomic>
#include <charconv>
#include <chrono>
#include <thread>
#include <utility>

#include "base/check.h"

namespace gapless {
namespace {

// Shared by a faulty device and what it made.
struct FaultState {
  explicit FaultState(DeviceFault what) : fault(what) {}

  Status check(std::string_view call) const {
    if (!lost.load()) return ok_status();
    return make_error(StatusCode::kDeviceError, "injected fault: {}", call);
  }
  bool strikes_now() { return num_waits.fetch_add(1) + 1 == fault.wait; }

  const DeviceFault fault;
  std::atomic<std::int64_t> num_waits{0};
  std::atomic<bool> lost{false};
};

class FaultyEvent final : public Event {
 public:
  FaultyEvent(std::unique_ptr<Event> event, FaultState& state)
      : event_(std::move(event)), state_(state) {}

  StatusOr<bool> is_complete() override {
    GAPLESS_RETURN_IF_ERROR(state_.check("Event::is_complete"));
    return event_->is_complete();
  }
  Status synchronize() override {
    GAPLESS_RETURN_IF_ERROR(state_.check("Event::synchronize"));
    return event_->synchronize();
  }
  StatusOr<bool> synchronize_within(std::int64_t timeout_ns) override {
    if (state_.strikes_now()) {
      if (state_.fault.kind == DeviceFault::Kind::kHang) {
        std::this_thread::sleep_for(std::chrono::nanoseconds(timeout_ns));
        return false;
      }
      state_.lost.store(true);
    }
    GAPLESS_RETURN_IF_ERROR(state_.check("Event::synchronize_within"));
    return event_->synchronize_within(timeout_ns);
  }
  Event& inner() { return *event_; }

 private:
  const std::unique_ptr<Event> event_;
  FaultState& state_;
};

class FaultyStream final : public Stream {
 public:
  FaultyStream(std::unique_ptr<Stream> stream, FaultState& state)
      : stream_(std::move(stream)), state_(state) {}

  std::string_view name() const override { return stream_->name(); }
  Status copy_to_device(void* to_dev, const void* from_pinned, std::size_t bytes) override {
    GAPLESS_RETURN_IF_ERROR(state_.check("Stream::copy_to_device"));
    return stream_->copy_to_device(to_dev, from_pinned, bytes);
  }
  Status copy_to_host(void* to_pinned, const void* from_dev, std::size_t bytes) override {
    GAPLESS_RETURN_IF_ERROR(state_.check("Stream::copy_to_host"));
    return stream_->copy_to_host(to_pinned, from_dev, bytes);
  }
  Status copy_on_device(void* to_dev, const void* from_dev, std::size_t bytes) override {
    GAPLESS_RETURN_IF_ERROR(state_.check("Stream::copy_on_device"));
    return stream_->copy_on_device(to_dev, from_dev, bytes);
  }
  Status fill_bytes(void* to_dev, std::uint8_t value, std::size_t bytes) override {
    GAPLESS_RETURN_IF_ERROR(state_.check("Stream::fill_bytes"));
    return stream_->fill_bytes(to_dev, value, bytes);
  }
  Status record(Event& event) override {
    GAPLESS_RETURN_IF_ERROR(state_.check("Stream::record"));
    return stream_->record(inner(event));
  }
  Status wait(Event& event) override {
    GAPLESS_RETURN_IF_ERROR(state_.check("Stream::wait"));
    return stream_->wait(inner(event));
  }
  Status begin_capture() override {
    GAPLESS_RETURN_IF_ERROR(state_.check("Stream::begin_capture"));
    return stream_->begin_capture();
  }
  StatusOr<std::unique_ptr<Graph>> end_capture() override {
    GAPLESS_RETURN_IF_ERROR(state_.check("Stream::end_capture"));
    return stream_->end_capture();
  }
  Status launch(Graph& graph) override {
    GAPLESS_RETURN_IF_ERROR(state_.check("Stream::launch"));
    return stream_->launch(graph);
  }
  Status begin_if(const std::uint32_t* flag_dev) override {
    GAPLESS_RETURN_IF_ERROR(state_.check("Stream::begin_if"));
    return stream_->begin_if(flag_dev);
  }
  Status end_if() override {
    GAPLESS_RETURN_IF_ERROR(state_.check("Stream::end_if"));
    return stream_->end_if();
  }
  Status begin_branch() override {
    GAPLESS_RETURN_IF_ERROR(state_.check("Stream::begin_branch"));
    return stream_->begin_branch();
  }
  Status end_branch() override {
    GAPLESS_RETURN_IF_ERROR(state_.check("Stream::end_branch"));
    return stream_->end_branch();
  }
  Status join_branch() override {
    GAPLESS_RETURN_IF_ERROR(state_.check("Stream::join_branch"));
    return stream_->join_branch();
  }
  Status synchronize() override {
    GAPLESS_RETURN_IF_ERROR(state_.check("Stream::synchronize"));
    return stream_->synchronize();
  }
  void* native_handle() override { return stream_->native_handle(); }

 private:
  // Events of other devices go on as they are: the stream refuses them.
  static Event& inner(Event& event) {
    auto* const faulty = dynamic_cast<FaultyEvent*>(&event);
    return faulty == nullptr ? event : faulty->inner();
  }

  const std::unique_ptr<Stream> stream_;
  FaultState& state_;
};

class FaultyDevice final : public Device {
 public:
  FaultyDevice(std::unique_ptr<Device> device, DeviceFault fault)
      : device_(std::move(device)), state_(fault) {}

  StatusOr<DeviceInfo> info() override { return device_->info(); }
  DeviceKind kind() const override { return device_->kind(); }
  StatusOr<Buffer> allocate(std::size_t bytes) override {
    GAPLESS_RETURN_IF_ERROR(state_.check("Device::allocate"));
    return device_->allocate(bytes);
  }
  StatusOr<PinnedBuffer> allocate_pinned(std::size_t bytes) override {
    GAPLESS_RETURN_IF_ERROR(state_.check("Device::allocate_pinned"));
    return device_->allocate_pinned(bytes);
  }
  StatusOr<std::unique_ptr<Stream>> create_stream(std::string_view name) override {
    GAPLESS_RETURN_IF_ERROR(state_.check("Device::create_stream"));
    GAPLESS_ASSIGN_OR_RETURN(auto stream, device_->create_stream(name));
    return std::unique_ptr<Stream>(std::make_unique<FaultyStream>(std::move(stream), state_));
  }
  StatusOr<std::unique_ptr<Event>> create_event() override {
    GAPLESS_RETURN_IF_ERROR(state_.check("Device::create_event"));
    GAPLESS_ASSIGN_OR_RETURN(auto event, device_->create_event());
    return std::unique_ptr<Event>(std::make_unique<FaultyEvent>(std::move(event), state_));
  }
  StatusOr<std::int64_t> clock_offset_ns() override {
    GAPLESS_RETURN_IF_ERROR(state_.check("Device::clock_offset_ns"));
    return device_->clock_offset_ns();
  }
  DeviceCounters counters() const override { return device_->counters(); }

 protected:
  // Buffers are the wrapped device's own.
  void free_device(void*) override { GAPLESS_CHECK_MSG(false, "not this device's memory"); }
  void free_pinned(void*) override { GAPLESS_CHECK_MSG(false, "not this device's memory"); }

 private:
  const std::unique_ptr<Device> device_;
  FaultState state_;
};

}  // namespace

StatusOr<DeviceFault> parse_device_fault(std::string_view text) {
  DeviceFault fault;
  const std::size_t at = text.find('@');
  const std::string_view kind = text.substr(0, at);
  const std::string_view number = at == std::string_view::npos ? "" : text.substr(at + 1);
  const auto [end, error] =
      std::from_chars(number.data(), number.data() + number.size(), fault.wait);
  if ((kind != "lose" && kind != "hang") || error != std::errc() ||
      end != number.data() + number.size() || fault.wait < 1) {
    return invalid_argument("'{}' is no device fault: lose@N or hang@N, N from 1", text);
  }
  if (kind == "hang") fault.kind = DeviceFault::Kind::kHang;
  return fault;
}

std::unique_ptr<Device> make_faulty_device(std::unique_ptr<Device> device, DeviceFault fault) {
  return std::make_unique<FaultyDevice>(std::move(device), fault);
}

}  // namespace gapless
