/* Looks at wrappers from outside: runs each of several commands once in every round and says how long each took, from
 * before vfork to after wait4. It is static and tiny, so that what it hands down to its children (the high-water mark
 * of exec) and its own time are small and the same for all.
 *
 *   harness ROUNDS WARM-UPS -- COMMAND [ARG...] -- COMMAND [ARG...] ...
 *
 * The order turns by one place from round to round and is reversed in every second one. A command's standard output
 * goes to /dev/null, its standard error into memory. For every run after the warm-ups, one record on standard output:
 * "round command nanoseconds exit-status length\n" and that many bytes of standard error. A child that cannot be
 * started, or is killed, ends the harness with status 1. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 64, HEARD = 8192 };

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

int main(int argc, char **argv) {
    char **command[MOST];
    int commands = 0;
    if (argc < 5) return 2;
    int rounds = atoi(argv[1]), warm_ups = atoi(argv[2]);
    for (int i = 3; i < argc; i++) {
        if (strcmp(argv[i], "--") != 0) continue;
        argv[i] = NULL; /* ends the command before */
        if (i + 1 == argc || commands == MOST) return 2;
        command[commands++] = argv + i + 1;
    }
    int heard = memfd_create("stderr", MFD_CLOEXEC), null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (heard < 0 || null < 0) fail("memfd_create, /dev/null");
    static char said[HEARD];

    for (int round = -warm_ups; round < rounds; round++) {
        for (int k = 0; k < commands; k++) {
            volatile int turned = (k + round + warm_ups) % commands; /* vfork: the child must not spoil it */
            int which = round & 1 ? commands - 1 - turned : turned, status;
            if (ftruncate(heard, 0) || lseek(heard, 0, SEEK_SET)) fail("memory for standard error");
            long long start = now();
            pid_t pid = vfork();
            if (pid < 0) fail("vfork");
            if (pid == 0) {
                dup2(null, 0);
                dup2(null, 1);
                dup2(heard, 2);
                execv(command[which][0], command[which]);
                _exit(127);
            }
            if (wait4(pid, &status, 0, NULL) != pid) fail("wait4");
            long long took = now() - start;
            if (!WIFEXITED(status) || WEXITSTATUS(status) >= 125) {
                fprintf(stderr, "%s: status %#x\n", command[which][0], status);
                return 1;
            }
            if (round < 0) continue;
            ssize_t length = pread(heard, said, HEARD, 0);
            if (length < 0) fail("reading standard error");
            printf("%d %d %lld %d %zd\n", round, which, took, WEXITSTATUS(status), length);
            fwrite(said, 1, length, stdout);
            fflush(stdout);
        }
    }
    return 0;
}
