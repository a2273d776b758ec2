/* Writes down what programs do to the files below one directory, so that power_stage.py can work out afterwards what a
 * disk would have kept, had the power failed at any moment. Loaded into a program with LD_PRELOAD.
 *
 * Promises: every change to a regular file, and to the entries of a directory, below $POWER_DISK that is made through
 * the functions here is one record in $POWER_LOG, in the order in which the changes happened among all threads and all
 * processes: the change and its record are made under one lock. fsync and its kin are records too, and are not passed
 * on: the rig decides what they have saved, and no real disk has to. A write to the file $POWER_MARKS is a record of
 * its own kind (an acknowledgement, said to the outside).
 *
 * Does not see writes through mmap, io_uring or stdio's buffers. What a stdio stream has written is recorded as a whole
 * when the stream is closed. Whether anything was missed is checked by the rig, which compares its account with the
 * files themselves.
 *
 * Nothing is remembered about descriptors: each call asks the kernel what its descriptor is. So dup, fork, exec and
 * inherited descriptors need no care. Only 64-bit Linux.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { WRITE = 1, TRUNCATE, CREATE, MKDIR, RENAME, UNLINK, RMDIR, LINK, SYMLINK, SYNC, SYNC_ALL, MARK, ALLOCATE };

/* Mirrored by power_stage.HEADER. The paths and the data follow. */
struct header {
    uint32_t magic, kind;
    uint64_t inode;
    int64_t offset;
    uint64_t length;
    uint32_t first_length, second_length;
};

#define MAGIC 0x50575231u
#define HIGH_DESCRIPTOR 700

static char disk[PATH_MAX];
static size_t disk_length;
static char marks[PATH_MAX];
static int log_descriptor = -1;
static pthread_mutex_t *mutex;

static void die(const char *what) {
    dprintf(2, "power_shim: %s: %s\n", what, strerror(errno));
    _exit(99);
}

__attribute__((constructor)) static void begin(void) {
    const char *disk_path = getenv("POWER_DISK"), *log_path = getenv("POWER_LOG"), *marks_path = getenv("POWER_MARKS");
    if (!disk_path || !log_path || !marks_path) return;
    char lock_path[PATH_MAX];
    snprintf(lock_path, sizeof lock_path, "%s.lock", log_path);
    snprintf(marks, sizeof marks, "%s", marks_path);
    int low = syscall(SYS_openat, AT_FDCWD, log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (low < 0) die(log_path);
    log_descriptor = fcntl(low, F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR); /* out of the way of programs that count theirs */
    if (log_descriptor < 0) die("no descriptor for the log");
    syscall(SYS_close, low);
    int lock = syscall(SYS_openat, AT_FDCWD, lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (lock < 0 || flock(lock, LOCK_EX)) die(lock_path);
    struct stat status;
    if (fstat(lock, &status)) die(lock_path);
    int made = status.st_size == 0;
    if (made && syscall(SYS_ftruncate, lock, sizeof *mutex)) die(lock_path);
    mutex = mmap(NULL, sizeof *mutex, PROT_READ | PROT_WRITE, MAP_SHARED, lock, 0);
    if (mutex == MAP_FAILED) die("mmap");
    if (made) {
        pthread_mutexattr_t how;
        pthread_mutexattr_init(&how);
        pthread_mutexattr_setpshared(&how, PTHREAD_PROCESS_SHARED);
        pthread_mutexattr_setrobust(&how, PTHREAD_MUTEX_ROBUST);
        pthread_mutex_init(mutex, &how);
    }
    flock(lock, LOCK_UN);
    syscall(SYS_close, lock);
    snprintf(disk, sizeof disk, "%s", disk_path);
    disk_length = strlen(disk); /* last: from here on, calls are looked at */
}

/* Signals wait while the lock is held: a handler that writes would wait for itself. */
static void enter(sigset_t *before) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, before);
    if (pthread_mutex_lock(mutex) == EOWNERDEAD) pthread_mutex_consistent(mutex);
}

static void leave(const sigset_t *before) {
    int kept = errno;
    pthread_mutex_unlock(mutex);
    pthread_sigmask(SIG_SETMASK, before, NULL);
    errno = kept;
}

static void record(enum kind kind, uint64_t inode, int64_t offset, const char *first, const char *second,
                   const void *data, uint64_t length) {
    int kept = errno;
    struct header header = {MAGIC, kind, inode, offset, length, first ? strlen(first) : 0, second ? strlen(second) : 0};
    struct iovec parts[] = {{&header, sizeof header},
                            {(void *)first, header.first_length},
                            {(void *)second, header.second_length},
                            {(void *)data, data ? length : 0}};
    ssize_t size = sizeof header + header.first_length + header.second_length + (data ? length : 0);
    if (syscall(SYS_writev, log_descriptor, parts, 4) != size) die("the log cannot be written");
    errno = kept;
}

static int below(const char *path) {
    return disk_length && !strncmp(path, disk, disk_length) && (path[disk_length] == '/' || !path[disk_length]);
}

/* The path of an open file, as it is called now; 0 when it has none. */
static int named(int descriptor, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return 1;
}

enum subject { NOTHING, ON_DISK, THE_MARKS };

/* What a descriptor stands for. errno is left alone. */
static enum subject subject_of(int descriptor, uint64_t *inode) {
    if (!disk_length) return NOTHING;
    int kept = errno;
    enum subject found = NOTHING;
    struct stat status;
    char path[PATH_MAX];
    if (!fstat(descriptor, &status) && (S_ISREG(status.st_mode) || S_ISDIR(status.st_mode)) &&
        named(descriptor, path)) {
        *inode = status.st_ino;
        found = below(path) ? ON_DISK : !strcmp(path, marks) ? THE_MARKS : NOTHING;
    }
    errno = kept;
    return found;
}

/* The absolute path that (directory, path) means, its last part unresolved; whether it is below the disk. */
static int placed(int directory, const char *path, char *full) {
    if (!disk_length || !path || !*path) return 0;
    int kept = errno;
    char joined[PATH_MAX * 2], parent[PATH_MAX];
    if (path[0] == '/') {
        snprintf(joined, sizeof joined, "%s", path);
    } else {
        char base[PATH_MAX];
        int known = directory == AT_FDCWD ? getcwd(base, sizeof base) != NULL : named(directory, base);
        if (!known) { errno = kept; return 0; }
        snprintf(joined, sizeof joined, "%s/%s", base, path);
    }
    for (size_t end = strlen(joined); end > 1 && joined[end - 1] == '/';) joined[--end] = 0;
    char *last = strrchr(joined, '/');
    *last = 0;
    int found = realpath(*joined ? joined : "/", parent) != NULL && strlen(parent) + strlen(last + 1) + 2 <= PATH_MAX;
    if (found) stpcpy(stpcpy(stpcpy(full, strcmp(parent, "/") ? parent : ""), "/"), last + 1);
    errno = kept;
    return found && below(full);
}

static uint64_t inode_at(const char *path) {
    struct stat status;
    int kept = errno;
    uint64_t inode = lstat(path, &status) ? 0 : status.st_ino;
    errno = kept;
    return inode;
}

/* Opening. */

static int opened(int directory, const char *path, int flags, mode_t mode) {
    char full[PATH_MAX];
    if (!(flags & (O_CREAT | O_TRUNC)) || (flags & O_TMPFILE) == O_TMPFILE || !placed(directory, path, full))
        return syscall(SYS_openat, directory, path, flags, mode);
    sigset_t before;
    enter(&before);
    int was_there = inode_at(full) != 0;
    int descriptor = syscall(SYS_openat, directory, path, flags, mode);
    if (descriptor >= 0) {
        if (!was_there) record(CREATE, inode_at(full), 0, full, NULL, NULL, 0);
        else if (flags & O_TRUNC) record(TRUNCATE, inode_at(full), 0, NULL, NULL, NULL, 0);
    }
    leave(&before);
    return descriptor;
}

#define OPEN(name)                                                                                                     \
    int name(const char *path, int flags, ...) {                                                                       \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode_t mode = va_arg(rest, mode_t);                                                                            \
        va_end(rest);                                                                                                  \
        return opened(AT_FDCWD, path, flags, mode);                                                                    \
    }
#define OPENAT(name)                                                                                                   \
    int name(int directory, const char *path, int flags, ...) {                                                        \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode_t mode = va_arg(rest, mode_t);                                                                            \
        va_end(rest);                                                                                                  \
        return opened(directory, path, flags, mode);                                                                   \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
int __open_2(const char *path, int flags) { return opened(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return opened(AT_FDCWD, path, flags, 0); }
int __openat_2(int directory, const char *path, int flags) { return opened(directory, path, flags, 0); }
int __openat64_2(int directory, const char *path, int flags) { return opened(directory, path, flags, 0); }
int creat(const char *path, mode_t mode) { return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return creat(path, mode); }

/* Writing. */

static void wrote(int descriptor, enum subject what, uint64_t inode, int64_t offset, const void *data, uint64_t size) {
    if (what == THE_MARKS) {
        record(MARK, 0, 0, NULL, NULL, data, size);
        return;
    }
    record(WRITE, inode, offset, NULL, NULL, data, size);
    if (fcntl(descriptor, F_GETFL) & O_DSYNC) record(SYNC, inode, 0, NULL, NULL, NULL, 0);
}

ssize_t write(int descriptor, const void *data, size_t size) {
    uint64_t inode;
    enum subject what = subject_of(descriptor, &inode);
    if (what == NOTHING) return syscall(SYS_write, descriptor, data, size);
    sigset_t before;
    enter(&before);
    ssize_t done = syscall(SYS_write, descriptor, data, size);
    if (done > 0) wrote(descriptor, what, inode, lseek(descriptor, 0, SEEK_CUR) - done, data, done);
    leave(&before);
    return done;
}

ssize_t pwrite(int descriptor, const void *data, size_t size, off_t offset) {
    uint64_t inode;
    enum subject what = subject_of(descriptor, &inode);
    if (what == NOTHING) return syscall(SYS_pwrite64, descriptor, data, size, offset);
    sigset_t before;
    enter(&before);
    ssize_t done = syscall(SYS_pwrite64, descriptor, data, size, offset);
    if (done > 0) wrote(descriptor, what, inode, offset, data, done);
    leave(&before);
    return done;
}
ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t offset) {
    return pwrite(descriptor, data, size, offset);
}

static ssize_t gathered(int descriptor, const struct iovec *parts, int count, off_t offset, int placed_at) {
    size_t size = 0;
    for (int i = 0; i < count; i++) size += parts[i].iov_len;
    char *data = malloc(size ? size : 1), *end = data;
    if (!data) die("no memory");
    for (int i = 0; i < count; i++) end = mempcpy(end, parts[i].iov_base, parts[i].iov_len);
    ssize_t done = placed_at ? pwrite(descriptor, data, size, offset) : write(descriptor, data, size);
    int kept = errno;
    free(data);
    errno = kept;
    return done;
}

ssize_t writev(int descriptor, const struct iovec *parts, int count) {
    uint64_t inode;
    if (subject_of(descriptor, &inode) == NOTHING) return syscall(SYS_writev, descriptor, parts, count);
    return gathered(descriptor, parts, count, 0, 0);
}
ssize_t pwritev(int descriptor, const struct iovec *parts, int count, off_t offset) {
    uint64_t inode;
    if (subject_of(descriptor, &inode) == NOTHING)
        return syscall(SYS_pwritev, descriptor, parts, count, offset, offset >> 32 >> 32);
    return gathered(descriptor, parts, count, offset, 1);
}
ssize_t pwritev64(int descriptor, const struct iovec *parts, int count, off64_t offset) {
    return pwritev(descriptor, parts, count, offset);
}

ssize_t copy_file_range(int from, off64_t *from_offset, int to, off64_t *to_offset, size_t size, unsigned int flags) {
    uint64_t inode;
    if (subject_of(to, &inode) == NOTHING)
        return syscall(SYS_copy_file_range, from, from_offset, to, to_offset, size, flags);
    errno = EOPNOTSUPP; /* programs then copy by hand, which is seen */
    return -1;
}

int ftruncate(int descriptor, off_t size) {
    uint64_t inode;
    if (subject_of(descriptor, &inode) != ON_DISK) return syscall(SYS_ftruncate, descriptor, size);
    sigset_t before;
    enter(&before);
    int result = syscall(SYS_ftruncate, descriptor, size);
    if (!result) record(TRUNCATE, inode, size, NULL, NULL, NULL, 0);
    leave(&before);
    return result;
}
int ftruncate64(int descriptor, off64_t size) { return ftruncate(descriptor, size); }

int truncate(const char *path, off_t size) {
    char full[PATH_MAX];
    if (!placed(AT_FDCWD, path, full)) return syscall(SYS_truncate, path, size);
    sigset_t before;
    enter(&before);
    int result = syscall(SYS_truncate, path, size);
    if (!result) record(TRUNCATE, inode_at(full), size, NULL, NULL, NULL, 0);
    leave(&before);
    return result;
}
int truncate64(const char *path, off64_t size) { return truncate(path, size); }

static int allocated(int descriptor, int mode, off_t offset, off_t length) {
    uint64_t inode;
    if (subject_of(descriptor, &inode) != ON_DISK) return syscall(SYS_fallocate, descriptor, mode, offset, length);
    if (mode) {
        errno = EOPNOTSUPP; /* holes and the like: programs go on without */
        return -1;
    }
    sigset_t before;
    enter(&before);
    int result = syscall(SYS_fallocate, descriptor, mode, offset, length);
    if (!result) record(ALLOCATE, inode, offset + length, NULL, NULL, NULL, 0);
    leave(&before);
    return result;
}
int fallocate(int descriptor, int mode, off_t offset, off_t length) {
    return allocated(descriptor, mode, offset, length);
}
int fallocate64(int descriptor, int mode, off64_t offset, off64_t length) {
    return allocated(descriptor, mode, offset, length);
}
int posix_fallocate(int descriptor, off_t offset, off_t length) {
    int kept = errno, result = allocated(descriptor, 0, offset, length) ? errno : 0;
    errno = kept;
    return result;
}
int posix_fallocate64(int descriptor, off64_t offset, off64_t length) {
    return posix_fallocate(descriptor, offset, length);
}

/* stdio writes behind our back: the creation is seen here, and the content when the stream is closed. */

static FILE *streamed(const char *path, const char *mode, const char *symbol) {
    FILE *(*real)(const char *, const char *) = dlsym(RTLD_NEXT, symbol);
    char full[PATH_MAX];
    if (!(strchr(mode, 'w') || strchr(mode, 'a')) || !placed(AT_FDCWD, path, full)) return real(path, mode);
    sigset_t before;
    enter(&before);
    int was_there = inode_at(full) != 0;
    FILE *stream = real(path, mode);
    if (stream) {
        if (!was_there) record(CREATE, inode_at(full), 0, full, NULL, NULL, 0);
        else if (strchr(mode, 'w')) record(TRUNCATE, inode_at(full), 0, NULL, NULL, NULL, 0);
    }
    leave(&before);
    return stream;
}
FILE *fopen(const char *path, const char *mode) { return streamed(path, mode, "fopen"); }
FILE *fopen64(const char *path, const char *mode) { return streamed(path, mode, "fopen64"); }

int fclose(FILE *stream) {
    int (*real)(FILE *) = dlsym(RTLD_NEXT, "fclose");
    uint64_t inode;
    int descriptor = fileno(stream);
    if (descriptor < 0 || subject_of(descriptor, &inode) != ON_DISK ||
        (fcntl(descriptor, F_GETFL) & O_ACCMODE) == O_RDONLY)
        return real(stream);
    sigset_t before;
    enter(&before);
    fflush(stream);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    int copy = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    struct stat status;
    if (copy >= 0 && !fstat(copy, &status)) {
        char *data = malloc(status.st_size + 1);
        ssize_t size = data ? syscall(SYS_pread64, copy, data, status.st_size, 0) : -1;
        if (size != status.st_size) die("a stream could not be read again");
        record(TRUNCATE, inode, size, NULL, NULL, NULL, 0);
        record(WRITE, inode, 0, NULL, NULL, data, size);
        free(data);
    }
    if (copy >= 0) syscall(SYS_close, copy);
    int result = real(stream);
    leave(&before);
    return result;
}

/* Names. */

static int made_directory(int directory, const char *path, mode_t mode) {
    char full[PATH_MAX];
    if (!placed(directory, path, full)) return syscall(SYS_mkdirat, directory, path, mode);
    sigset_t before;
    enter(&before);
    int result = syscall(SYS_mkdirat, directory, path, mode);
    if (!result) record(MKDIR, inode_at(full), mode, full, NULL, NULL, 0);
    leave(&before);
    return result;
}
int mkdir(const char *path, mode_t mode) { return made_directory(AT_FDCWD, path, mode); }
int mkdirat(int directory, const char *path, mode_t mode) { return made_directory(directory, path, mode); }

static int unlinked(int directory, const char *path, int flags) {
    char full[PATH_MAX];
    if (!placed(directory, path, full)) return syscall(SYS_unlinkat, directory, path, flags);
    sigset_t before;
    enter(&before);
    int result = syscall(SYS_unlinkat, directory, path, flags);
    if (!result) record(flags & AT_REMOVEDIR ? RMDIR : UNLINK, 0, 0, full, NULL, NULL, 0);
    leave(&before);
    return result;
}
int unlink(const char *path) { return unlinked(AT_FDCWD, path, 0); }
int unlinkat(int directory, const char *path, int flags) { return unlinked(directory, path, flags); }
int rmdir(const char *path) { return unlinked(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char *path) {
    struct stat status;
    return unlinked(AT_FDCWD, path, !lstat(path, &status) && S_ISDIR(status.st_mode) ? AT_REMOVEDIR : 0);
}

static int renamed(int from, const char *old, int to, const char *new, unsigned int flags) {
    char first[PATH_MAX], second[PATH_MAX];
    int leaves = placed(from, old, first), comes = placed(to, new, second);
    if (!leaves && !comes) return syscall(SYS_renameat2, from, old, to, new, flags);
    if (!leaves || !comes || flags) die("a rename across the edge of the disk, or with flags");
    sigset_t before;
    enter(&before);
    int result = syscall(SYS_renameat2, from, old, to, new, flags);
    if (!result) record(RENAME, 0, 0, first, second, NULL, 0);
    leave(&before);
    return result;
}
int rename(const char *old, const char *new) { return renamed(AT_FDCWD, old, AT_FDCWD, new, 0); }
int renameat(int from, const char *old, int to, const char *new) { return renamed(from, old, to, new, 0); }
int renameat2(int from, const char *old, int to, const char *new, unsigned int flags) {
    return renamed(from, old, to, new, flags);
}

static int linked(int from, const char *old, int to, const char *new, int flags) {
    char first[PATH_MAX], second[PATH_MAX];
    if (!placed(to, new, second)) return syscall(SYS_linkat, from, old, to, new, flags);
    if (!placed(from, old, first)) die("a link to what is not on the disk");
    sigset_t before;
    enter(&before);
    int result = syscall(SYS_linkat, from, old, to, new, flags);
    if (!result) record(LINK, 0, 0, first, second, NULL, 0);
    leave(&before);
    return result;
}
int link(const char *old, const char *new) { return linked(AT_FDCWD, old, AT_FDCWD, new, 0); }
int linkat(int from, const char *old, int to, const char *new, int flags) { return linked(from, old, to, new, flags); }

static int symlinked(const char *target, int directory, const char *path) {
    char full[PATH_MAX];
    if (!placed(directory, path, full)) return syscall(SYS_symlinkat, target, directory, path);
    sigset_t before;
    enter(&before);
    int result = syscall(SYS_symlinkat, target, directory, path);
    if (!result) record(SYMLINK, inode_at(full), 0, full, target, NULL, 0);
    leave(&before);
    return result;
}
int symlink(const char *target, const char *path) { return symlinked(target, AT_FDCWD, path); }
int symlinkat(const char *target, int directory, const char *path) { return symlinked(target, directory, path); }

/* Making it durable. */

static int synced(int descriptor, long number) {
    uint64_t inode;
    if (subject_of(descriptor, &inode) != ON_DISK) return syscall(number, descriptor);
    sigset_t before;
    enter(&before);
    record(SYNC, inode, 0, NULL, NULL, NULL, 0);
    leave(&before);
    return 0;
}
int fsync(int descriptor) { return synced(descriptor, SYS_fsync); }
int fdatasync(int descriptor) { return synced(descriptor, SYS_fdatasync); }

int syncfs(int descriptor) {
    uint64_t inode;
    if (subject_of(descriptor, &inode) != ON_DISK) return syscall(SYS_syncfs, descriptor);
    sigset_t before;
    enter(&before);
    record(SYNC_ALL, 0, 0, NULL, NULL, NULL, 0);
    leave(&before);
    return 0;
}

/* Only asks for the writing to begin, and promises nothing: see its manual. So there is nothing to write down. */
int sync_file_range(int descriptor, off64_t offset, off64_t length, unsigned int flags) {
    (void)descriptor, (void)offset, (void)length, (void)flags;
    return 0;
}
