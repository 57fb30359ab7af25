# cmake -DBUILD=<build folder> -DCONFIG= -DWORK=<scratch folder> -DVERSION= -DGENERATOR= -DCXX= -DBINDIR=
#       -DPROJECTS=<folder>,... -DCOMMANDS=<installed program>,... -P install_test.cmake
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
