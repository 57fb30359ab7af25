# version.h states the version for #if; it has to be the project's.
file(STRINGS "${PROJECT_SOURCE_DIR}/include/dsv4rt/version.h" version_lines
     REGEX "define DSV4RT_VERSION_(MAJOR|MINOR|PATCH) ")
list(TRANSFORM version_lines REPLACE ".* " "")
list(JOIN version_lines "." header_version)
if(NOT header_version STREQUAL PROJECT_VERSION)
  message(FATAL_ERROR "include/dsv4rt/version.h says ${header_version}, the project is ${PROJECT_VERSION}")
endif()
