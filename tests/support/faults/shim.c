/* Faults of the machine for one process tree, by LD_PRELOAD: syncs that fail, a wall clock that is off.
 *
 * $TEST_FAULTS names a file of 16 bytes that every process maps, so that a change is felt at once:
 * int64 the errno that each sync fails with (0: none), int64 the nanoseconds that the wall clock is off.
 *
 * $TEST_SYNCS names a file to which each sync and each rename appends a line, when it has succeeded. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *faults;

__attribute__((constructor)) static void map_faults(void) {
    const char *path = getenv("TEST_FAULTS");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *where = mmap(NULL, 16, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (where != MAP_FAILED) faults = where;
}

static int sync_fails(void) {
    if (!faults || !faults[0]) return 0;
    errno = (int)faults[0];
    return 1;
}

static void note(const char *what, const char *path) {
    const char *record = getenv("TEST_SYNCS");
    int file = record ? open(record, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (file < 0) return;
    dprintf(file, "%s %s\n", what, path);
    close(file);
}

int fsync(int file) {
    static int (*real)(int);
    char link[64], path[4096];
    if (!real) real = dlsym(RTLD_NEXT, "fsync");
    int result = sync_fails() ? -1 : real(file);
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = result ? -1 : readlink(link, path, sizeof path - 1);
    if (length > 0) {
        path[length] = 0;
        note("sync", path);
    }
    return result;
}

int rename(const char *from, const char *to) {
    static int (*real)(const char *, const char *);
    if (!real) real = dlsym(RTLD_NEXT, "rename");
    int result = real(from, to);
    if (!result) note("rename", to);
    return result;
}

int fdatasync(int file) {
    static int (*real)(int);
    if (!real) real = dlsym(RTLD_NEXT, "fdatasync");
    return sync_fails() ? -1 : real(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (result == 0 && clock == CLOCK_REALTIME && faults && faults[1]) {
        int64_t all = (int64_t)now->tv_sec * 1000000000 + now->tv_nsec + faults[1];
        now->tv_sec = all / 1000000000;
        now->tv_nsec = all % 1000000000;
    }
    return result;
}
