# How each dependency is found. Everything comes from Debian packages (scripts/setup.sh installs
# them) or, for CUDA, from an installed toolkit; nothing is downloaded or copied.

find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)         # the CPU backend's fixed work partition
find_package(spdlog REQUIRED)                        # logging behind src/base/log.h
find_package(nlohmann_json 3.9 REQUIRED)             # config.json, safetensors headers, reports
find_package(OpenSSL REQUIRED COMPONENTS Crypto)     # SHA-256 digests
if(DSV4RT_BUILD_TOOLS)
  find_package(CLI11 REQUIRED)                       # the command line
endif()
if(DSV4RT_BUILD_BENCHMARKS)
  find_package(benchmark REQUIRED)                   # Google Benchmark
endif()
if(DSV4RT_BUILD_TESTS)
  find_package(GTest REQUIRED)
  find_package(rapidcheck REQUIRED)                  # model-based property tests
  find_package(Python3 3.9 REQUIRED COMPONENTS Interpreter)  # the tidy tests; standard library only
endif()

# DSV4RT_HAVE_CUDA: whether targets may link CUDA:: libraries.
set(DSV4RT_HAVE_CUDA OFF)
if(DSV4RT_CUDA STREQUAL "AUTO")
  find_package(CUDAToolkit QUIET)
elseif(DSV4RT_CUDA STREQUAL "ON")
  find_package(CUDAToolkit REQUIRED)
elseif(NOT DSV4RT_CUDA STREQUAL "OFF")
  message(FATAL_ERROR "DSV4RT_CUDA is '${DSV4RT_CUDA}'; it must be AUTO, ON or OFF")
endif()
if(DSV4RT_CUDA STREQUAL "OFF")
  message(STATUS "dsv4rt: CUDA off (DSV4RT_CUDA=OFF)")
elseif(CUDAToolkit_FOUND)
  set(DSV4RT_HAVE_CUDA ON)
  message(STATUS "dsv4rt: CUDA ${CUDAToolkit_VERSION} in ${CUDAToolkit_BIN_DIR} (DSV4RT_CUDA=${DSV4RT_CUDA})")
else()
  message(STATUS "dsv4rt: no CUDA toolkit found, CPU only (DSV4RT_CUDA=AUTO)")
endif()
