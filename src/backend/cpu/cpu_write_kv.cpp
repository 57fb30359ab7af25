// The operations between the projections and the reads of the cache, one after the other.
#include "backend/cpu/cpu_ops.h"
#include "base/try.h"

namespace dsv4rt::cpu {

Status CpuOps::write_kv(const WriteKvParams& params) {
  if (params.query) DSV4RT_RETURN_IF_ERROR(query(*params.query));
  if (params.index_query) DSV4RT_RETURN_IF_ERROR(index_query(*params.index_query));
  DSV4RT_RETURN_IF_ERROR(swa_kv(params.window));
  if (params.swa_ring) {
    DSV4RT_RETURN_IF_ERROR(swa_cache_write({.step = params.window.step,
                                            .staged_shape = params.window.staged_shape,
                                            .staged = params.window.staged,
                                            .ring = *params.swa_ring}));
  }
  for (const auto& compressor : {params.compress, params.index_compress}) {
    if (!compressor) continue;
    DSV4RT_RETURN_IF_ERROR(compress(*compressor));
    DSV4RT_RETURN_IF_ERROR(
        state_store({.step = compressor->step, .input = compressor->input, .state = compressor->state}));
  }
  return {};
}

}  // namespace dsv4rt::cpu
