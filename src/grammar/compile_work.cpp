#include "grammar/compile_work.h"

namespace gapless {
namespace {

thread_local CompileWork* current = nullptr;

}  // namespace

CompileWork::CompileWork(long max_steps) : outer_(current), max_steps_(max_steps) {
  current = this;
}

CompileWork::~CompileWork() {
  current = outer_;
}

Status CompileWork::spend(long steps) {
  if (current == nullptr) return ok_status();
  current->spent_ += steps;
  if (current->spent_ <= current->max_steps_) return ok_status();
  return make_error(StatusCode::kResourceExhausted,
                    "the grammar takes more than {} steps to compile", current->max_steps_);
}

}  // namespace gapless
