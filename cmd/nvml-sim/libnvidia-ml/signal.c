//go:build nvmlsim

#include <signal.h>
#include <stddef.h>

#include "sim.h"

// The Go runtime stops goroutines with SIGURG, and that of this library takes the signal over when it starts. A host
// that is a Go program too needs it more. So the host's handler is noted before the runtime starts, and put back after.

static struct sigaction host;

__attribute__((constructor(101))) static void noteSignal(void)
{
    sigaction(SIGURG, NULL, &host);
}

void simReturnSignal(void)
{
    if ((host.sa_flags & SA_SIGINFO) != 0 && host.sa_sigaction != NULL)
        sigaction(SIGURG, &host, NULL);
}
