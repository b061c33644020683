// Writes the ledger's records as a Chrome trace (JSON; open it in ui.perfetto.dev or
// chrome://tracing).
//
// Tracks: the engine thread's phases; the device's forwards and samplings, stamped by itself; the
// gaps between them, named as the ledger charged them; the copies; and the steps that carried
// zombies. A copy is not stamped: its slice is the bound that is
// known, from the launch to the forward's begin (inputs), and from the sampling's end to the moment
// the host had the outputs.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "base/status.h"
#include "observe/ledger.h"
#include "observe/step_record.h"

namespace gapless {

// The whole JSON text. Times count from the earliest one, in microseconds.
std::string chrome_trace(std::span<const StepRecord> records, std::span<const HostPhase> phases,
                         std::span<const IdlePart> idle_parts);
// Of the ledger's last steps.
std::string chrome_trace(const Ledger& ledger, std::size_t most_steps = SIZE_MAX);

Status write_chrome_trace(const Ledger& ledger, const std::filesystem::path& path);

}  // namespace gapless
