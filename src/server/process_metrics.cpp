#include "server/process_metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>

namespace gapless {
namespace {

// /proc/self/stat, of which proc(5) numbers the fields from 1.
struct ProcessStat {
  double cpu_seconds = 0;             // utime and stime: 14, 15
  double start_ticks_since_boot = 0;  // 22
  double virtual_bytes = 0;           // 23
  double resident_pages = 0;          // 24
};

double ticks_per_second() {
  return static_cast<double>(sysconf(_SC_CLK_TCK));
}

std::optional<ProcessStat> read_stat() {
  std::ifstream file("/proc/self/stat");
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  // The name of the program is in parentheses and may hold any character.
  const std::size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(name_end + 1));
  ProcessStat stat;
  std::string skipped;
  fields >> skipped;  // 3, the state, is a letter
  double value = 0;
  for (int field = 4; field <= 24 && fields >> value; ++field) {
    if (field == 14 || field == 15) stat.cpu_seconds += value / ticks_per_second();
    if (field == 22) stat.start_ticks_since_boot = value;
    if (field == 23) stat.virtual_bytes = value;
    if (field == 24) stat.resident_pages = value;
  }
  return fields ? std::optional(stat) : std::nullopt;
}

// Unix time; 0: unknown.
double boot_time_s() {
  std::ifstream file("/proc/stat");
  std::string word;
  double seconds = 0;
  while (file >> word) {
    if (word == "btime" && file >> seconds) return seconds;
  }
  return 0;
}

std::optional<int> count_open_files() {
  std::error_code error;
  std::filesystem::directory_iterator files("/proc/self/fd", error);
  int count = 0;
  for (; !error && files != std::filesystem::directory_iterator(); files.increment(error)) ++count;
  if (error) return std::nullopt;
  return count - 1;  // the directory itself is open, too
}

}  // namespace

void write_process(Exposition& out) {
  if (const auto stat = read_stat()) {
    out.plain("process_cpu_seconds_total", "counter", "Processor time, of user and system",
              stat->cpu_seconds);
    out.plain("process_virtual_memory_bytes", "gauge", "Address space", stat->virtual_bytes);
    out.plain("process_resident_memory_bytes", "gauge", "Memory of the server's process",
              stat->resident_pages * static_cast<double>(sysconf(_SC_PAGESIZE)));
    if (const double boot_s = boot_time_s(); boot_s > 0) {
      out.plain("process_start_time_seconds", "gauge", "When the process began, as Unix time",
                boot_s + stat->start_ticks_since_boot / ticks_per_second());
    }
  }
  if (const auto open_files = count_open_files()) {
    out.plain("process_open_fds", "gauge", "Open file descriptors", *open_files);
  }
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    out.plain("process_max_fds", "gauge", "File descriptors that may be open",
              static_cast<double>(limit.rlim_cur));
  }
}

}  // namespace gapless
