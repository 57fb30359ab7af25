// The communicators of the public interface: those that this build has.
#include "dsv4rt/communicator.h"

#if defined(DSV4RT_HAVE_MPI)
#include "dist/mpi/mpi_communicator.h"
#endif
#if defined(DSV4RT_HAVE_NCCL)
#include "backend/cuda/nccl/nccl_communicator.h"
#endif

namespace dsv4rt {

Result<std::shared_ptr<Communicator>> create_mpi_communicator([[maybe_unused]] const MpiOptions& options) {
#if defined(DSV4RT_HAVE_MPI)
  return make_mpi_communicator(options);
#else
  return Status{StatusCode::kUnsupported,
                "mpi is not part of this build; accepted: builds with DSV4RT_MPI=ON (Debian: libopenmpi-dev)"};
#endif
}

#if defined(DSV4RT_HAVE_NCCL)
Result<NcclUniqueId> create_nccl_unique_id() {
  return cuda::make_nccl_unique_id();
}
Result<std::shared_ptr<Communicator>> create_nccl_communicator(const NcclOptions& options) {
  return cuda::make_nccl_communicator(options);
}
#else
Result<NcclUniqueId> create_nccl_unique_id() {
  return Status{StatusCode::kUnsupported,
                "nccl is not part of this build; accepted: builds with DSV4RT_CUDA=ON and DSV4RT_NCCL=ON (nccl.h)"};
}
Result<std::shared_ptr<Communicator>> create_nccl_communicator(const NcclOptions&) {
  return create_nccl_unique_id().status();
}
#endif

}  // namespace dsv4rt
