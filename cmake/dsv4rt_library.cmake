# The installed libraries: dsv4rt::shared and dsv4rt::static, both named libdsv4rt, made of the
# objects of every module. dsv4rt::dsv4rt is the shared one.
get_property(module_objects GLOBAL PROPERTY DSV4RT_MODULE_OBJECTS)
get_property(module_links GLOBAL PROPERTY DSV4RT_MODULE_LINKS)
list(APPEND module_links Threads::Threads)
list(REMOVE_DUPLICATES module_links)
# Header-only libraries are already inside the objects: a user of libdsv4rt does not need them.
foreach(link IN LISTS module_links)
  get_target_property(link_type ${link} TYPE)
  get_target_property(link_libraries ${link} INTERFACE_LINK_LIBRARIES)
  if(link_type STREQUAL "INTERFACE_LIBRARY" AND NOT link_libraries AND NOT link STREQUAL "Threads::Threads")
    list(REMOVE_ITEM module_links ${link})
  endif()
endforeach()

foreach(kind shared static)
  string(TOUPPER ${kind} kind_upper)
  add_library(dsv4rt_${kind} ${kind_upper} ${module_objects})
  add_library(dsv4rt::${kind} ALIAS dsv4rt_${kind})
  set_target_properties(dsv4rt_${kind} PROPERTIES OUTPUT_NAME dsv4rt EXPORT_NAME ${kind} LINKER_LANGUAGE CXX
                        VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
  dsv4rt_compile_settings(dsv4rt_${kind})
  target_include_directories(dsv4rt_${kind} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(dsv4rt_${kind} PRIVATE ${module_links})
endforeach()
if(NOT DSV4RT_SANITIZE)  # a sanitizer's runtime may be resolved by the program only
  target_link_options(dsv4rt_shared PRIVATE
    LINKER:--no-undefined "LINKER:--version-script=${PROJECT_SOURCE_DIR}/cmake/dsv4rt_exports.map")
  set_target_properties(dsv4rt_shared PROPERTIES LINK_DEPENDS "${PROJECT_SOURCE_DIR}/cmake/dsv4rt_exports.map")
endif()
add_library(dsv4rt::dsv4rt ALIAS dsv4rt_shared)
set(DSV4RT_LIBRARY_LINKS ${module_links})
# `cmake --build ... --target dsv4rt` makes both.
add_custom_target(dsv4rt DEPENDS dsv4rt_shared dsv4rt_static)
