# How each dependency is found. Everything comes from Debian packages (scripts/setup.sh installs
# them) or, for CUDA, from an installed toolkit; nothing is downloaded or copied.

find_package(Threads REQUIRED)
find_package(spdlog REQUIRED)                        # log lines of the command line
find_package(nlohmann_json 3.9 REQUIRED)             # config.json, safetensors headers, reports
find_package(OpenSSL REQUIRED COMPONENTS Crypto)     # SHA-256 digests
if(DSV4RT_BUILD_TOOLS OR DSV4RT_BUILD_BENCHMARKS OR DSV4RT_BUILD_GPU_BENCHMARKS)
  find_package(CLI11 REQUIRED)                       # flags of the programs
endif()
if(DSV4RT_BUILD_BENCHMARKS)
  find_package(benchmark REQUIRED)                   # Google Benchmark
endif()
if(DSV4RT_BUILD_TESTS)
  find_package(GTest REQUIRED)
  find_package(rapidcheck REQUIRED)                  # model-based property tests
  # The tidy tests and others; standard library only. tests/install/c_abi_test.py runs abidiff (abigail-tools).
  find_package(Python3 3.9 REQUIRED COMPONENTS Interpreter)
endif()

# DSV4RT_HAVE_CUDA: whether the CUDA backend is built. Its kernels take minutes to compile, so AUTO builds them
# where they can run: with a toolkit and a GPU in this machine.
# The toolkit's parts in use: nvcc, the static runtime, the headers of the driver, of NVTX and of cuBLASLt. The library
# libcublasLt.so is loaded by programs that ask for it (LinearPrecision::kNvfp4), never linked. Its NVFP4 operands came
# with 12.8; nothing before 12.9 was tried.
set(DSV4RT_HAVE_CUDA OFF)
if(DSV4RT_CUDA STREQUAL "ON")
  find_package(CUDAToolkit 12.9 REQUIRED)
  set(DSV4RT_HAVE_CUDA ON)
elseif(DSV4RT_CUDA STREQUAL "AUTO")
  find_package(CUDAToolkit 12.9 QUIET)
  if(CUDAToolkit_FOUND AND EXISTS "/dev/nvidia0")
    set(DSV4RT_HAVE_CUDA ON)
  endif()
elseif(NOT DSV4RT_CUDA STREQUAL "OFF")
  message(FATAL_ERROR "DSV4RT_CUDA is '${DSV4RT_CUDA}'; it must be AUTO, ON or OFF")
endif()
if(DSV4RT_HAVE_CUDA)
  set(DSV4RT_CUDA_ARCHITECTURES "90a-real;100a-real;90-virtual" CACHE STRING
      "GPU code to build: H100/H200, B200, and PTX for later ones")
  set(CMAKE_CUDA_ARCHITECTURES "${DSV4RT_CUDA_ARCHITECTURES}")
  include(dsv4rt_cuda_architectures)
  dsv4rt_check_cuda_architectures("${DSV4RT_CUDA_ARCHITECTURES}" refused)
  if(refused)
    message(FATAL_ERROR "${refused}")
  endif()
  if(NOT CMAKE_CUDA_COMPILER)
    find_program(CMAKE_CUDA_COMPILER nvcc HINTS "${CUDAToolkit_BIN_DIR}" REQUIRED)
  endif()
  find_path(DSV4RT_CUBLASLT_INCLUDE_DIR cublasLt.h HINTS ${CUDAToolkit_INCLUDE_DIRS} REQUIRED)
  mark_as_advanced(DSV4RT_CUBLASLT_INCLUDE_DIR)
  enable_language(CUDA)
  message(STATUS "dsv4rt: CUDA backend with toolkit ${CUDAToolkit_VERSION} in ${CUDAToolkit_BIN_DIR} "
          "for ${DSV4RT_CUDA_ARCHITECTURES}")
elseif(CUDAToolkit_FOUND)
  message(STATUS "dsv4rt: CPU only; CUDA ${CUDAToolkit_VERSION} is there, but no GPU (DSV4RT_CUDA=ON builds anyway)")
else()
  message(STATUS "dsv4rt: CPU only (DSV4RT_CUDA=${DSV4RT_CUDA})")
endif()

# DSV4RT_HAVE_MPI: whether ranks over MPI are built. Its library is linked: MPI has no stable binary interface that
# could be loaded when it is asked for.
set(DSV4RT_HAVE_MPI OFF)
if(NOT DSV4RT_MPI MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "DSV4RT_MPI is '${DSV4RT_MPI}'; it must be AUTO, ON or OFF")
endif()
if(DSV4RT_MPI STREQUAL "ON")
  find_package(MPI 3.0 REQUIRED COMPONENTS CXX)
elseif(DSV4RT_MPI STREQUAL "AUTO")
  find_package(MPI 3.0 QUIET COMPONENTS CXX)
endif()
if(NOT DSV4RT_MPI STREQUAL "OFF" AND MPI_CXX_FOUND)
  set(DSV4RT_HAVE_MPI ON)
  message(STATUS "dsv4rt: ranks over MPI, started by ${MPIEXEC_EXECUTABLE}")
else()
  message(STATUS "dsv4rt: no ranks over MPI (DSV4RT_MPI=${DSV4RT_MPI})")
endif()

# DSV4RT_HAVE_NCCL: whether ranks over NCCL are part of the CUDA backend. Only its header is needed: libnccl.so.2 is
# loaded by programs that ask for it. 2.14 brought communicators that do not block.
set(DSV4RT_HAVE_NCCL OFF)
if(NOT DSV4RT_NCCL MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "DSV4RT_NCCL is '${DSV4RT_NCCL}'; it must be AUTO, ON or OFF")
endif()
if(DSV4RT_HAVE_CUDA AND NOT DSV4RT_NCCL STREQUAL "OFF")
  find_path(DSV4RT_NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  mark_as_advanced(DSV4RT_NCCL_INCLUDE_DIR)
  if(DSV4RT_NCCL_INCLUDE_DIR)
    set(DSV4RT_HAVE_NCCL ON)
  endif()
endif()
if(DSV4RT_NCCL STREQUAL "ON" AND NOT DSV4RT_HAVE_NCCL)
  message(FATAL_ERROR "DSV4RT_NCCL is ON, which needs the CUDA backend (DSV4RT_CUDA) and nccl.h: install libnccl-dev")
endif()
if(DSV4RT_HAVE_CUDA)
  message(STATUS "dsv4rt: ranks over NCCL: ${DSV4RT_HAVE_NCCL} (DSV4RT_NCCL=${DSV4RT_NCCL})")
endif()
