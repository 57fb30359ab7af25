#include "backend/cuda/nccl/nccl_library.h"

#include <dlfcn.h>
#include <string>

#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

constexpr const char* kLibrary = "libnccl.so.2";  // functions change between major versions only
// Communicators that do not block.
constexpr int kOldestVersion = NCCL_VERSION(2, 14, 0);

template <class Function>
Status find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function != nullptr) return {};
  return {StatusCode::kUnsupported,
          std::string("nccl: ") + kLibrary + " has no " + name + "; accepted: NCCL 2.14 or later"};
}

}  // namespace

Result<Nccl> load_nccl() {
  void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = ::dlerror();
    return Status{StatusCode::kUnsupported, std::string("nccl: several GPUs need ") + kLibrary +
                                                ", which is not there; install NCCL (Debian and Ubuntu: libnccl2): " +
                                                (reason != nullptr ? reason : "no reason given")};
  }
  Nccl nccl;
#define DSV4RT_FIND(name) DSV4RT_RETURN_IF_ERROR(find(library, #name, nccl.name))
  DSV4RT_FIND(ncclGetVersion);
  DSV4RT_FIND(ncclGetUniqueId);
  DSV4RT_FIND(ncclCommInitRankConfig);
  DSV4RT_FIND(ncclCommGetAsyncError);
  DSV4RT_FIND(ncclCommAbort);
  DSV4RT_FIND(ncclCommDestroy);
  DSV4RT_FIND(ncclGetErrorString);
  DSV4RT_FIND(ncclGetLastError);
  DSV4RT_FIND(ncclAllGather);
  DSV4RT_FIND(ncclBroadcast);
  DSV4RT_FIND(ncclSend);
  DSV4RT_FIND(ncclRecv);
  DSV4RT_FIND(ncclGroupStart);
  DSV4RT_FIND(ncclGroupEnd);
#undef DSV4RT_FIND
  int version = 0;
  if (nccl.ncclGetVersion(&version) != ncclSuccess || version < kOldestVersion) {
    return Status{StatusCode::kUnsupported, std::string("nccl: ") + kLibrary + " is version " +
                                                std::to_string(version) +
                                                "; accepted: " + std::to_string(kOldestVersion) + " (2.14) or later"};
  }
  return nccl;
}

}  // namespace dsv4rt::cuda
