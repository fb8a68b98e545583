/* Work of a known size, for what the tools say of it. One word names the work:
 *   user MS        computes for that long          system MS     makes system calls for that long
 *   memory MIB     touches so much memory          fewer FILE    100 MiB if FILE is not there, and makes it; else 10
 *   tree MIB       two children at once, each with so much
 *   sleeps N       sleeps N times, a millisecond   read FILE     reads FILE to its end
 *   map FILE       maps FILE and looks at a byte of every page
 *   write FILE MIB writes so much and waits for the disk
 *   kill           ends itself by SIGKILL          segfault      reads where nothing is
 *   hang           sleeps for ten seconds */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double used(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static void touch(size_t mib) {
    char *at = mmap(NULL, mib << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) exit(9);
    memset(at, 1, mib << 20);
}

int main(int argc, char **argv) {
    static char buffer[1 << 20];
    if (argc < 2) return 2;
    const char *what = argv[1], *which = argc > 2 ? argv[2] : "0";
    int number = atoi(which);
    if (!strcmp(what, "user")) {
        volatile unsigned x = 0;
        while (used(CLOCK_PROCESS_CPUTIME_ID) < number)
            for (int i = 0; i < 1000000; i++) x += i;
    } else if (!strcmp(what, "system")) {
        int zero = open("/dev/zero", O_RDONLY);
        while (used(CLOCK_PROCESS_CPUTIME_ID) < number)
            for (int i = 0; i < 10; i++)
                if (read(zero, buffer, sizeof buffer) < 0) return 9;
    } else if (!strcmp(what, "memory")) {
        touch(number);
    } else if (!strcmp(what, "fewer")) {
        int fd = open(which, O_CREAT | O_EXCL | O_WRONLY, 0600);
        touch(fd >= 0 ? 100 : 10);
    } else if (!strcmp(what, "tree")) {
        for (int i = 0; i < 2; i++)
            if (fork() == 0) {
                touch(number);
                usleep(300000);
                _exit(0);
            }
        while (wait(NULL) > 0) {
        }
    } else if (!strcmp(what, "sleeps")) {
        while (number-- > 0) usleep(1000);
    } else if (!strcmp(what, "read")) {
        int fd = open(which, O_RDONLY);
        ssize_t n;
        if (fd < 0) return 9;
        while ((n = read(fd, buffer, sizeof buffer)) > 0) {
        }
        return n < 0 ? 9 : 0;
    } else if (!strcmp(what, "map")) {
        int fd = open(which, O_RDONLY);
        off_t size = fd < 0 ? 0 : lseek(fd, 0, SEEK_END);
        volatile char *at = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0), seen = 0;
        if (at == MAP_FAILED) return 9;
        for (off_t i = 0; i < size; i += 4096) seen += at[i];
    } else if (!strcmp(what, "write") && argc > 3) {
        int fd = open(which, O_CREAT | O_TRUNC | O_WRONLY, 0600);
        memset(buffer, 1, sizeof buffer);
        for (int i = atoi(argv[3]); i > 0; i--)
            if (write(fd, buffer, sizeof buffer) != sizeof buffer) return 9;
        return fsync(fd) ? 9 : 0;
    } else if (!strcmp(what, "kill")) {
        kill(getpid(), SIGKILL);
    } else if (!strcmp(what, "segfault")) {
        *(volatile int *)8 = 0;
    } else if (!strcmp(what, "hang")) {
        sleep(10);
    } else {
        return 2;
    }
    return 0;
}
