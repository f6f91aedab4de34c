# The figures of perf/run.sh that are not another file's.
if(TARGET sluice_train)
    foreach(name bench_data bench_compile bench_tokenizer bench_peak bench_commit bench_side)
        if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${name}.c)
            add_executable(${name} ${name}.c)
            target_link_libraries(${name} PRIVATE sluice_train sluice_options)
        endif()
    endforeach()
endif()
