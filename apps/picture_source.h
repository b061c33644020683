// Pictures as a command line names them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"

namespace gapless {

// Patterns ('photos/*.jpg') become the files that match them, in order; everything else stays as it
// is. A file whose name has a '*' in it wins. NotFound: nothing matches a pattern.
StatusOr<std::vector<std::string>> expand_pictures(const std::vector<std::string>& names);

// The encoded bytes of a file, of an http(s) address, or of standard input ("-"), of which there is
// one. The error names it. Whoever types an address is on this side of the firewall, so, unlike the
// server's, it may be of the local network.
StatusOr<std::shared_ptr<const std::string>> read_picture(const std::string& name);

}  // namespace gapless
