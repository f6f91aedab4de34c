# The job file: one program per behaviour. They touch nothing but the files that they write.
foreach(behaviour changes deepspeed errors files fuzz hf hf_jobs job machine presets ranks schedule table windows)
    sluice_test(test_config_${behaviour} LIBS sluice_config LABELS cpu debug)
endforeach()
foreach(behaviour files fuzz machine presets schedule table)
    target_compile_definitions(test_config_${behaviour} PRIVATE
        SLUICE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
endforeach()
