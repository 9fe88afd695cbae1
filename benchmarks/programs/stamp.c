/* Writes the time at which it runs, in seconds, to the file named by its argument. */
#include <stdio.h>
#include <time.h>

int main(int argc, char **argv) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    FILE *file = argc > 1 ? fopen(argv[1], "w") : NULL;
    if (!file) return 1;
    fprintf(file, "%ld.%09ld\n", (long)now.tv_sec, now.tv_nsec);
    return fclose(file) != 0;
}
