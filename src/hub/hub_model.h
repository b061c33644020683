// A model's files by its name on the hub.
#pragma once

#include <filesystem>
#include <string>

#include "base/status.h"
#include "hub/hub_download.h"
#include "hub/hub_name.h"
#include "hub/hub_settings.h"

namespace gapless {

struct HubModel {
  std::filesystem::path checkpoint;  // a folder of the cache, for find_model()
  std::filesystem::path tokenizer;   // tokenizer.json, maybe of another repository
};

// Weights, config.json and tokenizer.json, from the cache or by download. What is in the cache is
// taken as it is: whether the hub's branch has moved on is not asked. The tokenizer comes from where
// the table of published models says that these weights have it (model/moondream/checkpoint_profile.h). Of
// weights that are not in the cache the header is looked at first, so that a model which this build
// does not run is refused before it is downloaded.
//
// Errors as those of HubRepository::get and of find_model.
StatusOr<HubModel> find_hub_model(const HubName& name, const HubSettings& settings,
                                  const HubEvents& events);

}  // namespace gapless
