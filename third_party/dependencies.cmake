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
endif()
