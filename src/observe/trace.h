// Writes the ledger's records as a Chrome trace (JSON; open it in ui.perfetto.dev or
// chrome://tracing).
//
// Tracks: the engine thread's phases; the device's forwards and samplings, stamped by itself; the
// gaps between them, named as the ledger charged them; the copies; and the steps that carried
// zombies. A copy is not stamped: its slice is the bound that is
// known, from the launch to the forward's begin (inputs), and from the sampling's end to the moment
// the host had the outputs. Several devices are several processes of the trace, of one clock.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/status.h"
#include "observe/ledger.h"
#include "observe/step_record.h"

namespace gapless {

struct DeviceTrace {
  std::string device;  // "cuda:0"
  std::vector<StepRecord> records;
  std::vector<HostPhase> phases;
  std::vector<IdlePart> idle_parts;
};

// The ledger's last steps.
DeviceTrace trace_of(const Ledger& ledger, std::string device, std::size_t most_steps = SIZE_MAX);

// The whole JSON text. Times count from the earliest one, in microseconds.
std::string chrome_trace(const std::vector<DeviceTrace>& devices);

Status write_chrome_trace(const std::vector<DeviceTrace>& devices,
                          const std::filesystem::path& path);

}  // namespace gapless
