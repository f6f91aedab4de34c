# Ranks on several hosts, which are namespaces of this machine; ranks of stated speeds.
if(TARGET sluice AND SLUICE_MPI_FOUND)
    add_test(NAME ranks_hosts COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/check_ranks_hosts.sh
             $<TARGET_FILE:sluice>)
    set_tests_properties(ranks_hosts PROPERTIES LABELS "cpu;mpi;nvme" TIMEOUT 180
                         SKIP_RETURN_CODE 77)
    add_test(NAME slow.ranks_hosts COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/check_ranks_hosts.sh
             $<TARGET_FILE:sluice> all)
    set_tests_properties(slow.ranks_hosts PROPERTIES LABELS slow TIMEOUT 600 SKIP_RETURN_CODE 77)
endif()
if(TARGET sluice AND SLUICE_MPI_FOUND)
    add_executable(strangers ranks/strangers.c)
    target_link_libraries(strangers PRIVATE sluice_base sluice_options)
    add_test(NAME ranks_strangers COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/check_ranks_strangers.sh
             $<TARGET_FILE:sluice> $<TARGET_FILE:strangers>)
    set_tests_properties(ranks_strangers PROPERTIES LABELS mpi TIMEOUT 180 SKIP_RETURN_CODE 77)
    add_test(NAME slow.ranks_strangers COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/check_ranks_strangers.sh
             $<TARGET_FILE:sluice> $<TARGET_FILE:strangers> 50)
    set_tests_properties(slow.ranks_strangers PROPERTIES LABELS slow TIMEOUT 1800 SKIP_RETURN_CODE 77)
endif()
if(TARGET sluice_profile)
    sluice_test(test_ranks_paced LIBS train_fixture comm_fixture swap_fixture LABELS cpu nvme TIMEOUT 120)
    add_test(NAME slow.test_ranks_paced COMMAND test_ranks_paced all)
    set_tests_properties(slow.test_ranks_paced PROPERTIES LABELS slow TIMEOUT 600 RUN_SERIAL TRUE)
    set_tests_properties(test_ranks_paced PROPERTIES ENVIRONMENT OMP_WAIT_POLICY=passive)
    set_tests_properties(slow.test_ranks_paced PROPERTIES ENVIRONMENT
                         "OMP_WAIT_POLICY=passive;SLUICE_TEST_TIMES=1")
endif()

# Several ranks, one of which dies, hangs or is wrong; and runs that go on with another number of them.
if(TARGET sluice)
    add_library(ranks_rig STATIC ranks/ranks_rig.c ${PROJECT_SOURCE_DIR}/src/cli/launched_ranks.c)
    target_include_directories(ranks_rig PRIVATE ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(ranks_rig PUBLIC crash_case comm_fixture sluice_cli)
    target_compile_definitions(ranks_rig PUBLIC SLUICE_PROGRAM="$<TARGET_FILE:sluice>")
    add_dependencies(ranks_rig sluice)

    # kill_test(NAME TIMEOUT seconds LABELS ... INSTANCES "arguments"...)
    function(kill_test NAME)
        cmake_parse_arguments(ARG "" "TIMEOUT" "LABELS;INSTANCES" ${ARGN})
        if(NOT TARGET ${NAME})
            add_executable(${NAME} ranks/${NAME}.c)
            target_link_libraries(${NAME} PRIVATE ranks_rig)
        endif()
        if(NOT ARG_INSTANCES)
            add_test(NAME ${NAME} COMMAND ${NAME})
            set_tests_properties(${NAME} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT}
                                 SKIP_RETURN_CODE 77 ENVIRONMENT OMP_WAIT_POLICY=passive)
        endif()
        foreach(instance ${ARG_INSTANCES})
            string(REPLACE " " "." suffix ${instance})
            separate_arguments(arguments UNIX_COMMAND ${instance})
            set(test ${NAME}.${suffix})
            if("slow" IN_LIST ARG_LABELS)
                set(test slow.${test})
            endif()
            add_test(NAME ${test} COMMAND ${NAME} ${arguments})
            set_tests_properties(${test} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT}
                                 SKIP_RETURN_CODE 77 ENVIRONMENT OMP_WAIT_POLICY=passive)
        endforeach()
    endfunction()

    kill_test(test_ranks_kill TIMEOUT 300 LABELS cpu nvme INSTANCES points 1-5)
    kill_test(test_ranks_kill TIMEOUT 300 LABELS mpi nvme INSTANCES "mpirun 6-8")
    kill_test(test_ranks_failures TIMEOUT 300 LABELS cpu nvme)
    kill_test(test_ranks_resume TIMEOUT 300 LABELS cpu nvme INSTANCES worlds from moves=5)
    kill_test(test_ranks_resume TIMEOUT 900 LABELS slow INSTANCES moves=60 memory)
    kill_test(test_ranks_kill TIMEOUT 900 LABELS slow INSTANCES all-points 9-58)
    kill_test(test_ranks_kill TIMEOUT 900 LABELS slow mpi INSTANCES "mpirun 9-58")
endif()

# Ranks that mpirun starts, through train_run: each program becomes mpirun with as many ranks of itself as its first
# argument says. Skipped (77) without mpirun, or where this build has no MPI.
if(TARGET sluice_profile)
    add_library(mpi_fixture STATIC ranks/mpi_fixture.c)
    target_link_libraries(mpi_fixture PUBLIC train_fixture)
    function(ranks_program binary)
        add_executable(${binary} ranks/${binary}.c)
        target_link_libraries(${binary} PRIVATE mpi_fixture sluice_options)
    endfunction()
    # ranks_test(BINARY RANKS NAME LABELS ARGS...): a CTest line.
    function(ranks_test binary ranks name labels)
        set(test ${binary}.${ranks}-${name})
        add_test(NAME ${test} COMMAND ${binary} ${ranks} ${ARGN})
        set_tests_properties(${test} PROPERTIES LABELS "${labels}" TIMEOUT 120
                             SKIP_RETURN_CODE 77)
    endfunction()

    ranks_program(test_ranks_stages)
    # What CI runs, and under --all every combination with every case of its dtype.
    ranks_test(test_ranks_stages 1 gpt2 "cpu;mpi" gpt2-fp32 stages stop)
    ranks_test(test_ranks_stages 2 gpt2 "cpu;mpi" gpt2-fp32 stages curve)
    ranks_test(test_ranks_stages 3 llama "cpu;mpi" llama-fp32 stages canary stop)
    ranks_test(test_ranks_stages 4 llama "cpu;mpi" llama-fp32 stages curve)
    ranks_test(test_ranks_stages 2 overflow "cpu;mpi" gpt2-fp16 overflow scale)
    ranks_test(test_ranks_stages 3 bf16 "cpu;mpi" gpt2-bf16 stages)
    ranks_test(test_ranks_stages 3 split "cpu;mpi" gpt2-bf16-split stages)
    ranks_test(test_ranks_stages 2 moments "cpu;mpi" gpt2-fp32-m8 stages)
    set(cases_of_fp32 stages canary curve stop)
    set(cases_of_bf16 stages canary stop)
    set(cases_of_fp16 stages canary overflow scale stop)
    foreach(ranks 1 2 3 4)
        foreach(family gpt2 llama)
            foreach(dtype fp32 bf16 fp16)
                ranks_test(test_ranks_stages ${ranks} ${family}-${dtype} slow ${family}-${dtype}
                           ${cases_of_${dtype}})
            endforeach()
        endforeach()
        ranks_test(test_ranks_stages ${ranks} draws "cpu;mpi" any draws=${ranks}1-${ranks}1)
        ranks_test(test_ranks_stages ${ranks} more-draws slow any draws=${ranks}000-${ranks}039)
    endforeach()

    ranks_program(test_ranks_memory)
    foreach(ranks 1 2 4)
        ranks_test(test_ranks_memory ${ranks} gpt2 "cpu;mpi" gpt2-bf16)
        ranks_test(test_ranks_memory ${ranks} llama slow llama-fp32)
    endforeach()

    ranks_program(test_ranks_volume)
    foreach(ranks 1 2 3 4)
        ranks_test(test_ranks_volume ${ranks} gpt2-fp32 slow gpt2-fp32)
        ranks_test(test_ranks_volume ${ranks} llama-bf16 slow llama-bf16)
    endforeach()
    ranks_test(test_ranks_volume 2 gpt2 "cpu;mpi" gpt2-fp32)
    ranks_test(test_ranks_volume 3 llama "cpu;mpi" llama-bf16)
    ranks_test(test_ranks_volume 4 gpt2 "cpu;mpi" gpt2-fp32)

    if(TARGET sluice)
        add_test(NAME ranks_stop COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/check_ranks_stop.sh
                 $<TARGET_FILE:sluice>)
        set_tests_properties(ranks_stop PROPERTIES LABELS "cpu;mpi" TIMEOUT 180
                             SKIP_RETURN_CODE 77)
    endif()
endif()
