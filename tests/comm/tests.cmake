# Ranks that comm_fixture forks, and ranks that mpirun starts.
add_library(comm_fixture STATIC comm/comm_fixture.c)
target_link_libraries(comm_fixture PUBLIC sluice_comm PkgConfig::CMOCKA)

sluice_test(test_comm_control LIBS comm_fixture LABELS cpu debug tsan TIMEOUT 120)
sluice_test(test_comm_join LIBS comm_fixture LABELS cpu debug tsan)
test_line(test_comm_join.mpirun COMMAND test_comm_join mpirun LABELS mpi)

# The ranks are processes, and tsan does not see races between processes.
sluice_test(test_comm_exchange LIBS comm_fixture LABELS cpu debug)
test_line(test_comm_exchange.mpirun COMMAND test_comm_exchange mpirun LABELS mpi)
