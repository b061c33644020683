#include "pipeline/crop_pool.h"

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
    : memory_(std::move(memory)), crop_bytes_(crop_bytes), free_(), capacity_(num_crops) {
  free_.resize(static_cast<std::size_t>(num_crops));
  std::iota(free_.begin(), free_.end(), 0);
}

std::shared_ptr<CropPool::Lease> CropPool::acquire(int count) {
  GAPLESS_CHECK(count >= 1 && count <= capacity_);
  const auto wanted = static_cast<std::size_t>(count);
  std::unique_lock lock(mutex_);
  const std::uint64_t turn = next_turn_++;
  changed_.wait(lock, [&] { return closed_ || (turn == turn_ && free_.size() >= wanted); });
  if (closed_) return nullptr;
  std::vector<int> indices(free_.end() - count, free_.end());
  free_.resize(free_.size() - wanted);
  ++turn_;
  changed_.notify_all();
  return std::make_shared<Lease>(shared_from_this(), std::move(indices));
}

void CropPool::close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

int CropPool::num_free() const {
  std::lock_guard lock(mutex_);
  return static_cast<int>(free_.size());
}

int CropPool::num_waiting() const {
  std::lock_guard lock(mutex_);
  return static_cast<int>(next_turn_ - turn_);
}

void CropPool::release(const std::vector<int>& indices) {
  {
    std::lock_guard lock(mutex_);
    free_.insert(free_.end(), indices.begin(), indices.end());
  }
  changed_.notify_all();
}

CropPool::Lease::Lease(std::shared_ptr<CropPool> pool, std::vector<int> indices)
    : pool_(std::move(pool)), indices_(std::move(indices)) {}

CropPool::Lease::~Lease() {
  pool_->release(indices_);
}

std::uint8_t* CropPool::Lease::crop_pinned(int i) const {
  return pool_->memory_.as<std::uint8_t>() +
         static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)]) * pool_->crop_bytes_;
}

}  // namespace gapless
