# The installed libraries: dsv4rt::shared and dsv4rt::static, both named libdsv4rt, made of the
# objects of every module.
get_property(module_objects GLOBAL PROPERTY DSV4RT_MODULE_OBJECTS)
get_property(module_links GLOBAL PROPERTY DSV4RT_MODULE_LINKS)
list(REMOVE_DUPLICATES module_links)

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
