#include "attention/stage_observer.h"

namespace dsv4rt {

std::string_view stage_name(Stage stage) noexcept {
  switch (stage) {
    case Stage::kProject:
      return "project";
    case Stage::kQueries:
      return "queries";
    case Stage::kWriteKv:
      return "write kv";
    case Stage::kIndexerTopk:
      return "indexer top-k";
    case Stage::kAttend:
      return "attend";
    case Stage::kStoreWindow:
      return "store window";
    case Stage::kOutput:
      return "output";
    case Stage::kExchange:
      return "exchange";
  }
  return "?";
}

}  // namespace dsv4rt
