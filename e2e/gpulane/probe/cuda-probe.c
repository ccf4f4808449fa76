// cuda-probe is a CUDA program that follows its standard input: it takes memory and runs a kernel, and reports what it got. It needs
// no CUDA toolkit: it loads the driver's library and declares what it uses of it.
//
// usage: cuda-probe [LIBRARY]     the driver's library, libcuda.so.1 if not given
//
// Its first line of output reports whether CUDA works: {"event":"ready",…}, {"event":"skip","reason":…} or
// {"event":"error","call":…,"code":…,"name":…}. From then on every line of input is a command and gets a line:
//   take BYTES CHUNK   allocates BYTES more, CHUNK at a time, and writes to it; stops where it gets no more
//   drop               frees all of it
//   work ROUNDS        runs a kernel on all multiprocessors there are, and checks what it computed
//   info               what the driver says about memory
// The end of the input ends the program, so it ends with who started it.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// The driver API's types, as far as they are used. They have been the same since CUDA 3.2.
typedef int CUresult, CUdevice;
typedef unsigned long long CUdeviceptr;
typedef void *CUcontext, *CUmodule, *CUfunction, *CUstream, *CUevent;
typedef struct { int type; union { struct { unsigned int val; } smCount; char room[64]; } param; } CUexecAffinityParam;

enum { SUCCESS = 0, OUT_OF_MEMORY = 2, STUB_LIBRARY = 34, NO_DEVICE = 100, MULTIPROCESSOR_COUNT = 16, SM_COUNT = 0 };

#define FUNCTIONS(X)                                                                                        \
	X(cuInit, unsigned int)                                                                             \
	X(cuDriverGetVersion, int *)                                                                        \
	X(cuDeviceGetCount, int *)                                                                          \
	X(cuDeviceGet, CUdevice *, int)                                                                     \
	X(cuDeviceGetAttribute, int *, int, CUdevice)                                                       \
	X(cuDeviceTotalMem_v2, size_t *, CUdevice)                                                          \
	X(cuDevicePrimaryCtxRetain, CUcontext *, CUdevice)                                                  \
	X(cuCtxSetCurrent, CUcontext)                                                                       \
	X(cuCtxSynchronize, void)                                                                           \
	X(cuMemGetInfo_v2, size_t *, size_t *)                                                              \
	X(cuMemAlloc_v2, CUdeviceptr *, size_t)                                                             \
	X(cuMemFree_v2, CUdeviceptr)                                                                        \
	X(cuMemsetD8_v2, CUdeviceptr, unsigned char, size_t)                                                \
	X(cuMemcpyDtoH_v2, void *, CUdeviceptr, size_t)                                                     \
	X(cuModuleLoadData, CUmodule *, const void *)                                                       \
	X(cuModuleGetFunction, CUfunction *, CUmodule, const char *)                                        \
	X(cuLaunchKernel, CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, \
	  unsigned int, unsigned int, CUstream, void **, void **)                                           \
	X(cuEventCreate, CUevent *, unsigned int)                                                           \
	X(cuEventRecord, CUevent, CUstream)                                                                 \
	X(cuEventElapsedTime, float *, CUevent, CUevent)                                                    \
	X(cuGetErrorName, CUresult, const char **)

#define DECLARE(name, ...) static CUresult (*name)(__VA_ARGS__);
FUNCTIONS(DECLARE)
static CUresult (*cuCtxGetExecAffinity)(CUexecAffinityParam *, int); // since CUDA 11.4

// The kernel's every thread mixes numbers for a while, in a way that nobody can shorten. mixed does the same.
enum { BLOCKS = 8192, THREADS = 256 };
static const char kernel[] =
	".version 7.0\n.target sm_70\n.address_size 64\n"
	".visible .entry mix(.param .u64 out, .param .u32 rounds)\n{\n"
	"	.reg .pred %p<2>;\n	.reg .b32 %r<9>;\n	.reg .b64 %d<5>;\n"
	"	ld.param.u64 %d1, [out];\n	ld.param.u32 %r1, [rounds];\n"
	"	mov.u32 %r2, %ctaid.x;\n	mov.u32 %r3, %ntid.x;\n	mov.u32 %r4, %tid.x;\n"
	"	mad.lo.u32 %r5, %r2, %r3, %r4;\n	mov.u32 %r6, %r5;\n	mov.u32 %r7, 0;\n"
	"LOOP:\n	setp.ge.u32 %p1, %r7, %r1;\n	@%p1 bra STORE;\n"
	"	mad.lo.u32 %r6, %r6, 1664525, %r5;\n	shr.u32 %r8, %r6, 7;\n	xor.b32 %r6, %r6, %r8;\n"
	"	add.u32 %r7, %r7, 1;\n	bra LOOP;\n"
	"STORE:\n	cvta.to.global.u64 %d2, %d1;\n	mul.wide.u32 %d3, %r5, 4;\n	add.u64 %d4, %d2, %d3;\n"
	"	st.global.u32 [%d4], %r6;\n	ret;\n}\n";

static unsigned int mixed(unsigned int thread, unsigned int rounds) {
	unsigned int x = thread;
	for (unsigned int i = 0; i < rounds; i++) {
		x = x * 1664525 + thread;
		x ^= x >> 7;
	}
	return x;
}

static int skip(const char *reason) {
	printf("{\"event\":\"skip\",\"reason\":\"");
	for (; *reason; reason++)
		if (*reason >= ' ' && *reason <= '~' && *reason != '"' && *reason != '\\')
			putchar(*reason);
	puts("\"}");
	return 0;
}

static const char *name(CUresult code) {
	const char *s = NULL;
	return cuGetErrorName(code, &s) == SUCCESS && s ? s : "?";
}

static void failure(const char *call, CUresult code) {
	printf("{\"event\":\"error\",\"call\":\"%s\",\"code\":%d,\"name\":\"%s\"}\n", call, code, name(code));
	fflush(stdout);
}

// TRY returns from a function of type int with 0, and says why, where a call fails.
#define TRY(call, ...)                               \
	do {                                         \
		CUresult code_ = call(__VA_ARGS__);  \
		if (code_ != SUCCESS) {              \
			failure(#call, code_);       \
			return 0;                    \
		}                                    \
	} while (0)

static CUdevice device;

// ready makes a context, in the way of most programs, and says what this process has of the GPU.
static int ready(void) {
	CUcontext context;
	CUexecAffinityParam affinity = {0};
	int count, version, before, after;
	size_t total, device_total, free;
	TRY(cuDriverGetVersion, &version);
	TRY(cuDeviceGetCount, &count);
	TRY(cuDeviceGet, &device, 0);
	TRY(cuDeviceGetAttribute, &before, MULTIPROCESSOR_COUNT, device);
	TRY(cuDevicePrimaryCtxRetain, &context, device);
	TRY(cuCtxSetCurrent, context);
	TRY(cuDeviceGetAttribute, &after, MULTIPROCESSOR_COUNT, device);
	TRY(cuDeviceTotalMem_v2, &device_total, device);
	TRY(cuMemGetInfo_v2, &free, &total);
	if (!cuCtxGetExecAffinity || cuCtxGetExecAffinity(&affinity, SM_COUNT) != SUCCESS)
		affinity.param.smCount.val = 0;
	printf("{\"event\":\"ready\",\"pid\":%d,\"version\":%d,\"devices\":%d,\"multiprocessorsAtFirst\":%d,\"multiprocessors\":%d,"
	       "\"affinity\":%u,\"deviceTotal\":%zu,\"total\":%zu,\"free\":%zu}\n",
	       (int)getpid(), version, count, before, after, affinity.param.smCount.val, device_total, total, free);
	fflush(stdout);
	return 1;
}

#define MOST 65536
static CUdeviceptr taken[MOST];
static size_t amounts[MOST];
static int pieces;

// held is how much memory this process has taken.
static size_t held(void) {
	size_t sum = 0;
	for (int i = 0; i < pieces; i++)
		sum += amounts[i];
	return sum;
}

static int take(size_t want, size_t chunk) {
	CUresult code = SUCCESS;
	size_t got = 0;
	while (got < want && pieces < MOST && code == SUCCESS) {
		size_t amount = want - got < chunk ? want - got : chunk;
		code = cuMemAlloc_v2(&taken[pieces], amount);
		if (code != SUCCESS)
			break;
		amounts[pieces++] = amount;
		got += amount;
		TRY(cuMemsetD8_v2, taken[pieces - 1], 0x5a, amount);
	}
	if (code != SUCCESS && code != OUT_OF_MEMORY) {
		failure("cuMemAlloc_v2", code);
		return 0;
	}
	TRY(cuCtxSynchronize);
	printf("{\"event\":\"took\",\"asked\":%zu,\"got\":%zu,\"held\":%zu,\"code\":%d,\"name\":\"%s\"}\n", want, got, held(), code, name(code));
	fflush(stdout);
	return 1;
}

static int drop(void) {
	while (pieces > 0)
		TRY(cuMemFree_v2, taken[--pieces]);
	puts("{\"event\":\"dropped\"}");
	fflush(stdout);
	return 1;
}

static int info(void) {
	size_t free, total;
	TRY(cuMemGetInfo_v2, &free, &total);
	printf("{\"event\":\"info\",\"free\":%zu,\"total\":%zu,\"held\":%zu}\n", free, total, held());
	fflush(stdout);
	return 1;
}

static int work(unsigned int rounds) {
	static CUfunction mix;
	static CUdeviceptr out;
	static CUevent start, stop;
	static unsigned int results[64];
	CUmodule module;
	float ms;
	void *arguments[] = {&out, &rounds};
	if (!mix) {
		TRY(cuModuleLoadData, &module, kernel);
		TRY(cuModuleGetFunction, &mix, module, "mix");
		TRY(cuMemAlloc_v2, &out, sizeof(int) * BLOCKS * THREADS);
		TRY(cuEventCreate, &start, 0);
		TRY(cuEventCreate, &stop, 0);
	}
	TRY(cuMemsetD8_v2, out, 0, sizeof(int) * BLOCKS * THREADS);
	TRY(cuEventRecord, start, NULL);
	TRY(cuLaunchKernel, mix, BLOCKS, 1, 1, THREADS, 1, 1, 0, NULL, arguments, NULL);
	TRY(cuEventRecord, stop, NULL);
	TRY(cuCtxSynchronize);
	TRY(cuEventElapsedTime, &ms, start, stop);
	TRY(cuMemcpyDtoH_v2, results, out, sizeof results);
	int right = results[0] == mixed(0, rounds) && results[1] == mixed(1, rounds) && results[63] == mixed(63, rounds);
	printf("{\"event\":\"worked\",\"rounds\":%u,\"ms\":%.3f,\"right\":%s}\n", rounds, ms, right ? "true" : "false");
	fflush(stdout);
	return 1;
}

int main(int argc, char **argv) {
	char line[256], reason[512];
	unsigned long long amount, chunk;
	const char *path = argc > 1 ? argv[1] : "libcuda.so.1";
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		snprintf(reason, sizeof reason, "the driver's CUDA library cannot be loaded: %s", dlerror());
		return skip(reason);
	}
#define LOAD(function, ...)                                                                                          \
	if (!(function = (CUresult(*)(__VA_ARGS__))dlsym(library, #function))) {                                     \
		snprintf(reason, sizeof reason, "%s has no %s: it is a stub, or older than CUDA 7", path, #function); \
		return skip(reason);                                                                                 \
	}
	FUNCTIONS(LOAD)
	cuCtxGetExecAffinity = (CUresult(*)(CUexecAffinityParam *, int))dlsym(library, "cuCtxGetExecAffinity");
	CUresult code = cuInit(0);
	if (code == STUB_LIBRARY || code == NO_DEVICE) {
		snprintf(reason, sizeof reason, "cuInit says %s", name(code));
		return skip(reason);
	}
	if (code != SUCCESS) {
		failure("cuInit", code);
		return 1;
	}
	if (!ready())
		return 1;
	while (fgets(line, sizeof line, stdin)) {
		line[strcspn(line, "\n")] = 0;
		if (sscanf(line, "take %llu %llu", &amount, &chunk) == 2 && chunk > 0)
			take(amount, chunk);
		else if (sscanf(line, "work %llu", &amount) == 1)
			work((unsigned int)amount);
		else if (!strcmp(line, "drop"))
			drop();
		else if (!strcmp(line, "info"))
			info();
		else {
			printf("{\"event\":\"error\",\"call\":\"a command\",\"code\":-1,\"name\":\"not understood\"}\n");
			fflush(stdout);
		}
	}
	return 0; // the driver takes back what a process had
}
