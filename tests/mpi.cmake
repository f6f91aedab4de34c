# Ranks that mpirun starts, through train_run: each program becomes mpirun with as many ranks of itself as its first
# argument says. Skipped (77) without mpirun, or where this build has no MPI.
if(TARGET sluice_profile)
    add_library(mpi_fixture STATIC mpi_fixture.c)
    target_link_libraries(mpi_fixture PUBLIC train_fixture)
    function(ranks_program binary)
        add_executable(${binary} ${binary}.c)
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
        add_test(NAME ranks_stop COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/check_ranks_stop.sh
                 $<TARGET_FILE:sluice>)
        set_tests_properties(ranks_stop PROPERTIES LABELS "cpu;mpi" TIMEOUT 180
                             SKIP_RETURN_CODE 77)
    endif()
endif()
