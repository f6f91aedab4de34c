# Token files, documents, mixtures, sampler.
sluice_test(test_data_sampler LIBS sluice_data LABELS cpu debug)
sluice_test(test_data_formats LIBS sluice_data LABELS cpu debug)
sluice_test(test_data_refusals LIBS sluice_data LABELS cpu debug)
sluice_test(test_data_order LIBS sluice_data LABELS cpu debug)
sluice_test(test_data_records LIBS sluice_data LABELS cpu debug)
sluice_test(test_data_prepare LIBS sluice_data LABELS cpu debug)
sluice_test(test_data_long LIBS sluice_data LABELS cpu debug)
