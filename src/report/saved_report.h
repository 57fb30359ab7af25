// Reports that were saved as files.
#pragma once

#include <filesystem>

#include "report/document.h"

namespace dsv4rt::report {

// The document in a file of at most 64 MiB; kBadInput naming the file.
Result<Document> read_saved_report(const std::filesystem::path& path);

}  // namespace dsv4rt::report
