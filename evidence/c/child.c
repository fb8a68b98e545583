/* A program that does nothing but end: no library, no dynamic linker, a few pages. What a wrapper says of it is the
 * wrapper. bench rusage compiles it with -static -nostdlib for x86_64 and aarch64. */
void _start(void) {
#if defined(__x86_64__)
    __asm__ volatile("syscall" : : "a"(231), "D"(0) : "rcx", "r11", "memory");
#elif defined(__aarch64__)
    register long number __asm__("x8") = 94;
    register long status __asm__("x0") = 0;
    __asm__ volatile("svc 0" : : "r"(number), "r"(status) : "memory");
#else
#error "exit_group of this processor is not known here"
#endif
    for (;;) {
    }
}
