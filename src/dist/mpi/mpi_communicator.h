// The communicator over MPI: host memory, non-blocking collectives that are polled against the deadline.
#pragma once

#include <memory>

#include "dsv4rt/communicator.h"
#include "dsv4rt/status.h"

namespace dsv4rt {

// What create_mpi_communicator (dsv4rt/communicator.h) does in builds with MPI.
Result<std::shared_ptr<Communicator>> make_mpi_communicator(const MpiOptions& options);

}  // namespace dsv4rt
