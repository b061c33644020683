#include "model/device_grammars.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/check.h"
#include "device/bump_layout.h"
#include "kernels/packed_texts.h"

namespace gapless {
namespace {

constexpr std::size_t kTableAlignment = 256;
// For the tables of one grammar (grammar_limits.h).
constexpr std::int64_t kUploadTimeoutNs = 60'000'000'000;

bool is_same(const std::weak_ptr<const void>& a, const std::shared_ptr<const void>& b) {
  return !a.owner_before(b) && !b.owner_before(a);
}

std::size_t round_up(std::size_t bytes) {
  return (bytes + kTableAlignment - 1) / kTableAlignment * kTableAlignment;
}

// One table of a grammar: where it comes from, and which pointer is to say where it went.
struct Table {
  std::span<const std::byte> from;
  const void** to;
};

template <typename T, typename Values>
Table table_of(const Values& values, const T*& to) {
  return {std::as_bytes(std::span(values)), reinterpret_cast<const void**>(&to)};
}

std::array<Table, 8> list_tables(const Grammar& grammar, GrammarTables& tables) {
  return {table_of(grammar.class_of, tables.class_of),
          table_of(grammar.edges, tables.edges),
          table_of(grammar.may_end, tables.may_end),
          table_of(grammar.actions, tables.actions),
          table_of(grammar.conditions, tables.conditions),
          table_of(grammar.name_sets, tables.name_sets),
          table_of(grammar.next_states, tables.next_states),
          table_of(grammar.character_loops, tables.character_loops)};
}

std::size_t bytes_on_device(const Grammar& grammar) {
  GrammarTables unused;
  std::size_t bytes = 0;
  for (const Table& table : list_tables(grammar, unused)) bytes += round_up(table.from.size());
  return bytes;
}

}  // namespace

StatusOr<std::unique_ptr<DeviceGrammars>> DeviceGrammars::create(
    Device& device, const std::vector<std::string>& texts, std::int32_t eos_id, int vocab,
    const StepLimits& limits, std::size_t table_bytes) {
  GAPLESS_ASSIGN_OR_RETURN(std::unique_ptr<Stream> stream, device.create_stream("grammars"));
  GAPLESS_ASSIGN_OR_RETURN(StagedUpload upload,
                           StagedUpload::create(device, *stream, kUploadPieceBytes));
  std::unique_ptr<DeviceGrammars> grammars(
      new DeviceGrammars(std::move(stream), std::move(upload)));
  GAPLESS_RETURN_IF_ERROR(grammars->allocate(device, texts, eos_id, vocab, limits, table_bytes));
  return grammars;
}

Status DeviceGrammars::allocate(Device& device, const std::vector<std::string>& texts,
                                std::int32_t eos_id, int vocab, const StepLimits& limits,
                                std::size_t table_bytes) {
  MutexLock lock(upload_mutex_);
  GAPLESS_CHECK(eos_id >= 0 && eos_id < vocab);
  // A model may have more rows of logits than its tokenizer has tokens: the rest are no text.
  const PackedTexts packed = pack_texts(texts, static_cast<std::size_t>(vocab));
  const auto num_rows = static_cast<std::size_t>(limits.num_rows());
  const auto batch = static_cast<std::size_t>(limits.max_step_rows());
  const std::size_t num_words = (static_cast<std::size_t>(vocab) + 31) / 32;
  constexpr std::size_t kNumEntries = std::size_t{kGrammarCacheSets} * kGrammarCacheWays;
  std::int32_t* first_dev = nullptr;
  std::uint8_t* bytes_dev = nullptr;
  std::uint64_t* heads_dev = nullptr;
  TextSummary* summaries_dev = nullptr;
  const auto carve = [&](BumpLayout layout) {
    grammars_ = layout.take_array<GrammarTables>(kMaxDeviceGrammars);
    first_dev = layout.take_array<std::int32_t>(packed.first.size());
    bytes_dev = layout.take_array<std::uint8_t>(std::max<std::size_t>(packed.bytes.size(), 1));
    heads_dev = layout.take_array<std::uint64_t>(packed.heads.size());
    summaries_dev = layout.take_array<TextSummary>(packed.summaries.size());
    params_.grammar_rows = layout.take_array<GrammarRow>(num_rows);
    params_.cache.entries = layout.take_array<GrammarMaskEntry>(kNumEntries);
    params_.cache.masks = layout.take_array<std::uint32_t>(kNumEntries * num_words);
    params_.cache.bounded = layout.take_array<BoundedToken>(kNumEntries * kMaxBoundedTokens);
    params_.cache.turns = layout.take_array<std::uint32_t>(kGrammarCacheSets);
    params_.cache.locks = layout.take_array<std::int32_t>(kGrammarCacheSets);
    params_.masks = layout.take_array<std::uint32_t>(batch * num_words);
    params_.searches = layout.take_array<GrammarSearch>(batch);
    params_.bounded = layout.take_array<BoundedToken>(batch * kMaxBoundedTokens);
    params_.arrivals = layout.take_array<GrammarArrivals>(1);
    return layout.peak_bytes();
  };
  const std::size_t total_bytes = carve(BumpLayout());
  GAPLESS_ASSIGN_OR_RETURN(memory_, device.allocate(total_bytes));
  carve(BumpLayout(memory_.data()));
  GAPLESS_ASSIGN_OR_RETURN(tables_, device.allocate(table_bytes));
  GAPLESS_ASSIGN_OR_RETURN(turns_pinned_,
                           device.allocate_pinned(kGrammarCacheSets * sizeof(std::uint32_t)));
  params_.grammars = grammars_;
  params_.texts = {.first = first_dev,
                   .bytes = bytes_dev,
                   .heads = heads_dev,
                   .summaries = summaries_dev,
                   .vocab = vocab,
                   .eos_id = eos_id};
  params_.cache.num_sets = kGrammarCacheSets;
  params_.mask_stride = static_cast<int>(num_words);
  GAPLESS_RETURN_IF_ERROR(stream_->fill_bytes(memory_.data(), 0, total_bytes));
  GAPLESS_RETURN_IF_ERROR(upload_.copy(first_dev, bytes_of(packed.first)));
  GAPLESS_RETURN_IF_ERROR(upload_.copy(bytes_dev, bytes_of(packed.bytes)));
  GAPLESS_RETURN_IF_ERROR(upload_.copy(heads_dev, bytes_of(packed.heads)));
  GAPLESS_RETURN_IF_ERROR(upload_.copy(summaries_dev, bytes_of(packed.summaries)));
  GAPLESS_RETURN_IF_ERROR(upload_.finish());
  upload_.set_timeout(kUploadTimeoutNs);
  return ok_status();
}

std::shared_ptr<const DeviceGrammar> DeviceGrammars::take(Place& place) {
  ++place.num_holders;
  place.last_held = ++places_->num_held;
  const auto give_back = [places = places_](const DeviceGrammar* grammar) {
    MutexLock lock(places->mutex);
    for (Place& one : places->list) {
      if (one.index == grammar->index) --one.num_holders;
    }
    delete grammar;
  };
  return {new DeviceGrammar{place.index}, give_back};
}

std::shared_ptr<const DeviceGrammar> DeviceGrammars::find(
    const std::shared_ptr<const void>& owner) {
  MutexLock lock(places_->mutex);
  for (Place& place : places_->list) {
    if (place.is_ready && is_same(place.owner, owner)) return take(place);
  }
  return nullptr;
}

// The first gap that is large enough; while there is none those that nobody holds leave, the longest unused first.
std::optional<DeviceGrammars::Place> DeviceGrammars::reserve(std::size_t bytes) {
  std::vector<Place>& list = places_->list;
  while (true) {
    std::size_t begin = 0;
    auto next = list.begin();
    while (next != list.end() && next->begin - begin < bytes) begin = (next++)->end;
    const std::size_t room = (next == list.end() ? tables_.size_bytes() : next->begin) - begin;
    if (room >= bytes && list.size() < static_cast<std::size_t>(kMaxDeviceGrammars)) {
      std::int32_t index = 0;
      const auto is_taken = [&index](const Place& place) { return place.index == index; };
      while (std::any_of(list.begin(), list.end(), is_taken)) ++index;
      const Place place{
          .owner = {}, .index = index, .begin = begin, .end = begin + bytes, .num_holders = 1};
      list.insert(next, place);
      return place;
    }
    auto oldest = list.end();
    for (auto place = list.begin(); place != list.end(); ++place) {
      if (place->num_holders > 0) continue;
      if (oldest == list.end() || place->last_held < oldest->last_held) oldest = place;
    }
    if (oldest == list.end()) return std::nullopt;
    list.erase(oldest);
  }
}

// Nobody holds the place's index, so no step in flight reads what is written here.
Status DeviceGrammars::upload(const Grammar& grammar, const Place& place) {
  std::array<GrammarTables, 1> tables = {tables_of(grammar, next_id_++)};
  std::size_t at = place.begin;
  for (const Table& table : list_tables(grammar, tables[0])) {
    std::byte* const to = tables_.as<std::byte>() + at;
    GAPLESS_RETURN_IF_ERROR(upload_.copy(to, table.from));
    *table.to = to;
    at += round_up(table.from.size());
  }
  GAPLESS_RETURN_IF_ERROR(upload_.copy(grammars_ + place.index, bytes_of(tables)));
  return upload_.wait();
}

StatusOr<std::shared_ptr<const DeviceGrammar>> DeviceGrammars::hold(
    const std::shared_ptr<const void>& owner, const Grammar& grammar) {
  MutexLock uploading(upload_mutex_);
  if (auto known = find(owner)) return known;
  std::optional<Place> place;
  {
    MutexLock lock(places_->mutex);
    place = reserve(bytes_on_device(grammar));
  }
  if (!place) return std::shared_ptr<const DeviceGrammar>();
  const Status uploaded = upload(grammar, *place);
  MutexLock lock(places_->mutex);
  const auto here = std::find_if(places_->list.begin(), places_->list.end(),
                                 [&](const Place& one) { return one.index == place->index; });
  if (!uploaded.ok()) {
    places_->list.erase(here);
    return uploaded.with_context("putting a grammar on the device");
  }
  ++places_->num_uploads;
  here->owner = owner;
  here->is_ready = true;
  here->num_holders = 0;
  return take(*here);
}

StatusOr<std::int64_t> DeviceGrammars::count_found_masks() {
  MutexLock lock(upload_mutex_);
  GAPLESS_RETURN_IF_ERROR(
      stream_->copy_to_host(turns_pinned_.data(), params_.cache.turns, turns_pinned_.size_bytes()));
  GAPLESS_RETURN_IF_ERROR(stream_->synchronize());
  const auto* const turns = turns_pinned_.as<std::uint32_t>();
  return std::accumulate(turns, turns + kGrammarCacheSets, std::int64_t{0});
}

DeviceGrammars::Counts DeviceGrammars::counts() const {
  MutexLock lock(places_->mutex);
  Counts counts{.num_uploads = places_->num_uploads};
  for (const Place& place : places_->list) {
    ++counts.resident;
    counts.held += place.num_holders > 0 ? 1 : 0;
    counts.bytes += place.end - place.begin;
  }
  return counts;
}

}  // namespace gapless
