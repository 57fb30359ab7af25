#include "dist/exclusive_use.h"

#include <mutex>
#include <string>
#include <unordered_set>

namespace dsv4rt {
namespace {

struct Used {
  std::mutex mutex;
  std::unordered_set<const Communicator*> communicators;
};
// Never destroyed: an engine may be when the process ends.
Used& used() {
  static auto& all = *new Used;
  return all;
}

}  // namespace

Result<ExclusiveUse> use_exclusively(const Communicator& ranks) {
  Used& all = used();
  const std::lock_guard lock(all.mutex);
  if (all.communicators.insert(&ranks).second) return ExclusiveUse(&ranks);
  return Status{StatusCode::kFailedPrecondition,
                "parallel: rank " + std::to_string(ranks.rank()) +
                    "'s communicator is another engine's; accepted: one that no engine has, such as a second one of "
                    "the same ranks"};
}

void EndExclusiveUse::operator()(const Communicator* ranks) const noexcept {
  Used& all = used();
  const std::lock_guard lock(all.mutex);
  all.communicators.erase(ranks);
}

}  // namespace dsv4rt
