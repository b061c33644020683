#include "engine/crop_pool.h"

#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/limits.h"

namespace gapless {

StatusOr<std::shared_ptr<CropPool>> CropPool::create(Device& device, int num_crops,
                                                     std::size_t crop_bytes) {
  GAPLESS_CHECK(num_crops >= kMaxTilesPerImage + 1);
  GAPLESS_ASSIGN_OR_RETURN(
      PinnedBuffer memory,
      device.allocate_pinned(static_cast<std::size_t>(num_crops) * crop_bytes));
  return std::shared_ptr<CropPool>(new CropPool(std::move(memory), num_crops, crop_bytes));
}

CropPool::CropPool(PinnedBuffer memory, int num_crops, std::size_t crop_bytes)
    : memory_(std::move(memory)),
      num_crops_(num_crops),
      crop_bytes_(crop_bytes),
      buffers_(static_cast<std::size_t>(num_crops)),
      free_(static_cast<std::size_t>(num_crops)) {
  std::iota(free_.begin(), free_.end(), 0);
}

std::shared_ptr<CropPool::Lease> CropPool::acquire(int count, const std::stop_token& stop) {
  GAPLESS_CHECK(count >= 1 && count <= capacity());
  const auto wanted = static_cast<std::size_t>(count);
  // Before the lock: its end waits for a call that waits for the mutex.
  const std::stop_callback wake(stop, [this] {
    MutexLock lock(mutex_);
    changed_.notify_all();
  });
  MutexLock lock(mutex_);
  const std::uint64_t turn = next_turn_++;
  waiting_.push_back(turn);
  while (!closed_ && (waiting_.front() != turn || free_.size() < wanted) &&
         !stop.stop_requested()) {
    changed_.wait(lock);
  }
  const bool has_turn = !closed_ && waiting_.front() == turn && free_.size() >= wanted;
  if (waiting_.front() == turn) num_overtaken_ = 0;
  std::erase(waiting_, turn);
  changed_.notify_all();
  if (!has_turn) return nullptr;
  std::vector<int> taken = choose_free(wanted);
  for (const int index : taken) forget_picture_of(index);
  return lease(std::move(taken));
}

std::vector<int> CropPool::choose_free(std::size_t count) {
  std::vector<int> chosen;
  for (const bool was_found : {false, true}) {
    for (const int index : free_) {
      if (chosen.size() == count) return chosen;
      const auto& picture = buffer(index).picture;
      if ((picture && pictures_.at(*picture).was_found) == was_found) chosen.push_back(index);
    }
  }
  return chosen;
}

void CropPool::remember(const ContentHash& name, const Lease& lease, int first, int count,
                        const Tiling& tiling) {
  MutexLock lock(mutex_);
  // Another worker prepared it at the same time.
  if (pictures_.contains(name)) return;
  const auto begin = lease.buffers_.begin() + first;
  const Known known{{begin, begin + count}, tiling, false};
  for (const int index : known.buffers) buffer(index).picture = name;
  pictures_.emplace(name, known);
}

std::optional<CropPool::Picture> CropPool::find(const ContentHash& name) {
  MutexLock lock(mutex_);
  const auto found = pictures_.find(name);
  if (found == pictures_.end() || closed_) return std::nullopt;
  // It may take buffers that somebody waits for.
  if (!waiting_.empty() && num_overtaken_++ >= kMaxOvertaken) return std::nullopt;
  Known& known = found->second;
  known.was_found = true;
  return Picture{lease(known.buffers), known.tiling};
}

void CropPool::close() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

int CropPool::num_free() const {
  MutexLock lock(mutex_);
  return static_cast<int>(free_.size());
}

int CropPool::num_waiting() const {
  MutexLock lock(mutex_);
  return static_cast<int>(waiting_.size());
}

// All of it: what is left of a picture is of no use.
void CropPool::forget_picture_of(int index) {
  if (!buffer(index).picture) return;
  const auto found = pictures_.find(*buffer(index).picture);
  for (const int other : found->second.buffers) buffer(other).picture.reset();
  pictures_.erase(found);
}

std::shared_ptr<CropPool::Lease> CropPool::lease(std::vector<int> buffers) {
  for (const int index : buffers) {
    if (buffer(index).num_leases++ == 0) std::erase(free_, index);
  }
  return std::make_shared<Lease>(shared_from_this(), std::move(buffers));
}

void CropPool::release(const std::vector<int>& buffers) {
  {
    MutexLock lock(mutex_);
    for (const int index : buffers) {
      if (--buffer(index).num_leases == 0) free_.push_back(index);
    }
  }
  changed_.notify_all();
}

CropPool::Lease::Lease(std::shared_ptr<CropPool> pool, std::vector<int> buffers)
    : pool_(std::move(pool)), buffers_(std::move(buffers)) {}

CropPool::Lease::~Lease() {
  pool_->release(buffers_);
}

std::uint8_t* CropPool::Lease::crop_pinned(int i) const {
  return pool_->memory_.as<std::uint8_t>() +
         static_cast<std::size_t>(buffers_[static_cast<std::size_t>(i)]) * pool_->crop_bytes_;
}

}  // namespace gapless
