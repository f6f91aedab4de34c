# Ranks: forked ones (comm_fixture), and such as mpirun starts.
add_library(comm_fixture STATIC comm_fixture.c)
target_link_libraries(comm_fixture PUBLIC sluice_comm PkgConfig::CMOCKA)
file(GLOB comm_lists CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/comm_*.cmake)
foreach(list ${comm_lists})
    include(${list})
endforeach()

sluice_test(test_comm_control LIBS comm_fixture LABELS cpu debug tsan)
sluice_test(test_comm_join LIBS comm_fixture LABELS cpu debug tsan)
add_test(NAME test_comm_join.mpirun COMMAND test_comm_join mpirun)
set_tests_properties(test_comm_join.mpirun PROPERTIES LABELS mpi TIMEOUT 60 SKIP_RETURN_CODE 77)
