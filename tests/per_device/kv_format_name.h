#pragma once

#include <gtest/gtest.h>

#include <string>

#include "kernels/kv_format.h"

namespace gapless {

// The end of the name of a test whose parameter is a KvFormat.
inline std::string kv_format_name(const testing::TestParamInfo<KvFormat>& info) {
  return info.param == KvFormat::kFp8 ? "fp8" : "native";
}

}  // namespace gapless
