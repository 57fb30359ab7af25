# `cmake --install`: the libraries, the public headers, package files for CMake and pkg-config, and the command line
# with its manual page.
include(CMakePackageConfigHelpers)

# A user of dsv4rt::static links what the modules link: each library's package is looked up by the
# installed dsv4rtConfig.cmake. An entry missing here would break users only after installation, so
# it is refused now.
set(package_of_Threads "Threads")
set(package_of_OpenSSL "OpenSSL COMPONENTS Crypto")
set(package_of_spdlog "spdlog")
set(package_of_CUDA "CUDAToolkit")
set(DSV4RT_STATIC_PACKAGES "")
foreach(link IN LISTS DSV4RT_LIBRARY_LINKS)
  string(REGEX REPLACE "::.*" "" namespace "${link}")
  if(NOT DEFINED package_of_${namespace})
    message(FATAL_ERROR "cmake/dsv4rt_install.cmake does not say which package provides '${link}'")
  endif()
  string(APPEND DSV4RT_STATIC_PACKAGES "  \"${package_of_${namespace}}\"\n")
endforeach()

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/dsv4rt")
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/dsv4rtConfig.cmake.in"
                              "${PROJECT_BINARY_DIR}/dsv4rtConfig.cmake" INSTALL_DESTINATION "${package_dir}")
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/dsv4rtConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/dsv4rtConfig.cmake" "${PROJECT_BINARY_DIR}/dsv4rtConfigVersion.cmake"
        DESTINATION "${package_dir}")
foreach(kind shared static)
  install(TARGETS dsv4rt_${kind} EXPORT dsv4rt_${kind}
          ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  install(EXPORT dsv4rt_${kind} NAMESPACE dsv4rt:: FILE dsv4rt_${kind}.cmake DESTINATION "${package_dir}")
endforeach()

install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/dsv4rt" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
        FILES_MATCHING PATTERN "*.h")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" "${PROJECT_SOURCE_DIR}/THIRD_PARTY_NOTICES.md"
        DESTINATION "${CMAKE_INSTALL_DOCDIR}")

# For builds without CMake; finds its prefix from where it lies.
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}" OR IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
  message(FATAL_ERROR "CMAKE_INSTALL_LIBDIR and CMAKE_INSTALL_INCLUDEDIR are '${CMAKE_INSTALL_LIBDIR}' and \
'${CMAKE_INSTALL_INCLUDEDIR}'; accepted: paths relative to the prefix")
endif()
file(RELATIVE_PATH DSV4RT_PC_TO_PREFIX "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
string(REGEX REPLACE "/$" "" DSV4RT_PC_TO_PREFIX "${DSV4RT_PC_TO_PREFIX}")
configure_file("${PROJECT_SOURCE_DIR}/cmake/dsv4rt.pc.in" "${PROJECT_BINARY_DIR}/dsv4rt.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/dsv4rt.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")

if(DSV4RT_INSTALL_CONFIGS)
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/configs" DESTINATION "${CMAKE_INSTALL_DATADIR}/dsv4rt"
          FILES_MATCHING PATTERN "*.json")
endif()
if(TARGET dsv4rt_cli)
  set_target_properties(dsv4rt_cli PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  install(TARGETS dsv4rt_cli RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
  get_property(pages TARGET dsv4rt_cli PROPERTY DSV4RT_PAGES)
  if(pages)
    install(FILES "${pages}/dsv4rt.1" DESTINATION "${CMAKE_INSTALL_MANDIR}/man1")
    install(FILES "${pages}/dsv4rt" DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions")
  endif()
endif()
