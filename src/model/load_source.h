// load_model() of model_loader.h, for a model that was found already.
#pragma once

#include <memory>

#include "base/status.h"
#include "model/model_loader.h"
#include "model/model_source.h"

namespace gapless {

// Opens, validates and uploads; takes seconds for a large model. Errors name the file and what is
// wrong with it.
StatusOr<std::unique_ptr<LoadedModel>> load_model(std::unique_ptr<Device> device,
                                                  const ModelSource& source,
                                                  const ModelOptions& options = {});

}  // namespace gapless
