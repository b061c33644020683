// A grammar over a vocabulary, with the sets of legal tokens that were found so far; and the constraint of one
// sequence under it.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/bounded_queue.h"
#include "base/limits.h"
#include "base/mutex.h"
#include "base/status.h"
#include "constraint/closing_tokens.h"
#include "constraint/legal_tokens.h"
#include "constraint/vocabulary_trie.h"
#include "grammar/grammar_spec.h"
#include "step/token_constraint.h"

namespace gapless {

using TokenMask = std::vector<std::uint32_t>;

// Thread-safe; shared by all sequences that asked for the same grammar.
class TokenGrammar {
 public:
  TokenGrammar(Grammar grammar, std::shared_ptr<const VocabularyTrie> vocabulary,
               std::int32_t eos_id);

  const Grammar& grammar() const { return grammar_; }
  const VocabularyTrie& vocabulary() const { return *vocabulary_; }
  std::int32_t eos_id() const { return eos_id_; }
  // Every answer ends with a token, and none runs out of frames: so a device that walks the same tables samples the same tokens
  // as the host's masks.
  bool fits_device() const {
    return !may_run_out_ && eos_id_ >= 0 && eos_id_ < vocabulary_->vocab();
  }
  bool may_run_out() const { return may_run_out_; }  // may_run_out_of_frames()

  // The legal tokens at `row`; nullptr: not found out yet.
  std::shared_ptr<const TokenMask> find(const GrammarRow& row) const;
  // The same, found out now: takes a fraction of a millisecond.
  std::shared_ptr<const TokenMask> find_or_make(const GrammarRow& row);

  // Where the answer must be whole (closing_tokens.h). The first call takes some milliseconds.
  const ClosingTokens& closing();
  struct Closable {
    std::shared_ptr<const TokenMask> mask;
    std::vector<std::int32_t> way;  // tokens that end the answer, and are allowed
  };
  // find_or_make(), without the tokens behind which the answer is not known to end within `num_left` tokens from here, the
  // end token included. `way`: one that was known before and goes on here, or none.
  Closable make_closable(const GrammarRow& row, int num_left, std::vector<std::int32_t> way);

  std::size_t num_masks() const;

 private:
  struct Entry {
    WalkExtent extent;
    std::shared_ptr<const TokenMask> mask;
  };

  const Grammar grammar_;
  const std::shared_ptr<const VocabularyTrie> vocabulary_;
  const std::int32_t eos_id_;
  const std::int32_t largest_count_;
  const bool may_run_out_;
  const std::size_t max_masks_;
  Mutex closing_mutex_;
  std::unique_ptr<const ClosingTokens> closing_ GAPLESS_GUARDED_BY(closing_mutex_);
  mutable Mutex mutex_;
  std::unordered_map<std::string, std::vector<Entry>> masks_ GAPLESS_GUARDED_BY(mutex_);
  std::size_t num_masks_ GAPLESS_GUARDED_BY(mutex_) = 0;
};

// Threads that find legal tokens beside the engine thread. Ends when nobody needs it.
class MaskWorkers {
 public:
  explicit MaskWorkers(int num_threads);
  ~MaskWorkers();
  MaskWorkers(const MaskWorkers&) = delete;
  MaskWorkers& operator=(const MaskWorkers&) = delete;

  // One set that somebody waits for.
  class Job {
   public:
    // `num_left`, `way`: of an answer that must be whole, for TokenGrammar::make_closable().
    Job(std::shared_ptr<TokenGrammar> grammar, const GrammarRow& row,
        std::optional<int> num_left = std::nullopt, std::vector<std::int32_t> way = {})
        : grammar_(std::move(grammar)), row_(row), num_left_(num_left), way_(std::move(way)) {}
    // Waits until it is there. At most once.
    TokenGrammar::Closable wait();
    // Until wait() has returned.
    bool is_done() const;

   private:
    friend class MaskWorkers;
    void run();

    const std::shared_ptr<TokenGrammar> grammar_;
    const GrammarRow row_;
    const std::optional<int> num_left_;
    const std::vector<std::int32_t> way_;
    mutable Mutex mutex_;
    ConditionVariable done_;
    TokenGrammar::Closable found_ GAPLESS_GUARDED_BY(mutex_);
  };

  // At most one for each sequence that has a seat. Waits for a worker where those of sequences that
  // were cancelled fill the queue.
  void begin(std::shared_ptr<Job> job);

 private:
  void run();

  BoundedQueue<std::shared_ptr<Job>> queue_{kMaxSeats};
  std::vector<std::thread> threads_;
};

// One sequence. The set for the first token is found out when this is made; those that are not known when a token
// comes are begun by a worker at once, and allowed() waits for it.
class GrammarConstraint final : public TokenConstraint {
 public:
  // `max_tokens`: of an answer that must be whole within so many, its end token included.
  GrammarConstraint(std::shared_ptr<TokenGrammar> grammar, std::shared_ptr<MaskWorkers> workers,
                    std::optional<int> max_tokens = std::nullopt);

  void allowed(std::span<std::uint32_t> mask) const override;
  bool is_ready() const override { return broken_ || mask_ != nullptr || job_->is_done(); }
  // A token that is not legal ends the sequence: nothing is allowed behind it. (The sampler cannot return one.)
  void advance(TokenId token) override;

 private:
  const std::shared_ptr<TokenGrammar> grammar_;
  const std::shared_ptr<MaskWorkers> workers_;
  GrammarRow row_;
  std::optional<int> num_left_;
  mutable std::vector<std::int32_t> way_;  // TokenGrammar::Closable
  bool broken_ = false;
  mutable std::shared_ptr<const TokenMask> mask_;
  mutable std::shared_ptr<MaskWorkers::Job> job_;  // while mask_ is not there
};

// The grammars of an engine by their content: compiled once, the last used ones kept. What cannot be held is
// remembered as well. Thread-safe.
class GrammarStore {
 public:
  // bytes[i]: of token i (vocabulary_trie.h).
  GrammarStore(std::vector<std::string> bytes, std::int32_t eos_id);

  // What is known of the spec, at no cost; nothing: it has to be compiled.
  std::optional<StatusOr<std::shared_ptr<TokenGrammar>>> find(const GrammarSpec& spec);
  // Compiles unless it is known, and finds the legal tokens of an answer's beginning. Takes up to a second.
  StatusOr<std::shared_ptr<TokenGrammar>> get(const GrammarSpec& spec);
  std::unique_ptr<TokenConstraint> constraint(std::shared_ptr<TokenGrammar> grammar) const;
  // Of an answer that is whole within max_tokens. InvalidArgument: no text is known that is so short.
  StatusOr<std::unique_ptr<TokenConstraint>> complete_constraint(
      std::shared_ptr<TokenGrammar> grammar, int max_tokens) const;

 private:
  struct Entry {
    std::string key;
    Status refusal;                         // not OK: cannot be held
    std::shared_ptr<TokenGrammar> grammar;  // otherwise
  };

  std::optional<StatusOr<std::shared_ptr<TokenGrammar>>> find_key(const std::string& key)
      GAPLESS_REQUIRES(mutex_);

  const std::shared_ptr<const VocabularyTrie> vocabulary_;
  const std::int32_t eos_id_;
  const std::shared_ptr<MaskWorkers> workers_;
  Mutex mutex_;
  std::list<Entry> entries_ GAPLESS_GUARDED_BY(mutex_);  // the last used first
};

}  // namespace gapless
