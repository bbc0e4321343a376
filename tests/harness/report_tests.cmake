# Claims, figures and reports: what reads stores. Included by this folder's CMakeLists.txt.
vramlab_test(harness_growth SOURCES test_growth.c LIBRARIES harness LABELS unit)
vramlab_test(harness_compare SOURCES test_compare.c report_records.c temporary_directory.c LIBRARIES harness LABELS unit)
vramlab_test(harness_claims SOURCES test_claims.c report_records.c LIBRARIES harness LABELS unit)
vramlab_test(harness_claims_accumulate SOURCES test_claims_accumulate.c report_records.c LIBRARIES harness LABELS unit)
vramlab_test(harness_claims_checkpoint SOURCES test_claims_checkpoint.c report_records.c LIBRARIES harness LABELS unit)
vramlab_test(harness_factorial SOURCES test_factorial.c report_records.c LIBRARIES harness LABELS unit)
vramlab_test(harness_plot SOURCES test_plot.c report_records.c LIBRARIES harness LABELS unit)
vramlab_test(harness_report SOURCES test_report.c report_records.c LIBRARIES harness LABELS unit)
