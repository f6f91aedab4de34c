# Ranks: forked ones (comm_fixture), and such as mpirun starts.
add_library(comm_fixture STATIC comm_fixture.c)
target_link_libraries(comm_fixture PUBLIC sluice_comm PkgConfig::CMOCKA)
file(GLOB comm_lists CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/comm_*.cmake)
foreach(list ${comm_lists})
    include(${list})
endforeach()
