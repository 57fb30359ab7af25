// What the parts of the row kernel refuse before a launch. `operation` is the name that messages begin with.
#pragma once

#include "backend/ops.h"
#include "dsv4rt/status.h"

namespace dsv4rt::cuda {

Status check_query(const QueryParams& params, const char* operation);
Status check_index_query(const IndexQueryParams& params, const char* operation);
Status check_swa_kv(const SwaKvParams& params, const char* operation);
// `staged_shape` and format of rows that go into `ring`.
Status check_window_ring(const SwaRing& ring, const BlockShape& staged_shape, const char* operation);
Status check_state(const CompressorInput& input, const StateRing& state, const char* operation);
Status check_compress(const CompressParams& params, const char* operation);

}  // namespace dsv4rt::cuda
