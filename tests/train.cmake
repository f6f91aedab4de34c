# The engine as a whole, through train_run. Idle OpenMP threads sleep: tests share the machine.
if(TARGET sluice_profile)
    add_library(train_fixture STATIC train_fixture.c train_curve.c)
    target_link_libraries(train_fixture PUBLIC sluice_profile PkgConfig::JANSSON PkgConfig::CMOCKA)

    set(train_shapes gpt2-bf16 gpt2-fp32 llama-bf16 llama-fp32)
    set(train_curves gpt2-tied gpt2-untied llama-tied llama-untied)
    sluice_test(test_train_invariance LIBS train_fixture LABELS cpu nvme TIMEOUT 120
                INSTANCES ${train_shapes})
    set(train_modes gpt2-fp32 gpt2-fp16-untied llama-fp16 llama-bf16 gpt2-bf16-unclipped
        llama-fp32-untied-unclipped gpt2-fp32-cut llama-bf16-untied-cut gpt2-fp16-cut
        gpt2-bf16-lion llama-fp32-adagrad gpt2-bf16-cut-m16 llama-fp32-unclipped-m8)
    sluice_test(test_train_modes LIBS train_fixture LABELS cpu nvme TIMEOUT 120
                INSTANCES ${train_modes})
    set(train_sets avx2 avx512 avx512_bf16)
    sluice_isa_test(test_train_invariance SETS ${train_sets} LABELS cpu nvme TIMEOUT 120
                    INSTANCES gpt2-bf16)
    sluice_isa_test(test_train_modes SETS ${train_sets} LABELS cpu nvme TIMEOUT 120
                    INSTANCES gpt2-fp32 llama-bf16)
    sluice_test(test_train_random LIBS train_fixture LABELS cpu nvme TIMEOUT 120
                INSTANCES 1 2 3 4)
    sluice_test(test_train_pytorch LIBS train_fixture LABELS cpu nvme INSTANCES ${train_curves})
    target_compile_definitions(test_train_pytorch PRIVATE
                               FIXTURE_DIR="${CMAKE_CURRENT_LIST_DIR}/reference")
    sluice_test(test_train_costs LIBS sluice_profile LABELS cpu debug)
    sluice_test(test_train_norm LIBS sluice_profile LABELS cpu debug)
    sluice_test(test_train_figures LIBS sluice_profile LABELS cpu debug)
    sluice_test(test_train_max_model LIBS sluice_profile LABELS cpu debug)
    sluice_test(test_train_memory LIBS train_fixture LABELS cpu nvme debug)
    sluice_test(test_train_generate LIBS train_fixture LABELS cpu nvme TIMEOUT 120
                INSTANCES gpt2-bf16-unclipped llama-fp16 gpt2-fp32-untied-cut-unclipped
                llama-bf16-untied gpt2-fp16-cut llama-fp32-cut llama-fp32)
    sluice_test(test_sluice_api LIBS train_fixture sluice_api LABELS cpu nvme debug)
    sluice_test(test_train_sampling LIBS sluice_profile LABELS cpu debug)
    sluice_test(test_train_eval LIBS train_fixture LABELS cpu nvme debug)
    sluice_test(test_train_stream LIBS train_fixture LABELS cpu nvme debug)
    sluice_test(test_train_sealed LIBS train_fixture LABELS cpu nvme debug)
    sluice_test(test_train_fit LIBS train_fixture LABELS cpu nvme debug)
    sluice_test(test_plan_zero LIBS train_fixture LABELS cpu debug)
    sluice_test(test_train_summary LIBS train_fixture LABELS cpu debug)
    sluice_test(test_train_resume LIBS train_fixture LABELS cpu nvme debug TIMEOUT 120)
    sluice_test(test_train_lora LIBS train_fixture LABELS cpu nvme debug)
    sluice_test(test_train_frozen LIBS train_fixture comm_fixture LABELS cpu nvme debug TIMEOUT 120)
    sluice_test(test_train_split LIBS train_fixture comm_fixture LABELS cpu nvme debug TIMEOUT 120)
    sluice_test(test_train_rescue LIBS train_fixture LABELS cpu nvme debug)
    sluice_test(test_train_stops LIBS train_fixture LABELS cpu nvme TIMEOUT 120
                INSTANCES llama-fp16 gpt2-fp16-untied-cut-lion gpt2-bf16-adagrad
                llama-bf16-unclipped-cut gpt2-fp32-cut-range
                llama-fp32-unclipped-untied-adam-onecycle gpt2-fp16-tokens-adagrad-onecycle
                llama-bf16-delayed llama-bf16-unclipped-split-m16 gpt2-fp16-untied-cut-m8)
    sluice_test(test_train_keep LIBS sluice_profile PkgConfig::XXHASH LABELS cpu debug nvme)
    sluice_test(test_train_kept LIBS train_fixture LABELS cpu nvme TIMEOUT 120)
    sluice_test(test_train_recut LIBS sluice_profile LABELS cpu debug nvme INSTANCES uring pool sim)
    add_library(ranks_fixture STATIC ranks_fixture.c)
    target_link_libraries(ranks_fixture PUBLIC sluice_profile PkgConfig::CMOCKA)
    sluice_test(test_train_recut_ranks LIBS ranks_fixture LABELS cpu debug nvme)
    sluice_test(test_train_view_ranks LIBS ranks_fixture PkgConfig::XXHASH LABELS cpu debug nvme)
    sluice_test(test_train_ranks LIBS train_fixture comm_fixture LABELS cpu nvme)
    sluice_test(test_train_as_rank LIBS train_fixture comm_fixture LABELS cpu nvme)
    sluice_test(test_train_profile LIBS train_fixture LABELS cpu nvme debug)
    sluice_test(test_train_directory LIBS train_fixture LABELS cpu nvme debug TIMEOUT 120)
    target_link_options(test_train_directory PRIVATE -Wl,--wrap=plan_machine_default_cpu)
    sluice_test(test_train_sweep LIBS sluice_profile PkgConfig::XXHASH LABELS cpu debug tsan nvme)
    sluice_test(test_train_verify LIBS train_fixture LABELS cpu nvme debug TIMEOUT 120)
    sluice_test(test_train_overlap LIBS train_fixture LABELS cpu nvme)

    # Proofs of durability. Arguments are seeds; those of CI are few, the rest is labelled slow.
    add_library(crash_case STATIC crash_case.c crash_image.c crash_process.c)
    target_link_libraries(crash_case PUBLIC train_fixture)
    # seeds_test(BINARY FIRST-LAST...): further CTest lines of a program, under --all only.
    function(seeds_test binary)
        foreach(seeds ${ARGN})
            add_test(NAME slow.${binary}.${seeds} COMMAND ${binary} ${seeds})
            set_tests_properties(slow.${binary}.${seeds} PROPERTIES LABELS slow TIMEOUT 900
                                 ENVIRONMENT OMP_WAIT_POLICY=passive)
        endforeach()
    endfunction()
    sluice_test(test_train_crash LIBS crash_case LABELS cpu nvme TIMEOUT 120
                INSTANCES 1-10 11-20)
    seeds_test(test_train_crash 21-65 66-110 111-155 156-200)
    sluice_test(test_train_power LIBS crash_case LABELS cpu nvme TIMEOUT 120
                INSTANCES 1-10 11-20 canary)
    target_link_options(test_train_power PRIVATE -Wl,--wrap=sim_store_create
                        -Wl,--wrap=sim_store_destroy -Wl,--wrap=sim_store_sync
                        -Wl,--wrap=fsync -Wl,--wrap=fdatasync)
    seeds_test(test_train_power 21-65 66-110 111-155 156-200)
    sluice_test(test_train_faults LIBS crash_case LABELS cpu nvme TIMEOUT 120
                INSTANCES errors harmless commits resumes points recut keep pool uring)
    seeds_test(test_train_faults all-commits all-resumes
               all-points all-recut all-keep all-pool all-uring)

    if(TARGET sluice)
        sluice_test(test_train_signals LIBS crash_case LABELS cpu nvme TIMEOUT 120)
        target_compile_definitions(test_train_signals PRIVATE
                                   SLUICE_PROGRAM="$<TARGET_FILE:sluice>")
        add_dependencies(test_train_signals sluice)
    endif()

    set(train_fp16_curves fp16-gpt2-tied fp16-llama-untied)
    sluice_test(test_train_fp16 LIBS train_fixture LABELS cpu nvme INSTANCES ${train_fp16_curves})
    target_compile_definitions(test_train_fp16 PRIVATE
                               FIXTURE_DIR="${CMAKE_CURRENT_LIST_DIR}/reference")
    sluice_test(test_train_tokens LIBS train_fixture LABELS cpu nvme debug)
    sluice_test(test_train_data LIBS train_fixture LABELS cpu nvme debug)
    sluice_test(test_train_loss_scale LIBS sluice_profile PkgConfig::JANSSON LABELS cpu debug)
    target_compile_definitions(test_train_loss_scale PRIVATE
                               FIXTURE_DIR="${CMAKE_CURRENT_LIST_DIR}/reference")

    # Once more in paranoid mode (fresh addresses, NaN-fill, compare, poison), and on simulated drives:
    # again_test(paranoid SLUICE_TEST_PARANOID BINARY INSTANCES...).
    function(again_test how variable binary)
        foreach(instance ${ARGN})
            add_test(NAME ${how}.${binary}.${instance} COMMAND ${binary} ${instance})
            set_tests_properties(${how}.${binary}.${instance} PROPERTIES SKIP_RETURN_CODE 77
                                 LABELS "cpu;nvme" TIMEOUT 120
                                 ENVIRONMENT "OMP_WAIT_POLICY=passive;${variable}=1")
        endforeach()
    endfunction()
    get_property(train_tests DIRECTORY PROPERTY TESTS)
    list(FILTER train_tests INCLUDE REGEX "^test_train_")
    set_tests_properties(${train_tests} PROPERTIES ENVIRONMENT OMP_WAIT_POLICY=passive)
    again_test(paranoid SLUICE_TEST_PARANOID test_train_invariance ${train_shapes})
    again_test(paranoid SLUICE_TEST_PARANOID test_train_modes ${train_modes})
    again_test(paranoid SLUICE_TEST_PARANOID test_train_pytorch ${train_curves})
    again_test(paranoid SLUICE_TEST_PARANOID test_train_fp16 ${train_fp16_curves})
    again_test(paranoid SLUICE_TEST_PARANOID test_train_resume all)
    again_test(paranoid SLUICE_TEST_PARANOID test_train_rescue all)
    again_test(paranoid SLUICE_TEST_PARANOID test_train_fit all)
    again_test(simulated SLUICE_TEST_SIMULATED test_train_invariance gpt2-bf16)
    again_test(simulated SLUICE_TEST_SIMULATED test_train_modes gpt2-fp32 llama-fp16 llama-bf16-untied-cut)
    again_test(simulated SLUICE_TEST_SIMULATED test_train_pytorch ${train_curves})

    if(TARGET sluice)
        add_test(NAME train_bad_input COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/check_bad_input.sh
                 $<TARGET_FILE:sluice>)
        set_tests_properties(train_bad_input PROPERTIES LABELS "cpu;debug" TIMEOUT 60)
        add_test(NAME train_deepspeed_jobs COMMAND
                 ${CMAKE_CURRENT_SOURCE_DIR}/check_deepspeed_jobs.sh $<TARGET_FILE:sluice>
                 ${PROJECT_SOURCE_DIR})
        set_tests_properties(train_deepspeed_jobs PROPERTIES LABELS "cpu;nvme" TIMEOUT 120)
        if(TARGET deny_uring)
            add_test(NAME train_bad_runs COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/check_bad_runs.sh
                     $<TARGET_FILE:sluice> $<TARGET_FILE:deny_uring>)
            set_tests_properties(train_bad_runs PROPERTIES LABELS "cpu;nvme" TIMEOUT 180)
        endif()
    endif()
endif()
