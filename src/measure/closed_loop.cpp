#include "measure/closed_loop.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

namespace gapless {
namespace {

// Every client's next prompt, and what they have received. Everything on the engine thread.
class Clients {
 public:
  Clients(Loop& loop, const PromptSource& prompts, int count) : loop_(loop), prompts_(prompts) {
    for (int i = 0; i < count; ++i) clients_.push_back(std::make_shared<Client>(*this, i));
  }

  void start() {
    for (const auto& client : clients_) submit(*client);
  }
  // No more prompts; what runs is cancelled.
  void finish() {
    finishing_ = true;
    for (const auto& client : clients_) loop_.cancel(client->sequence);
  }

  const Status& status() const { return status_; }
  std::int64_t num_tokens() const { return num_tokens_; }
  std::int64_t num_answers() const { return num_answers_; }
  bool all_started() const { return num_started_ == static_cast<int>(clients_.size()); }

 private:
  struct Client final : public TokenSink, public std::enable_shared_from_this<Client> {
    Client(Clients& owner_in, int index_in) : owner(owner_in), index(index_in) {}
    void on_token(const CommittedToken&) override {
      ++owner.num_tokens_;
      if (!has_token) ++owner.num_started_;
      has_token = true;
    }
    void on_finished(FinishReason, const Status& status, const SequenceTimes&) override {
      ++owner.num_answers_;
      if (owner.finishing_) return;
      if (!status.ok()) return owner.fail(status);
      owner.submit(*this);
    }

    Clients& owner;
    const int index;
    SequenceId sequence;
    std::int64_t num_submitted = 0;
    bool has_token = false;
  };

  void submit(Client& client) {
    const auto id = loop_.submit(prompts_.make(client.index, client.num_submitted++),
                                 client.shared_from_this());
    if (!id.ok()) return fail(id.status());
    client.sequence = *id;
  }

  void fail(const Status& status) {
    if (status_.ok()) status_ = status;
    finishing_ = true;
  }

  Loop& loop_;
  const PromptSource& prompts_;
  std::vector<std::shared_ptr<Client>> clients_;
  Status status_;
  bool finishing_ = false;
  std::int64_t num_tokens_ = 0;
  std::int64_t num_answers_ = 0;
  int num_started_ = 0;
};

// Ticks until `is_enough`, or until something fails.
void tick_until(Loop& loop, const Clients& clients, const std::function<bool()>& is_enough) {
  while (clients.status().ok() && !is_enough()) loop.tick();
}

void drain(Loop& loop, Clients& clients) {
  clients.finish();
  while (loop.tick() == Loop::Tick::kWorked) {
  }
}

ClosedLoopWindow measure(Loop& loop, HostClock& clock, const Clients& clients,
                         const ClosedLoopOptions& options) {
  ClosedLoopWindow window;
  loop.ledger().restart();
  const std::int64_t begin_ns = clock.now_ns();
  const std::int64_t awake_before_ns = thread_awake_ns();
  const std::int64_t tokens_before = clients.num_tokens();
  const std::int64_t answers_before = clients.num_answers();
  const std::int64_t forbidden_before = loop.forbidden_calls();
  // Looking at the ledger's totals takes a lock; ticks are counted instead, about one per step.
  int num_ticks = 0;
  tick_until(loop, clients, [&] {
    if (num_ticks++ >= options.max_window_steps) return true;
    return num_ticks > options.window_steps && clock.now_ns() - begin_ns >= options.window_ns;
  });
  window.host_ns = clock.now_ns() - begin_ns;
  window.awake_ns = thread_awake_ns() - awake_before_ns;
  window.totals = loop.ledger().totals();
  window.num_tokens = clients.num_tokens() - tokens_before;
  window.num_answers = clients.num_answers() - answers_before;
  window.forbidden_calls = loop.forbidden_calls() - forbidden_before;

  window.records = loop.ledger().records();
  const auto num_steps = static_cast<std::size_t>(window.totals.steps());
  if (window.records.size() > num_steps) {
    window.records.erase(window.records.begin(),
                         window.records.end() - static_cast<std::ptrdiff_t>(num_steps));
  }
  window.phases = loop.ledger().phases();
  return window;
}

}  // namespace

StatusOr<ClosedLoopWindow> run_closed_loop(Loop& loop, HostClock& clock,
                                           const PromptSource& prompts,
                                           const ClosedLoopOptions& options) {
  Clients clients(loop, prompts, options.num_streams);
  clients.start();
  tick_until(loop, clients, [&] { return clients.all_started(); });
  const std::int64_t started_ns = clock.now_ns();
  int num_ticks = 0;
  tick_until(loop, clients, [&] {
    return num_ticks++ >= options.warm_up_steps &&
           clock.now_ns() - started_ns >= options.warm_up_ns;
  });
  ClosedLoopWindow window = measure(loop, clock, clients, options);
  drain(loop, clients);
  window.num_all_tokens = clients.num_tokens();
  GAPLESS_RETURN_IF_ERROR(clients.status());
  return window;
}

}  // namespace gapless
