# What `cmake --install` puts where: the binary, one archive of all folders with its public header and
# pkg-config file, and the job files. Included by the top level after all folders. The target
# `installable` builds no more than that.
include(GNUInstallDirs)

# libsluice.a: the objects of every library, so that a user links one file.
set(sluice_objects "")
foreach(module base tiers program executor swap config model plan comm text data format report setup engine state hf infer train profile probe kernels_reference)
    if(TARGET sluice_${module})
        list(APPEND sluice_objects $<TARGET_OBJECTS:sluice_${module}>)
    endif()
endforeach()
get_property(object_libraries GLOBAL PROPERTY SLUICE_OBJECTS)
foreach(objects ${object_libraries})
    list(APPEND sluice_objects $<TARGET_OBJECTS:${objects}>)
endforeach()
add_library(sluice_api STATIC src/sluice.c src/sluice_module.c src/sluice_tasks.c) # for tests, which link the modules
target_link_libraries(sluice_api PRIVATE sluice_options PUBLIC sluice_profile sluice_probe)
add_library(sluice_archive STATIC $<TARGET_OBJECTS:sluice_api> ${sluice_objects})
target_link_libraries(sluice_archive PRIVATE sluice_options)
set_target_properties(sluice_archive PROPERTIES
    OUTPUT_NAME sluice ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/src)

# The header states the version as numbers; the build knows it from project().
file(STRINGS ${PROJECT_SOURCE_DIR}/src/sluice.h version_lines
     REGEX "#define SLUICE_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
string(REGEX REPLACE "[^0-9;]" "" version_numbers "${version_lines}")
string(REPLACE ";" "." header_version "${version_numbers}")
if(NOT header_version STREQUAL PROJECT_VERSION)
    message(FATAL_ERROR "src/sluice.h says ${header_version}, project() says ${PROJECT_VERSION}")
endif()

# The paths in sluice.pc are relative to the file, so that the tree can be moved or installed anywhere.
set(pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH SLUICE_PC_TO_PREFIX /prefix/${pc_dir} /prefix)
string(REGEX REPLACE "/$" "" SLUICE_PC_TO_PREFIX "${SLUICE_PC_TO_PREFIX}")
set(SLUICE_PC_FLAGS "${OpenMP_C_FLAGS}")
if(SLUICE_SANITIZE)
    string(APPEND SLUICE_PC_FLAGS " -fsanitize=${SLUICE_SANITIZE}")
endif()
set(SLUICE_PC_CUDA "")
if(SLUICE_CUDA_FOUND) # the runtime's own needs are dl, rt and pthread; no C++ library
    get_filename_component(cuda_lib_dir ${CUDA_cudart_static_LIBRARY} DIRECTORY)
    set(SLUICE_PC_CUDA "-L${cuda_lib_dir} -lcudart_static -ldl -lrt ")
endif()
set(SLUICE_PC_MPI "") # by their paths: pkg-config's name of it differs from library to library
if(SLUICE_MPI_FOUND)
    list(JOIN MPI_C_LIBRARIES " " SLUICE_PC_MPI)
    string(APPEND SLUICE_PC_MPI " ")
endif()
set(SLUICE_PC_SENTENCEPIECE "")
set(SLUICE_PC_CXX "")
if(SLUICE_SENTENCEPIECE_FOUND) # C++; who links with a C compiler must name its library
    set(SLUICE_PC_SENTENCEPIECE " sentencepiece")
    set(SLUICE_PC_CXX "-lstdc++ ")
endif()
configure_file(${PROJECT_SOURCE_DIR}/src/sluice.pc.in ${PROJECT_BINARY_DIR}/src/sluice.pc @ONLY)

add_custom_target(installable DEPENDS sluice_archive $<TARGET_NAME_IF_EXISTS:sluice>)
# First of all rules, so that an install without a build installs nothing.
set(installed_files "$<TARGET_FILE:sluice_archive>")
if(TARGET sluice)
    list(APPEND installed_files "$<TARGET_FILE:sluice>")
endif()
install(CODE "
    foreach(file ${installed_files})
        if(NOT EXISTS \"\${file}\")
            message(FATAL_ERROR \"\${file} is not built. This builds all that is installed: \"
                    \"cmake --build ${PROJECT_BINARY_DIR} --target installable\")
        endif()
    endforeach()")
install(TARGETS sluice_archive ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES src/sluice.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${PROJECT_BINARY_DIR}/src/sluice.pc DESTINATION ${pc_dir})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/configs/ DESTINATION ${CMAKE_INSTALL_DATADIR}/sluice)
install(FILES src/example.c LICENSE README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
if(TARGET sluice)
    install(TARGETS sluice RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
