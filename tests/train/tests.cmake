# The engine as a whole, through train_run.
add_library(train_fixture STATIC train/train_fixture.c train/weights_hash.c train/drawn_job.c)
target_link_libraries(train_fixture PUBLIC sluice_profile PkgConfig::JANSSON PkgConfig::CMOCKA
                      PRIVATE PkgConfig::XXHASH)
target_compile_definitions(train_fixture PRIVATE FIXTURE_DIR="${CMAKE_CURRENT_SOURCE_DIR}/reference")

set(train_shapes gpt2-bf16 gpt2-fp32 llama-bf16 llama-fp32)
set(train_curves gpt2-tied gpt2-untied llama-tied llama-untied)
sluice_test(test_train_invariance LIBS train_fixture LABELS cpu nvme TIMEOUT 120
            INSTANCES ${train_shapes} SLOW gpt2-bf16) # which runs simulated and paranoid, too
set(train_modes gpt2-fp32 gpt2-fp16-untied llama-fp16 llama-bf16 gpt2-bf16-unclipped
    llama-fp32-untied-unclipped gpt2-fp16-cut
    gpt2-bf16-lion llama-fp32-adagrad-documents gpt2-bf16-m16 llama-fp32-unclipped-m8
    gpt2-bf16-dropout gpt2-fp32-cut-documents-dropout llama-bf16-lora-dropout
    bert-fp32-documents bert-fp16 bert-bf16-unclipped-cut-dropout
    gpt2-fp32-unclipped-muon llama-bf16-untied-muon gpt2-fp16-muon llama-fp32-lora-muon)
sluice_test(test_train_modes LIBS train_fixture LABELS cpu nvme TIMEOUT 120
            INSTANCES ${train_modes}
            SLOW gpt2-fp16-untied gpt2-bf16-unclipped llama-fp32-unclipped-m8 # paranoid, too
                 gpt2-fp16-muon llama-fp32-lora-muon)
set(train_sets avx2 avx512_bf16) # what avx512 computes, the tests of kernels and models compare
sluice_isa_test(test_train_modes SETS ${train_sets} LABELS cpu nvme TIMEOUT 120
                INSTANCES gpt2-fp32 llama-bf16)
# Each family at least once; 400 more jobs slowly.
sluice_test(test_train_random LIBS train_fixture LABELS cpu nvme TIMEOUT 180
            INSTANCES 1-14 15-28)
test_line(slow.test_train_random COMMAND test_train_random 1001-1400 LABELS slow TIMEOUT 3600)
sluice_test(test_train_pytorch LIBS train_fixture LABELS cpu nvme INSTANCES ${train_curves})
sluice_test(test_train_state LIBS hf_fixture train_fixture LABELS cpu nvme debug)
sluice_test(test_train_experts LIBS train_fixture LABELS cpu nvme debug)
sluice_test(test_train_lora LIBS train_fixture LABELS cpu nvme debug)
sluice_test(test_train_frozen LIBS train_fixture comm_fixture LABELS cpu nvme debug TIMEOUT 120)
sluice_test(test_train_split LIBS train_fixture comm_fixture LABELS cpu nvme TIMEOUT 120
            INSTANCES bf16 fp32)
sluice_test(test_train_carry LIBS train_fixture comm_fixture LABELS cpu nvme TIMEOUT 120)
sluice_test(test_train_rescue LIBS train_fixture LABELS cpu nvme debug)
sluice_test(test_train_stops LIBS train_fixture LABELS cpu nvme TIMEOUT 120
            INSTANCES llama-fp16 gpt2-fp16-untied-cut-lion gpt2-bf16-adagrad
            llama-bf16-unclipped-cut gpt2-fp32-cut-range
            llama-fp32-unclipped-untied-adam-onecycle gpt2-fp16-tokens-adagrad-onecycle
            llama-bf16-delayed llama-bf16-unclipped-split-m16 gpt2-fp16-untied-cut-m8
            gpt2-bf16-dropout gpt2-bf16-muon
            SLOW gpt2-fp16-untied-cut-m8 gpt2-fp16-untied-cut-lion
                 llama-fp32-unclipped-untied-adam-onecycle)
sluice_test(test_train_ranks LIBS train_fixture comm_fixture LABELS cpu nvme)

sluice_test(test_train_signals LIBS crash_case LABELS cpu nvme TIMEOUT 120)
target_compile_definitions(test_train_signals PRIVATE
                           SLUICE_PROGRAM="$<TARGET_FILE:sluice>")
add_dependencies(test_train_signals sluice)

set(train_fp16_curves fp16-gpt2-tied fp16-llama-untied)
sluice_test(test_train_fp16 LIBS train_fixture LABELS cpu nvme INSTANCES ${train_fp16_curves})
sluice_test(test_train_tokens LIBS train_fixture LABELS cpu nvme debug)
sluice_test(test_train_data LIBS train_fixture LABELS cpu nvme debug)

# Once more in paranoid mode (fresh addresses, NaN-fill, compare, poison), and on simulated drives:
# again_test(paranoid SLUICE_TEST_PARANOID BINARY INSTANCES...). A way that begins with "slow" is slow.
function(again_test how variable binary)
    set(labels cpu nvme)
    set(timeout 120)
    if(how MATCHES "^slow")
        list(APPEND labels slow)
        set(timeout 900)
    endif()
    foreach(instance ${ARGN})
        test_line(${how}.${binary}.${instance} COMMAND ${binary} ${instance}
                  LABELS ${labels} TIMEOUT ${timeout} ENVIRONMENT ${variable}=1)
    endforeach()
endfunction()
# Paranoid mode looks at programs and memory, not at numbers: every kind of program is run, and a model
# or dtype more of the same kind is slow. Some groups are run in this mode alone.
set(paranoid_shapes gpt2-bf16)
set(paranoid_modes gpt2-fp16-untied gpt2-bf16-unclipped llama-bf16-untied-cut llama-fp32-unclipped-m8)
again_test(paranoid SLUICE_TEST_PARANOID test_train_invariance ${paranoid_shapes})
again_test(paranoid SLUICE_TEST_PARANOID test_train_modes ${paranoid_modes})
again_test(slow.many SLUICE_TEST_MANY test_train_modes ${train_modes})
again_test(slow.many SLUICE_TEST_MANY test_train_invariance ${train_shapes})
list(REMOVE_ITEM train_shapes ${paranoid_shapes})
list(REMOVE_ITEM train_modes ${paranoid_modes})
again_test(slow.paranoid SLUICE_TEST_PARANOID test_train_invariance ${train_shapes})
again_test(slow.paranoid SLUICE_TEST_PARANOID test_train_modes ${train_modes})
again_test(paranoid SLUICE_TEST_PARANOID test_train_pytorch ${train_curves})
again_test(paranoid SLUICE_TEST_PARANOID test_train_fp16 ${train_fp16_curves})
again_test(paranoid SLUICE_TEST_PARANOID test_state_resume all)
again_test(paranoid SLUICE_TEST_PARANOID test_train_rescue all)
again_test(paranoid SLUICE_TEST_PARANOID test_setup_fit all)
again_test(simulated SLUICE_TEST_SIMULATED test_train_invariance gpt2-bf16)
again_test(simulated SLUICE_TEST_SIMULATED test_train_modes gpt2-fp32 llama-fp16 llama-bf16-untied-cut)
again_test(simulated SLUICE_TEST_SIMULATED test_train_pytorch ${train_curves})

test_line(train_bad_input COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/check_bad_input.sh $<TARGET_FILE:sluice>
          LABELS cpu debug)
test_line(train_deepspeed_jobs COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/check_deepspeed_jobs.sh
          $<TARGET_FILE:sluice> ${PROJECT_SOURCE_DIR} LABELS cpu nvme TIMEOUT 120)
test_line(train_bad_runs COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/checks/check_bad_runs.sh $<TARGET_FILE:sluice>
          $<TARGET_FILE:deny_uring> LABELS cpu nvme TIMEOUT 180)
