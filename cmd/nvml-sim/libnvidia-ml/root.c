//go:build nvmlsim

#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim.h"

// The library lies in <root>/usr/lib/x86_64-linux-gnu, or in <root>/lib64. In a container nothing else of the node is
// there; its root is "/".
static const int levels = 4;

// hasState reports whether a node lies under a directory.
static int hasState(const char *dir)
{
    char path[PATH_MAX];
    int n = snprintf(path, sizeof(path), "%s/var/lib/nvml-sim", dir);
    return n > 0 && n < (int)sizeof(path) && access(path, F_OK) == 0;
}

char *simRoot(void)
{
    const char *named = getenv("NVML_SIM_ROOT");
    if (named != NULL && named[0] != '\0')
        return strdup(named);

    Dl_info info;
    if (dladdr((void *)simRoot, &info) == 0 || info.dli_fname == NULL)
        return NULL;
    char *path = realpath(info.dli_fname, NULL);
    if (path == NULL)
        return NULL;
    for (int i = 0; i < levels; i++) {
        char *slash = strrchr(path, '/');
        if (slash == NULL)
            break;
        *slash = '\0';
        if (hasState(path))
            return path;
    }
    if (path[0] == '\0')
        strcpy(path, "/");
    return path;
}

void *simReserve(size_t size)
{
    void *p = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}
