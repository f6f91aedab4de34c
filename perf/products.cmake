# Row ops against loops of as many bytes; products and attention against the best large product of the same run.
if(TARGET sluice_kernels)
    foreach(name bench_matmul bench_attention bench_rows bench_divide)
        add_executable(${name} ${name}.c)
        target_link_libraries(${name} PRIVATE sluice_kernels sluice_options)
    endforeach()
endif()
