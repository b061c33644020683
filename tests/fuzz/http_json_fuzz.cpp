// Any bytes as the body of every API: an error, or a request that validate() can judge; and as an
// image_url.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/limits.h"
#include "server/chat_request.h"
#include "server/completion_request.h"
#include "server/image_url.h"
#include "server/json_body.h"
#include "server/ollama_request.h"
#include "skill/request_json.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gapless;
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  if (const auto bytes = image_bytes_from_url(body); bytes.ok()) {
    GAPLESS_CHECK(!bytes->empty() && bytes->size() <= body.size() / 4 * 3 + 3);
  }
  auto object = parse_json_body(body);
  if (!object.ok()) return 0;
  for (const Skill skill : kSkills) {
    const auto request = skill_request_from_json(skill, *object);
    if (request.ok()) (void)validate(*request);
  }
  for (const OllamaRoute route : {OllamaRoute::kChat, OllamaRoute::kGenerate}) {
    auto copy = *object;
    const auto request = ollama_request_from_json(route, copy);
    if (request.ok() && !request->only_loads) (void)validate(request->chat.skill);
  }
  {
    auto copy = *object;
    const auto completion = completion_request_from_json(copy);
    if (completion.ok()) (void)validate(completion->skill);
  }
  const auto chat = chat_request_from_json(*object);
  if (chat.ok()) {
    GAPLESS_CHECK(chat->num_choices >= 1 && chat->num_choices <= kMaxChoices);
    (void)validate(chat->skill);
  }
  return 0;
}
