#include "constraint/token_grammar.h"

#include <algorithm>

#include "base/check.h"
#include "grammar/grammar_limits.h"

namespace gapless {
namespace {

constexpr int kNumMaskThreads = 2;

template <typename T>
void append(std::string& key, const T& value) {
  key.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

}  // namespace

// ---- TokenGrammar

TokenGrammar::TokenGrammar(Grammar grammar, std::shared_ptr<const VocabularyTrie> vocabulary,
                           std::int32_t eos_id)
    : grammar_(std::move(grammar)),
      vocabulary_(std::move(vocabulary)),
      eos_id_(eos_id),
      largest_count_(grammar_.largest_count()),
      max_masks_(std::max<std::size_t>(
          kMaxMaskCacheBytes / (static_cast<std::size_t>(vocabulary_->vocab()) / 8 + 64), 1)) {}

// All that legal tokens depend on but the length. Counts beyond the largest that is asked for are alike.
std::string TokenGrammar::key_of(const GrammarRow& row) const {
  std::string key;
  key.reserve(16 + row.depth * sizeof(GrammarFrame));
  append(key, row.state);
  append(key, row.depth);
  for (std::size_t i = 0; i <= row.depth; ++i) {
    const GrammarFrame& frame = row.frames[i];
    append(key, frame.next);
    append(key, std::min(frame.count, largest_count_ + 1));
    append(key, frame.seen);
  }
  return key;
}

std::shared_ptr<const TokenMask> TokenGrammar::find(const GrammarRow& row) const {
  const std::string key = key_of(row);
  MutexLock lock(mutex_);
  const auto found = masks_.find(key);
  if (found == masks_.end()) return nullptr;
  for (const Entry& entry : found->second) {
    if (entry.lengths.contains(row.length)) return entry.mask;
  }
  return nullptr;
}

std::shared_ptr<const TokenMask> TokenGrammar::find_or_make(const GrammarRow& row) {
  if (auto known = find(row)) return known;
  auto mask = std::make_shared<TokenMask>(static_cast<std::size_t>(vocabulary_->vocab() + 31) / 32);
  const LengthInterval lengths = find_legal_tokens(grammar_, row, *vocabulary_, *mask);
  if (may_end(grammar_, row)) {
    (*mask)[static_cast<std::size_t>(eos_id_) / 32] |= 1u << (eos_id_ % 32);
  }
  MutexLock lock(mutex_);
  if (num_masks_ >= max_masks_) {
    masks_.clear();
    num_masks_ = 0;
  }
  masks_[key_of(row)].push_back({lengths, mask});
  ++num_masks_;
  return mask;
}

std::size_t TokenGrammar::num_masks() const {
  MutexLock lock(mutex_);
  return num_masks_;
}

// ---- MaskWorkers

MaskWorkers::MaskWorkers(int num_threads) {
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { run(); });
}

MaskWorkers::~MaskWorkers() {
  queue_.close();
  for (std::thread& thread : threads_) thread.join();
}

std::shared_ptr<MaskWorkers::Job> MaskWorkers::begin(std::shared_ptr<TokenGrammar> grammar,
                                                     const GrammarRow& row) {
  auto job = std::make_shared<Job>(std::move(grammar), row);
  GAPLESS_CHECK(queue_.push(job));
  return job;
}

void MaskWorkers::run() {
  while (const auto job = queue_.pop()) (*job)->run();
}

void MaskWorkers::Job::run() {
  auto mask = grammar_->find_or_make(row_);
  {
    MutexLock lock(mutex_);
    mask_ = std::move(mask);
  }
  done_.notify_all();
}

std::shared_ptr<const TokenMask> MaskWorkers::Job::wait() {
  MutexLock lock(mutex_);
  while (mask_ == nullptr) done_.wait(lock);
  return mask_;
}

// ---- GrammarConstraint

GrammarConstraint::GrammarConstraint(std::shared_ptr<TokenGrammar> grammar,
                                     std::shared_ptr<MaskWorkers> workers)
    : grammar_(std::move(grammar)),
      workers_(std::move(workers)),
      row_(begin_row(grammar_->grammar())),
      mask_(grammar_->find_or_make(row_)) {}

void GrammarConstraint::allowed(std::span<std::uint32_t> mask) const {
  if (broken_) return;
  if (mask_ == nullptr) {
    mask_ = job_->wait();
    job_.reset();
  }
  std::copy_n(mask_->begin(), std::min(mask.size(), mask_->size()), mask.begin());
}

void GrammarConstraint::advance(TokenId token) {
  if (broken_ || token.value == grammar_->eos_id()) return;  // ends the answer, or changes nothing
  const bool is_text = token.value >= 0 && token.value < grammar_->vocabulary().vocab() &&
                       !grammar_->vocabulary().bytes_of(token.value).empty();
  if (!is_text) {
    broken_ = true;
    return;
  }
  for (const char byte : grammar_->vocabulary().bytes_of(token.value)) {
    if (!gapless::advance(grammar_->grammar(), row_, static_cast<std::uint8_t>(byte))) {
      broken_ = true;
      return;
    }
  }
  mask_ = grammar_->find(row_);
  if (mask_ == nullptr) job_ = workers_->begin(grammar_, row_);
}

// ---- GrammarStore

GrammarStore::GrammarStore(std::vector<std::string> bytes, std::int32_t eos_id)
    : vocabulary_(std::make_shared<const VocabularyTrie>(std::move(bytes))),
      eos_id_(eos_id),
      workers_(std::make_shared<MaskWorkers>(kNumMaskThreads)) {}

std::optional<StatusOr<std::shared_ptr<TokenGrammar>>> GrammarStore::find(const GrammarSpec& spec) {
  const std::string key = spec.key();
  MutexLock lock(mutex_);
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&key](const Entry& entry) { return entry.key == key; });
  if (found == entries_.end()) return std::nullopt;
  entries_.splice(entries_.begin(), entries_, found);
  if (!found->refusal.ok()) return found->refusal;
  return found->grammar;
}

StatusOr<std::shared_ptr<TokenGrammar>> GrammarStore::get(const GrammarSpec& spec) {
  if (auto known = find(spec)) return std::move(*known);
  StatusOr<Grammar> grammar = compile_grammar(spec);
  Entry entry{.key = spec.key(), .refusal = grammar.status(), .grammar = nullptr};
  if (grammar.ok()) {
    entry.grammar =
        std::make_shared<TokenGrammar>(std::move(grammar).value(), vocabulary_, eos_id_);
  }
  const std::shared_ptr<TokenGrammar> made = entry.grammar;
  MutexLock lock(mutex_);
  entries_.push_front(std::move(entry));
  if (entries_.size() > kMaxCachedGrammars) entries_.pop_back();
  if (!grammar.ok()) return grammar.status();
  return made;
}

std::unique_ptr<TokenConstraint> GrammarStore::constraint(
    std::shared_ptr<TokenGrammar> grammar) const {
  return std::make_unique<GrammarConstraint>(std::move(grammar), workers_);
}

}  // namespace gapless
