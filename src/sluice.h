/* Sluice: training of transformer models whose states are larger than the memory of all devices.
 *
 * The public interface of libsluice. This version offers the version alone; opening a job, stepping,
 * evaluating, committing and exporting join it here, with the names sluice_*. Nothing else in the
 * archive is part of the interface. Usable from C and C++; any thread. */
#ifndef SLUICE_H
#define SLUICE_H

#ifdef __cplusplus
extern "C" {
#endif

#define SLUICE_VERSION_MAJOR 0
#define SLUICE_VERSION_MINOR 1
#define SLUICE_VERSION_PATCH 0

/* The version of the library in use, "major.minor.patch". Static storage. A program compares it with
 * the three numbers above to learn whether it runs with the library that it was compiled for. */
const char *sluice_version(void);

#ifdef __cplusplus
}
#endif

#endif
