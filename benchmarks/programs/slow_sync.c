/* Preloaded, it lets every fsync and fdatasync take at least 4 ms: a disk without a write cache that survives. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <time.h>

static const long LEAST_NS = 4000000;

static int slowly(const char *name, int fd) {
    struct timespec begun, done;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    int result = real(fd), kept = errno;
    begun.tv_nsec += LEAST_NS;
    begun.tv_sec += begun.tv_nsec / 1000000000;
    begun.tv_nsec %= 1000000000;
    do {
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &begun, NULL);
        clock_gettime(CLOCK_MONOTONIC, &done);
    } while (done.tv_sec < begun.tv_sec || (done.tv_sec == begun.tv_sec && done.tv_nsec < begun.tv_nsec));
    errno = kept;
    return result;
}

int fsync(int fd) { return slowly("fsync", fd); }
int fdatasync(int fd) { return slowly("fdatasync", fd); }
