# Under tsan the ranks are processes, which it does not see across.
sluice_test(test_comm_exchange LIBS comm_fixture LABELS cpu debug)
add_test(NAME test_comm_exchange.mpirun COMMAND test_comm_exchange mpirun)
set_tests_properties(test_comm_exchange.mpirun PROPERTIES LABELS mpi TIMEOUT 60 SKIP_RETURN_CODE 77)
