# Ranks on several hosts, which are namespaces of this machine; ranks of stated speeds.
if(TARGET sluice AND SLUICE_MPI_FOUND)
    add_test(NAME ranks_hosts COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/check_ranks_hosts.sh
             $<TARGET_FILE:sluice>)
    set_tests_properties(ranks_hosts PROPERTIES LABELS "cpu;mpi;nvme" TIMEOUT 180
                         SKIP_RETURN_CODE 77)
    add_test(NAME slow.ranks_hosts COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/check_ranks_hosts.sh
             $<TARGET_FILE:sluice> all)
    set_tests_properties(slow.ranks_hosts PROPERTIES LABELS slow TIMEOUT 600 SKIP_RETURN_CODE 77)
endif()
if(TARGET sluice_profile)
    sluice_test(test_ranks_paced LIBS train_fixture comm_fixture swap_fixture LABELS cpu nvme TIMEOUT 120)
    add_test(NAME slow.test_ranks_paced COMMAND test_ranks_paced all)
    set_tests_properties(slow.test_ranks_paced PROPERTIES LABELS slow TIMEOUT 600 RUN_SERIAL TRUE)
    set_tests_properties(test_ranks_paced PROPERTIES ENVIRONMENT OMP_WAIT_POLICY=passive)
    set_tests_properties(slow.test_ranks_paced PROPERTIES ENVIRONMENT
                         "OMP_WAIT_POLICY=passive;SLUICE_TEST_TIMES=1")
endif()
