# cmake -DBUILD=<build folder> -DCONFIG= -DWORK=<scratch folder> -DVERSION= -DGENERATOR= -DCXX= -DBINDIR=
#       -DCC= -DNM= -DSOURCE=<source tree> -DLIBDIR= -DPROJECTS=<folder>,... -DCOMMANDS=<installed program>,...
#       -P install_test.cmake
cmake_minimum_required(VERSION 3.25)

function(run_step)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " command)
    message(NOTICE "${output}")
    message(FATAL_ERROR "failed (${result}): ${command}")
  endif()
  message(STATUS "${output}")
endfunction()

file(REMOVE_RECURSE "${WORK}")
set(prefix "${WORK}/prefix")
run_step("${CMAKE_COMMAND}" --install "${BUILD}" --config "${CONFIG}" --prefix "${prefix}")

string(REPLACE "," ";" PROJECTS "${PROJECTS}")
foreach(project IN LISTS PROJECTS)
  run_step("${CMAKE_COMMAND}" -S "${CMAKE_CURRENT_LIST_DIR}/${project}" -B "${WORK}/${project}" -G "${GENERATOR}"
           "-DCMAKE_BUILD_TYPE=Release" "-DCMAKE_CXX_COMPILER=${CXX}" "-DCMAKE_PREFIX_PATH=${prefix}"
           "-DDSV4RT_EXPECTED_VERSION=${VERSION}" -DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF --no-warn-unused-cli)
  run_step("${CMAKE_COMMAND}" --build "${WORK}/${project}" --config Release)
  file(STRINGS "${WORK}/${project}/programs.txt" programs)
  foreach(program IN LISTS programs)
    run_step("${program}")
  endforeach()
endforeach()

string(REPLACE "," ";" COMMANDS "${COMMANDS}")
foreach(command IN LISTS COMMANDS)
  run_step("${prefix}/${BINDIR}/${command}" version)
endforeach()

# ---- The library as a file: what it exports, and no path of where it was built

set(library "${prefix}/${LIBDIR}/libdsv4rt.so")
execute_process(COMMAND "${NM}" -D --defined-only "${library}" OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(STRIP "${symbols}" symbols)
string(REPLACE "\n" ";" symbols "${symbols}")
list(LENGTH symbols count)
set(foreign ${symbols})
# dsv4rt_..., and mangled names of namespace dsv4rt: functions, their const versions, vtables and typeinfo.
list(FILTER foreign EXCLUDE REGEX "^[0-9a-f]+ [TWVDBR] (dsv4rt_[a-z0-9_]+|_Z(N|NK|T[VIS]N?)?6dsv4rt.*)$")
if(foreign OR count LESS 100)
  list(JOIN foreign "\n" foreign)
  message(FATAL_ERROR "of ${count} symbols these are no interface of the library:\n${foreign}")
endif()
message(STATUS "${count} exported symbols, all of the interface")
foreach(file "${library}" "${prefix}/${LIBDIR}/libdsv4rt.a")
  file(STRINGS "${file}" paths REGEX "${SOURCE}/")
  # nvcc writes the paths of the files that it compiles, which the option for C++ files does not map.
  list(FILTER paths EXCLUDE REGEX "${SOURCE}/src/backend/cuda/")
  if(paths)
    message(FATAL_ERROR "${file} names paths of its build: ${paths}")
  endif()
endforeach()

# ---- C11 without CMake

set(checkpoint "${SOURCE}/tests/golden/tiny-bf16")
set(strict -std=c11 -Wall -Wextra -Wpedantic -Werror)
set(rpath "-Wl,-rpath,${prefix}/${LIBDIR}")
find_program(PKG_CONFIG pkg-config)
if(PKG_CONFIG)
  set(ENV{PKG_CONFIG_PATH} "${prefix}/${LIBDIR}/pkgconfig")
  execute_process(COMMAND "${PKG_CONFIG}" --cflags --libs "dsv4rt = ${VERSION}" OUTPUT_VARIABLE flags
                  COMMAND_ERROR_IS_FATAL ANY)
  string(STRIP "${flags}" flags)
  separate_arguments(flags UNIX_COMMAND "${flags}")
  run_step("${CC}" ${strict} "-DDSV4RT_EXPECTED_VERSION=\"${VERSION}\"" "${CMAKE_CURRENT_LIST_DIR}/consumer_c/main.c"
           ${flags} "${rpath}" -o "${WORK}/pkg_config_consumer")
  run_step("${WORK}/pkg_config_consumer")
else()
  message(STATUS "no pkg-config here: its file is not tried")
endif()
run_step("${CC}" ${strict} -D_POSIX_C_SOURCE=200809L "-I${prefix}/include" "${CMAKE_CURRENT_LIST_DIR}/unload.c" -ldl
         -o "${WORK}/unload")
run_step("${WORK}/unload" "${library}" "${checkpoint}")
foreach(version 3 6)
  run_step("${CC}" ${strict} "-DOLDER_VERSION=${version}" "-I${CMAKE_CURRENT_LIST_DIR}/older_headers/${version}"
           "${CMAKE_CURRENT_LIST_DIR}/older_caller.c" "${library}" "${rpath}" -o "${WORK}/older_caller_${version}")
  run_step("${WORK}/older_caller_${version}" "${checkpoint}")
endforeach()

# ---- Pages of the command line

if(COMMANDS)
  file(READ "${prefix}/share/man/man1/dsv4rt.1" manual)
  if(NOT manual MATCHES "\\.SS dsv4rt inspect\n" OR NOT manual MATCHES "\\.SH EXIT STATUS\n")
    message(FATAL_ERROR "the manual page lacks sections:\n${manual}")
  endif()
  find_program(BASH bash)
  if(BASH)
    set(script "source \"$0\"; COMP_WORDS=(dsv4rt inspect --te); COMP_CWORD=2; _dsv4rt; echo \"\${COMPREPLY[*]}\"")
    execute_process(COMMAND "${BASH}" -c "${script}" "${prefix}/share/bash-completion/completions/dsv4rt"
                    OUTPUT_VARIABLE completed COMMAND_ERROR_IS_FATAL ANY)
    if(NOT completed STREQUAL "--tensors\n")
      message(FATAL_ERROR "`dsv4rt inspect --te` is completed to '${completed}'")
    endif()
  endif()
endif()
