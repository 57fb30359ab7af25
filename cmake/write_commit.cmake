# cmake -DSOURCE=<tree> -DOUTPUT=<header> -P write_commit.cmake
# Writes the commit that a build is made of into a header, which is touched only when it changes. A tree without git
# has none.
execute_process(COMMAND git -C "${SOURCE}" describe --always --dirty --abbrev=12 --exclude=*
                OUTPUT_VARIABLE commit ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  set(commit "")
endif()
set(text "#pragma once\n\ninline constexpr char kBuildCommit[] = \"${commit}\";\n")
set(before "")
if(EXISTS "${OUTPUT}")
  file(READ "${OUTPUT}" before)
endif()
if(NOT text STREQUAL before)
  file(WRITE "${OUTPUT}" "${text}")
endif()
