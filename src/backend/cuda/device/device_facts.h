// What plans depend on of a device.
#pragma once

namespace dsv4rt::cuda {

struct DeviceFacts {
  int ordinal = 0;
  int compute_major = 0;
  int compute_minor = 0;
  int multiprocessors = 0;
  int block_shared_bytes = 0;     // shared memory of a block that asks for all it may have
  int sm_shared_bytes = 0;        // shared memory of a multiprocessor
  int reserved_shared_bytes = 0;  // what the driver keeps in every block, out of sm_shared_bytes
  // Whether kernels run here as code for sm_90a: wgmma, the copy engine, moved registers. Their bodies are empty in
  // code for other architectures, so nothing may launch one where this is false.
  bool has_sm90a = false;
};

}  // namespace dsv4rt::cuda
