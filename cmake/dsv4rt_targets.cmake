# Helpers that give every target of this project the same language level, warnings and sanitizers.

if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)  # for clang-tidy, and for the test that every source is built
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release, RelWithDebInfo or MinSizeRel" FORCE)
  endif()
endif()

function(dsv4rt_compile_settings target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON
                        CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wconversion;-Wno-psabi>)
  # Contraction would make results depend on what the compiler fuses: fused operations are written out.
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off> $<$<COMPILE_LANGUAGE:CUDA>:--fmad=false>)
  # The codecs of src/layout are constexpr and serve host and device. CMake 3.25 does not know nvcc's C++20.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;--expt-relaxed-constexpr>)
  if(DSV4RT_WARNINGS_AS_ERRORS)
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-Werror> $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
  endif()
  if(DSV4RT_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${DSV4RT_SANITIZE} -fno-omit-frame-pointer)
    target_link_options(${target} PRIVATE -fsanitize=${DSV4RT_SANITIZE})
    if(DSV4RT_SANITIZE MATCHES "undefined")
      target_compile_options(${target} PRIVATE -fno-sanitize-recover=undefined)
    endif()
  endif()
  if(DSV4RT_COVERAGE AND CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    # Clang counts regions of the source, which optimisation does not move.
    target_compile_options(${target} PRIVATE -fprofile-instr-generate -fcoverage-mapping -O1)
    target_link_options(${target} PRIVATE -fprofile-instr-generate)
  elseif(DSV4RT_COVERAGE)
    target_compile_options(${target} PRIVATE --coverage -O0 -fprofile-update=atomic)
    target_link_options(${target} PRIVATE --coverage)
  endif()
endfunction()

# Binaries name source files from the project's root on, wherever they were built. Instrumented builds need the paths.
function(dsv4rt_relative_paths target)
  if(NOT DSV4RT_SANITIZE AND NOT DSV4RT_COVERAGE)
    target_compile_options(${target} PRIVATE
      "$<$<COMPILE_LANGUAGE:CXX>:-ffile-prefix-map=${PROJECT_BINARY_DIR}=build>"
      "$<$<COMPILE_LANGUAGE:CXX>:-ffile-prefix-map=${PROJECT_SOURCE_DIR}=.>")
  endif()
endfunction()

# dsv4rt_module(<name> SOURCES <file>... [DEPENDS <module>...] [LINKS <library>...])
# Declares the internal library dsv4rt_<name> of one folder of src. Its objects also go into the
# installed libraries. DEPENDS names modules whose headers this one may include; LINKS names
# third-party targets.
function(dsv4rt_module name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPENDS;LINKS" ${ARGN})
  add_library(dsv4rt_${name}_objects OBJECT ${arg_SOURCES})
  dsv4rt_compile_settings(dsv4rt_${name}_objects)
  dsv4rt_relative_paths(dsv4rt_${name}_objects)
  target_include_directories(dsv4rt_${name}_objects PUBLIC "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/src")
  target_link_libraries(dsv4rt_${name}_objects PRIVATE ${arg_LINKS})

  add_library(dsv4rt_${name} STATIC $<TARGET_OBJECTS:dsv4rt_${name}_objects>)
  set_target_properties(dsv4rt_${name} PROPERTIES LINKER_LANGUAGE CXX)
  target_include_directories(dsv4rt_${name} INTERFACE "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/src")
  target_compile_features(dsv4rt_${name} INTERFACE cxx_std_20)
  list(TRANSFORM arg_DEPENDS PREPEND dsv4rt_ OUTPUT_VARIABLE depends)
  target_link_libraries(dsv4rt_${name} PUBLIC ${depends} PRIVATE ${arg_LINKS})

  set_property(GLOBAL APPEND PROPERTY DSV4RT_MODULE_OBJECTS $<TARGET_OBJECTS:dsv4rt_${name}_objects>)
  set_property(GLOBAL APPEND PROPERTY DSV4RT_MODULE_LINKS ${arg_LINKS})
endfunction()

# dsv4rt_test(<name> SOURCES <file>... MODULES <module>... LABELS <label>... [LINKS <library>...] [TIMEOUT <s>])
# A GoogleTest program, one ctest entry, linked against the modules it tests.
function(dsv4rt_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;MODULES;LABELS;LINKS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  dsv4rt_compile_settings(${name})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/tests")
  list(TRANSFORM arg_MODULES PREPEND dsv4rt_ OUTPUT_VARIABLE modules)
  # In this order: a program's own main() and its own choice of a backend come before those of libraries.
  target_link_libraries(${name} PRIVATE dsv4rt_test_backend ${modules} ${arg_LINKS} GTest::gtest GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE DSV4RT_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  # Test code is compiled more often than it runs; the library under test stays fully optimised.
  # Instrumented, it takes twice as long to optimise as to compile.
  target_compile_options(${name} PRIVATE
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1>
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:RelWithDebInfo>>:-O0>)
  set_target_properties(${name} PROPERTIES UNITY_BUILD ${DSV4RT_UNITY_TESTS} UNITY_BUILD_BATCH_SIZE 12)
  add_test(NAME ${name} COMMAND ${name})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  if(DSV4RT_SANITIZE)
    math(EXPR arg_TIMEOUT "4 * ${arg_TIMEOUT}")
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT})
endfunction()

# dsv4rt_threaded_tests(<name> <filter>)
# The tests of a program that compute on several threads. Under ThreadSanitizer only they run: on one
# thread nothing can race, and instrumented arithmetic takes minutes.
function(dsv4rt_threaded_tests name filter)
  if(DSV4RT_SANITIZE MATCHES "thread")
    set_tests_properties(${name} PROPERTIES ENVIRONMENT "GTEST_FILTER=${filter}")
  endif()
endfunction()
