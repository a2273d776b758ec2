/* Moves the clocks of one process, like a clock change or a suspension of its host.
 *
 * Contract: loaded before all other libraries (LD_PRELOAD) into a program that asks libc for the time. The file named by
 * HOLDFAST_DRILL_CLOCK contains two 64-bit numbers of nanoseconds, in the byte order of the host: the offset of the wall
 * clock, and that of the boot-time clock. A write to the file moves the clocks immediately, in all processes that use it.
 * Without the file nothing is moved. The monotonic clock is never moved: no host's is, while a process runs.
 *
 * Not covered: programs that ask the kernel directly (static ones, and those written in Go), sleeps until a time of
 * day, and time stamps of the kernel.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

struct offsets {
    int64_t wall_ns;
    int64_t boot_ns;
};

static const volatile struct offsets *moved; /* NULL until the file is there: allocators ask for the time before that */

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("HOLDFAST_DRILL_CLOCK");
    int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return;
    void *found = mmap(NULL, sizeof(struct offsets), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (found != MAP_FAILED)
        moved = found;
}

static int64_t offset_of(clockid_t clock) {
    if (moved == NULL)
        return 0;
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)
        return moved->wall_ns;
    return clock == CLOCK_BOOTTIME ? moved->boot_ns : 0;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int failed = (int)syscall(SYS_clock_gettime, clock, at);
    int64_t offset = failed ? 0 : offset_of(clock);
    if (offset != 0) {
        int64_t told = at->tv_sec * SECOND + at->tv_nsec + offset;
        at->tv_sec = told / SECOND;
        at->tv_nsec = told % SECOND;
    }
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    int failed = clock_gettime(CLOCK_REALTIME, &now);
    (void)zone;
    if (!failed) {
        at->tv_sec = now.tv_sec;
        at->tv_usec = now.tv_nsec / 1000;
    }
    return failed;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at != NULL)
        *at = now.tv_sec;
    return now.tv_sec;
}
