// What moves of cache rows refuse on every backend, before the first change.
#pragma once

#include "backend/boundary_state.h"

namespace dsv4rt {

Status check_boundary_copies(BoundaryDirection direction, std::span<const BoundaryCopy> copies,
                             std::span<const BoundaryRows> rows, const BoundaryStates& states);
Status check_keep_boundary(const KeepBoundaryParams& params);
Status check_finished_rows(const FinishedRowsParams& params);
Status check_table_rows(std::int32_t slot, const std::int32_t* ids, std::span<const std::int32_t> columns,
                        std::span<const CacheTable> tables);

}  // namespace dsv4rt
