# The fuzz harnesses of tests/fuzz, each built one of two ways:
#
#   -DSLUICE_FUZZ=ON (preset `fuzz`)   with libFuzzer: sluice-fuzz-<what>, run by tests/fuzz/run.sh
#   else                               with replay.c: the test fuzz_replay_<what> runs the inputs
#
# The preset needs clang with compiler-rt's fuzzer and OpenMP: on Debian `apt-get install clang
# libclang-rt-dev libomp-dev`, on Ubuntu `clang libomp-dev`. Nothing else needs them.
set(fuzz_dir ${CMAKE_CURRENT_LIST_DIR})
set(fuzz_libs_job sluice_config)
set(fuzz_libs_tokens sluice_data)
set(fuzz_libs_files sluice_data PkgConfig::XXHASH)
set(fuzz_libs_lines sluice_data)
set(fuzz_libs_tokenizer sluice_data)
set(fuzz_libs_manifest sluice_format PkgConfig::XXHASH)
set(fuzz_libs_safetensors sluice_format)
set(fuzz_harnesses job tokens files lines tokenizer manifest safetensors)

if(SLUICE_FUZZ)
    if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
        message(FATAL_ERROR "SLUICE_FUZZ=ON needs clang, whose libFuzzer it links; the compiler is "
                            "${CMAKE_C_COMPILER}: use the preset `fuzz` in a build directory of its own")
    endif()
    add_executable(sluice-fuzz-job-dict ${fuzz_dir}/make_job_dict.c)
    target_link_libraries(sluice-fuzz-job-dict PRIVATE sluice_config)
    add_custom_command(OUTPUT ${PROJECT_BINARY_DIR}/job.dict
        COMMAND sluice-fuzz-job-dict > ${PROJECT_BINARY_DIR}/job.dict
        DEPENDS sluice-fuzz-job-dict VERBATIM)
    add_custom_target(sluice-fuzz-dicts DEPENDS ${PROJECT_BINARY_DIR}/job.dict)
endif()
foreach(what ${fuzz_harnesses})
    if(SLUICE_FUZZ)
        set(target sluice-fuzz-${what})
        add_executable(${target} ${fuzz_dir}/fuzz_${what}.c ${fuzz_dir}/fuzz_support.c)
        target_link_options(${target} PRIVATE -fsanitize=fuzzer)
        set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
        add_dependencies(${target} sluice-fuzz-dicts)
    else()
        set(target fuzz-replay-${what})
        add_executable(${target} ${fuzz_dir}/fuzz_${what}.c ${fuzz_dir}/fuzz_support.c
                       ${fuzz_dir}/replay.c)
        test_line(fuzz_replay_${what} COMMAND ${target} ${fuzz_dir}/inputs.tar ${what} LABELS cpu debug)
        add_dependencies(debug_tests ${target})
    endif()
    target_link_libraries(${target} PRIVATE ${fuzz_libs_${what}} sluice_options)
endforeach()
if(NOT SLUICE_FUZZ) # without inputs the tests above must not pass
    file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/fuzz-empty.tar "")
    foreach(what empty missing)
        test_line(fuzz_replay_canary_${what} COMMAND fuzz-replay-job ${CMAKE_CURRENT_BINARY_DIR}/fuzz-${what}.tar job
                  LABELS cpu debug)
        set_tests_properties(fuzz_replay_canary_${what} PROPERTIES WILL_FAIL TRUE)
    endforeach()
endif()
