#include "dist/communicator_claim.h"

#include <mutex>
#include <new>
#include <string>
#include <unordered_set>

namespace dsv4rt {
namespace {

struct Claims {
  std::mutex mutex;
  std::unordered_set<const Communicator*> held;
};
// Never destroyed: an engine may be when the process ends.
Claims& claims() {
  static auto& all = *new Claims;
  return all;
}

}  // namespace

Result<CommunicatorClaim> CommunicatorClaim::take(const Communicator& ranks) {
  try {
    Claims& all = claims();
    const std::lock_guard lock(all.mutex);
    if (all.held.insert(&ranks).second) return CommunicatorClaim(&ranks);
  } catch (const std::bad_alloc&) {
    return Status{StatusCode::kResourceExhausted, "no host memory"};
  }
  return Status{StatusCode::kFailedPrecondition,
                "parallel: rank " + std::to_string(ranks.rank()) +
                    "'s communicator is another engine's; accepted: one that no engine has, such as a second one of "
                    "the same ranks"};
}

CommunicatorClaim::~CommunicatorClaim() {
  if (ranks_ == nullptr) return;
  Claims& all = claims();
  const std::lock_guard lock(all.mutex);
  all.held.erase(ranks_);
}

}  // namespace dsv4rt
