// The communicator over NCCL: device memory, a communicator that does not block, a watched deadline.
#pragma once

#include <memory>

#include "dsv4rt/communicator.h"
#include "dsv4rt/status.h"

namespace dsv4rt::cuda {

// What create_nccl_unique_id and create_nccl_communicator (dsv4rt/communicator.h) do in builds with NCCL.
Result<NcclUniqueId> make_nccl_unique_id();
Result<std::shared_ptr<Communicator>> make_nccl_communicator(const NcclOptions& options);

}  // namespace dsv4rt::cuda
