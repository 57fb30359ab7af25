// The page of a replay: one HTML file that needs neither network nor scripts, made of the JSON report that the replay
// wrote and of nothing else, so a page can be made again from a saved report and has the same bytes.
//
// Sections by mode: headline, latency, load, cache, capacity, slowest, memory, run, meaning for a served log;
// headline, capacity, run, meaning for a study of the cache alone.
#pragma once

#include <string>
#include <string_view>

#include "report/document.h"

namespace dsv4rt::report {

// kBadInput naming `name` and the field that is missing or of another kind.
Result<std::string> replay_page(const Document& document, std::string_view name);

}  // namespace dsv4rt::report
