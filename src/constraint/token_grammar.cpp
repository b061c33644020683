#include "constraint/token_grammar.h"

#include <algorithm>

#include "base/check.h"
#include "grammar/grammar_limits.h"

namespace gapless {
namespace {

constexpr int kNumMaskThreads = 2;
// Open objects and lists from which on frames may run out: a value that needs more of them than are left must not begin. No
// token opens as many as are left from here.
constexpr int kDeep = kMaxGrammarDepth / 2;
// Tokens that are more than any answer has.
constexpr int kNoLimit = 1 << 29;

// All that legal tokens depend on but the length and the counts.
std::string key_but_numbers(const GrammarRow& row) {
  return key_of_row(row, 0);
}

}  // namespace

// ---- TokenGrammar

TokenGrammar::TokenGrammar(Grammar grammar, std::shared_ptr<const VocabularyTrie> vocabulary,
                           std::int32_t eos_id)
    : grammar_(std::move(grammar)),
      vocabulary_(std::move(vocabulary)),
      eos_id_(eos_id),
      largest_count_(grammar_.largest_count()),
      may_run_out_(may_run_out_of_frames(grammar_)),
      max_masks_(std::max<std::size_t>(
          kMaxMaskCacheBytes / (static_cast<std::size_t>(vocabulary_->vocab()) / 8 + 64), 1)) {}

std::shared_ptr<const TokenMask> TokenGrammar::find(const GrammarRow& row) const {
  const std::string key = key_but_numbers(row);
  MutexLock lock(mutex_);
  const auto found = masks_.find(key);
  if (found == masks_.end()) return nullptr;
  for (const Entry& entry : found->second) {
    if (entry.extent.contains(row)) return entry.mask;
  }
  return nullptr;
}

std::shared_ptr<const TokenMask> TokenGrammar::find_or_make(const GrammarRow& row) {
  if (auto known = find(row)) return known;
  auto mask = std::make_shared<TokenMask>(static_cast<std::size_t>(vocabulary_->vocab() + 31) / 32);
  WalkExtent extent = find_legal_tokens(grammar_, row, *vocabulary_, *mask);
  // A model without an end in its tokenizer stops at its limit, or where nothing is legal any more.
  if (may_end(grammar_, row) && eos_id_ >= 0 && eos_id_ < vocabulary_->vocab()) {
    (*mask)[static_cast<std::size_t>(eos_id_) / 32] |= 1u << (eos_id_ % 32);
  }
  MutexLock lock(mutex_);
  if (num_masks_ >= max_masks_) {
    masks_.clear();
    num_masks_ = 0;
  }
  masks_[key_but_numbers(row)].push_back({std::move(extent), mask});
  ++num_masks_;
  return mask;
}

const ClosingTokens& TokenGrammar::closing() {
  MutexLock lock(closing_mutex_);
  if (closing_ == nullptr) closing_ = std::make_unique<ClosingTokens>(grammar_, *vocabulary_);
  return *closing_;
}

TokenGrammar::Closable TokenGrammar::make_closable(const GrammarRow& row, int num_left,
                                                   std::vector<std::int32_t> way) {
  const auto legal = find_or_make(row);
  auto shorter = closing().find(row);
  if (shorter && (way.empty() || shorter->size() < way.size())) way = std::move(*shorter);
  if (!shorter && way.empty()) return {legal, {}};
  auto mask = std::make_shared<TokenMask>(*legal);
  // Behind a token there must be room for the rest and the end token.
  // Counts beyond the largest that is asked for are alike.
  closing().keep_closable(row, key_of_row(row, largest_count_ + 1), num_left - 2, *mask);
  // The way that is known may be a better one than is found from behind its first token.
  if (!way.empty()) {
    (*mask)[static_cast<std::size_t>(way.front()) / 32] |= 1u << (way.front() % 32);
  }
  return {std::move(mask), std::move(way)};
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

void MaskWorkers::begin(std::shared_ptr<Job> job) {
  GAPLESS_CHECK(queue_.push(std::move(job)));
}

void MaskWorkers::run() {
  while (const auto job = queue_.pop()) (*job)->run();
}

void MaskWorkers::Job::run() {
  TokenGrammar::Closable found;
  if (num_left_) {
    found = grammar_->make_closable(row_, *num_left_, way_);
  } else {
    found.mask = grammar_->find_or_make(row_);
  }
  {
    MutexLock lock(mutex_);
    found_ = std::move(found);
  }
  done_.notify_all();
}

TokenGrammar::Closable MaskWorkers::Job::wait() {
  MutexLock lock(mutex_);
  while (found_.mask == nullptr) done_.wait(lock);
  return std::move(found_);
}

bool MaskWorkers::Job::is_done() const {
  MutexLock lock(mutex_);
  return found_.mask != nullptr;
}

// ---- GrammarConstraint

GrammarConstraint::GrammarConstraint(std::shared_ptr<TokenGrammar> grammar,
                                     std::shared_ptr<MaskWorkers> workers,
                                     std::optional<int> max_tokens)
    : grammar_(std::move(grammar)),
      workers_(std::move(workers)),
      row_(begin_row(grammar_->grammar())),
      num_left_(max_tokens) {
  if (!num_left_) {
    mask_ = grammar_->find_or_make(row_);
    return;
  }
  TokenGrammar::Closable found = grammar_->make_closable(row_, *num_left_, {});
  mask_ = std::move(found.mask);
  way_ = std::move(found.way);
}

void GrammarConstraint::allowed(std::span<std::uint32_t> mask) const {
  if (broken_) return;
  if (mask_ == nullptr) {
    TokenGrammar::Closable found = job_->wait();
    mask_ = std::move(found.mask);
    way_ = std::move(found.way);
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
  if (num_left_) --*num_left_;
  if (!num_left_ && (row_.depth < kDeep || !grammar_->may_run_out())) {
    way_.clear();
    mask_ = grammar_->find(row_);
    if (mask_ != nullptr) return;
    job_ = std::make_shared<MaskWorkers::Job>(grammar_, row_);
  } else {
    const bool is_on_way = !way_.empty() && way_.front() == token.value;
    way_.erase(way_.begin(), is_on_way ? way_.begin() + 1 : way_.end());
    mask_ = nullptr;
    job_ = std::make_shared<MaskWorkers::Job>(grammar_, row_, num_left_.value_or(kNoLimit), way_);
  }
  workers_->begin(job_);
}

// ---- GrammarStore

GrammarStore::GrammarStore(std::vector<std::string> bytes, std::int32_t eos_id)
    : vocabulary_(std::make_shared<const VocabularyTrie>(std::move(bytes))),
      eos_id_(eos_id),
      workers_(std::make_shared<MaskWorkers>(kNumMaskThreads)) {}

std::optional<StatusOr<std::shared_ptr<TokenGrammar>>> GrammarStore::find(const GrammarSpec& spec) {
  const std::string key = spec.key();
  MutexLock lock(mutex_);
  return find_key(key);
}

std::optional<StatusOr<std::shared_ptr<TokenGrammar>>> GrammarStore::find_key(
    const std::string& key) {
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
    (void)entry.grammar->find_or_make(begin_row(entry.grammar->grammar()));
  }
  MutexLock lock(mutex_);
  // Another thread may have compiled the same meanwhile: sequences share the masks of one.
  if (!find_key(entry.key)) {
    entries_.push_front(std::move(entry));
    if (entries_.size() > kMaxCachedGrammars) entries_.pop_back();
  }
  return *find_key(spec.key());
}

std::unique_ptr<TokenConstraint> GrammarStore::constraint(
    std::shared_ptr<TokenGrammar> grammar) const {
  return std::make_unique<GrammarConstraint>(std::move(grammar), workers_);
}

StatusOr<std::unique_ptr<TokenConstraint>> GrammarStore::complete_constraint(
    std::shared_ptr<TokenGrammar> grammar, int max_tokens) const {
  const auto shortest = grammar->closing().find(begin_row(grammar->grammar()));
  if (!shortest) return invalid_field("complete", "cannot be kept: no short answer is known");
  const int num_tokens = static_cast<int>(shortest->size()) + 1;
  if (num_tokens > max_tokens) {
    return invalid_field("complete",
                         "cannot be kept: the answer takes {} tokens, and it may have {}",
                         num_tokens, max_tokens);
  }
  return std::unique_ptr<TokenConstraint>(
      std::make_unique<GrammarConstraint>(std::move(grammar), workers_, max_tokens));
}

}  // namespace gapless
