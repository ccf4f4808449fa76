// nvml-probe asks NVIDIA's management library everything that Cleave asks it, and some more, and changes nothing. It
// prints one line of JSON per call, as the library answered: {"gpu","call","args","code","meaning","value"}.
//
// It is C, and not a part of the runner, so that it shares no code with Cleave: what both say is then so.
//
// usage: nvml-probe LIBRARY [CGROUP]     CGROUP is asked for memory limits
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

#define MISSING ((nvmlReturn_t)-1)

static void *library;

// text prints a string of JSON.
static void text(const char *s) {
	putchar('"');
	for (; *s; s++) {
		unsigned char c = (unsigned char)*s;
		if (c == '"' || c == '\\')
			printf("\\%c", c);
		else if (c < ' ' || c > '~')
			printf("\\u%04x", c);
		else
			putchar(c);
	}
	putchar('"');
}

static const char *meaning(nvmlReturn_t code) {
	static const char *(*name)(nvmlReturn_t);
	if (code == MISSING)
		return "the library has no such function";
	if (!name)
		name = (const char *(*)(nvmlReturn_t))dlsym(library, "nvmlErrorString");
	return name ? name(code) : "?";
}

// begin prints a call and its outcome; a value may follow, and end.
static void begin(int gpu, const char *call, const char *args, nvmlReturn_t code) {
	printf("{\"gpu\":%d,\"call\":", gpu);
	text(call);
	printf(",\"args\":");
	text(args);
	printf(",\"code\":%d,\"meaning\":", (int)code);
	text(meaning(code));
}

static void end(void) {
	puts("}");
	fflush(stdout); // should the next call crash, this much is known
}

// CALL calls a function by its name, if the library has it.
#define CALL(function, ...) \
	(dlsym(library, #function) ? ((__typeof__(&function))dlsym(library, #function))(__VA_ARGS__) : MISSING)

// ASK calls, prints, and prints a value where the call went well.
#define ASK(gpu, args, function, call, ...)             \
	do {                                            \
		nvmlReturn_t code_ = call;              \
		begin(gpu, #function, args, code_);     \
		if (code_ == NVML_SUCCESS) {            \
			printf(",\"value\":");          \
			__VA_ARGS__;                    \
		}                                       \
		end();                                  \
	} while (0)

static void numbers(const char *names[], const unsigned long long values[], int n) {
	putchar('{');
	for (int i = 0; i < n; i++)
		printf("%s\"%s\":%llu", i ? "," : "", names[i], values[i]);
	putchar('}');
}

#define NUMBERS(names, ...)                                                        \
	do {                                                                       \
		const char *names_[] = names;                                      \
		unsigned long long values_[] = {__VA_ARGS__};                      \
		numbers(names_, values_, (int)(sizeof values_ / sizeof *values_)); \
	} while (0)
#define NAMES(...) {__VA_ARGS__}

static void identity(int g, nvmlDevice_t d) {
	char s[NVML_DEVICE_NAME_V2_BUFFER_SIZE];
	unsigned int u;
	int major, minor;
	nvmlPciInfo_t pci;
	nvmlBrandType_t brand;
	nvmlDeviceArchitecture_t arch;
	ASK(g, "", nvmlDeviceGetUUID, CALL(nvmlDeviceGetUUID, d, s, sizeof s), text(s));
	ASK(g, "", nvmlDeviceGetMinorNumber, CALL(nvmlDeviceGetMinorNumber, d, &u), printf("%u", u));
	ASK(g, "", nvmlDeviceGetPciInfo_v3, CALL(nvmlDeviceGetPciInfo_v3, d, &pci), text(pci.busId));
	ASK(g, "", nvmlDeviceGetName, CALL(nvmlDeviceGetName, d, s, sizeof s), text(s));
	ASK(g, "", nvmlDeviceGetBrand, CALL(nvmlDeviceGetBrand, d, &brand), printf("%d", (int)brand));
	ASK(g, "", nvmlDeviceGetArchitecture, CALL(nvmlDeviceGetArchitecture, d, &arch), printf("%u", arch));
	ASK(g, "", nvmlDeviceGetCudaComputeCapability, CALL(nvmlDeviceGetCudaComputeCapability, d, &major, &minor),
	    printf("\"%d.%d\"", major, minor));
	ASK(g, "", nvmlDeviceGetModuleId, CALL(nvmlDeviceGetModuleId, d, &u), printf("%u", u));
}

static void memory(int g, nvmlDevice_t d, char *cgroup) {
	nvmlMemory_t m;
	nvmlMemory_v2_t m2 = {.version = nvmlMemory_v2};
	nvmlGetMemoryLimits_v1_t limits = {0};
	nvmlDeviceAddressingMode_t mode = {.version = nvmlDeviceAddressingMode_v1};
	nvmlEnableState_t current, pending;
	unsigned int u;
	ASK(g, "", nvmlDeviceGetMemoryInfo, CALL(nvmlDeviceGetMemoryInfo, d, &m),
	    NUMBERS(NAMES("total", "free", "used"), m.total, m.free, m.used));
	ASK(g, "", nvmlDeviceGetMemoryInfo_v2, CALL(nvmlDeviceGetMemoryInfo_v2, d, &m2),
	    NUMBERS(NAMES("total", "reserved", "free", "used"), m2.total, m2.reserved, m2.free, m2.used));
	limits.nameSpace = cgroup;
	ASK(g, cgroup, nvmlDeviceGetMemoryLimits_v1, CALL(nvmlDeviceGetMemoryLimits_v1, d, &limits),
	    NUMBERS(NAMES("soft", "hard", "used"), limits.softLimit, limits.hardLimit, limits.currentUsed));
	begin(g, "nvmlDeviceSetMemoryLimits_v1", "looked up only", // it would change something
	      dlsym(library, "nvmlDeviceSetMemoryLimits_v1") ? NVML_SUCCESS : MISSING);
	end();
	ASK(g, "", nvmlDeviceGetEccMode, CALL(nvmlDeviceGetEccMode, d, &current, &pending),
	    NUMBERS(NAMES("current", "pending"), current, pending));
	ASK(g, "", nvmlDeviceGetAddressingMode, CALL(nvmlDeviceGetAddressingMode, d, &mode), printf("%u", mode.value));
	ASK(g, "", nvmlDeviceGetNumaNodeId, CALL(nvmlDeviceGetNumaNodeId, d, &u), printf("%u", u));
}

// modes are what the lane must leave as they are.
static void modes(int g, nvmlDevice_t d) {
	nvmlComputeMode_t compute;
	nvmlEnableState_t persistence;
	nvmlGpuVirtualizationMode_t virtualization;
	unsigned int u, v;
	static const struct { const char *name; nvmlClockType_t type; } clocks[] = {
		{"graphics", NVML_CLOCK_GRAPHICS}, {"memory", NVML_CLOCK_MEM}};
	ASK(g, "", nvmlDeviceGetComputeMode, CALL(nvmlDeviceGetComputeMode, d, &compute), printf("%d", (int)compute));
	ASK(g, "", nvmlDeviceGetMigMode, CALL(nvmlDeviceGetMigMode, d, &u, &v), NUMBERS(NAMES("current", "pending"), u, v));
	ASK(g, "", nvmlDeviceGetPersistenceMode, CALL(nvmlDeviceGetPersistenceMode, d, &persistence), printf("%d", (int)persistence));
	ASK(g, "", nvmlDeviceGetVirtualizationMode, CALL(nvmlDeviceGetVirtualizationMode, d, &virtualization),
	    printf("%d", (int)virtualization));
	ASK(g, "", nvmlDeviceGetPowerManagementLimit, CALL(nvmlDeviceGetPowerManagementLimit, d, &u), printf("%u", u));
	for (size_t i = 0; i < sizeof clocks / sizeof *clocks; i++)
		ASK(g, clocks[i].name, nvmlDeviceGetApplicationsClock, CALL(nvmlDeviceGetApplicationsClock, d, clocks[i].type, &u),
		    printf("%u", u));
}

static void placements(int g, nvmlDevice_t d, unsigned int profile) {
	nvmlGpuInstancePlacement_t places[64];
	nvmlGpuInstance_t instances[64];
	unsigned int n = 64;
	char args[32];
	snprintf(args, sizeof args, "%u", profile);
	nvmlReturn_t code = CALL(nvmlDeviceGetGpuInstancePossiblePlacements_v2, d, profile, places, &n);
	begin(g, "nvmlDeviceGetGpuInstancePossiblePlacements_v2", args, code);
	if (code == NVML_SUCCESS) {
		printf(",\"value\":[");
		for (unsigned int i = 0; i < n && i < 64; i++)
			printf("%s{\"start\":%u,\"size\":%u}", i ? "," : "", places[i].start, places[i].size);
		putchar(']');
	}
	end();
	n = 64;
	ASK(g, args, nvmlDeviceGetGpuInstances, CALL(nvmlDeviceGetGpuInstances, d, profile, instances, &n), printf("%u", n));
	ASK(g, args, nvmlDeviceGetGpuInstanceRemainingCapacity, CALL(nvmlDeviceGetGpuInstanceRemainingCapacity, d, profile, &n),
	    printf("%u", n));
}

static void partitions(int g, nvmlDevice_t d) {
	unsigned int u;
	ASK(g, "", nvmlDeviceGetMaxMigDeviceCount, CALL(nvmlDeviceGetMaxMigDeviceCount, d, &u), printf("%u", u));
	for (unsigned int profile = 0; profile < NVML_GPU_INSTANCE_PROFILE_COUNT; profile++) {
		nvmlGpuInstanceProfileInfo_t p = {0};
		nvmlGpuInstanceProfileInfo_v3_t named = {.version = nvmlGpuInstanceProfileInfo_v3};
		char args[32];
		snprintf(args, sizeof args, "%u", profile);
		nvmlReturn_t code = CALL(nvmlDeviceGetGpuInstanceProfileInfo, d, profile, &p);
		begin(g, "nvmlDeviceGetGpuInstanceProfileInfo", args, code);
		if (code == NVML_SUCCESS) {
			printf(",\"value\":");
			NUMBERS(NAMES("id", "p2p", "slices", "instances", "multiprocessors", "copyEngines", "decoders", "encoders", "jpeg", "ofa", "memoryMB"),
				p.id, p.isP2pSupported, p.sliceCount, p.instanceCount, p.multiprocessorCount, p.copyEngineCount,
				p.decoderCount, p.encoderCount, p.jpegCount, p.ofaCount, p.memorySizeMB);
		}
		end();
		ASK(g, args, nvmlDeviceGetGpuInstanceProfileInfoV, CALL(nvmlDeviceGetGpuInstanceProfileInfoV, d, profile,
		    (nvmlGpuInstanceProfileInfo_v2_t *)&named), // one function for all versions
		    printf("{\"id\":%u,\"capabilities\":%u,\"name\":", named.id, named.capabilities); text(named.name); putchar('}'));
		if (code == NVML_SUCCESS)
			placements(g, d, p.id);
	}
}

static void links(int g, nvmlDevice_t d) {
	for (unsigned int link = 0; link < NVML_NVLINK_MAX_LINKS; link++) {
		nvmlEnableState_t up;
		nvmlIntNvLinkDeviceType_t kind;
		char args[32];
		snprintf(args, sizeof args, "%u", link);
		nvmlReturn_t code = CALL(nvmlDeviceGetNvLinkState, d, link, &up);
		begin(g, "nvmlDeviceGetNvLinkState", args, code);
		if (code == NVML_SUCCESS)
			printf(",\"value\":%d", (int)up);
		end();
		if (code != NVML_SUCCESS)
			return;
		ASK(g, args, nvmlDeviceGetNvLinkRemoteDeviceType, CALL(nvmlDeviceGetNvLinkRemoteDeviceType, d, link, &kind),
		    printf("%d", (int)kind));
	}
}

static void fabric(int g, nvmlDevice_t d) {
	nvmlGpuFabricInfo_v2_t f = {.version = nvmlGpuFabricInfo_v2};
	ASK(g, "v2", nvmlDeviceGetGpuFabricInfoV, CALL(nvmlDeviceGetGpuFabricInfoV, d, (nvmlGpuFabricInfoV_t *)&f),
	    printf("{\"state\":%u,\"status\":%d,\"cliqueId\":%u,\"healthMask\":%u,\"clusterUuid\":\"", f.state, (int)f.status, f.cliqueId,
		   f.healthMask);
	    for (int i = 0; i < NVML_GPU_FABRIC_UUID_LEN; i++) printf("%02x", f.clusterUuid[i]);
	    printf("\"}"));
}

static void fields(int g, nvmlDevice_t d) {
	static const unsigned int ids[] = {
		NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON, NVML_FI_DEV_NVLINK_LINK_COUNT, NVML_FI_DEV_C2C_LINK_COUNT,
		NVML_FI_DEV_IS_MIG_MODE_INDEPENDENT_MIG_QUERY_CAPABLE, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION};
	for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
		nvmlFieldValue_t v = {.fieldId = ids[i]};
		char args[32];
		snprintf(args, sizeof args, "%u", ids[i]);
		nvmlReturn_t code = CALL(nvmlDeviceGetFieldValues, d, 1, &v);
		if (code == NVML_SUCCESS)
			code = v.nvmlReturn;
		begin(g, "nvmlDeviceGetFieldValues", args, code);
		if (code == NVML_SUCCESS) // the types are of 4 and 8 bytes, in little endian
			printf(",\"value\":{\"type\":%d,\"number\":%llu}", (int)v.valueType,
			       v.valueType == NVML_VALUE_TYPE_UNSIGNED_INT ? v.value.uiVal : v.value.ullVal);
		end();
	}
}

static void list(int g, const char *call, nvmlReturn_t code, const nvmlProcessInfo_t *p, unsigned int n) {
	begin(g, call, "", code);
	if (code == NVML_SUCCESS) {
		printf(",\"value\":[");
		for (unsigned int i = 0; i < n; i++)
			printf("%s{\"pid\":%u,\"memory\":%llu}", i ? "," : "", p[i].pid, p[i].usedGpuMemory);
		putchar(']');
	}
	end();
}

static void processes(int g, nvmlDevice_t d) {
	nvmlProcessInfo_t p[256];
	unsigned int n = 256;
	nvmlReturn_t code = CALL(nvmlDeviceGetComputeRunningProcesses_v3, d, &n, p);
	list(g, "nvmlDeviceGetComputeRunningProcesses_v3", code, p, n);
	n = 256;
	code = CALL(nvmlDeviceGetGraphicsRunningProcesses_v3, d, &n, p);
	list(g, "nvmlDeviceGetGraphicsRunningProcesses_v3", code, p, n);
	n = 256;
	code = CALL(nvmlDeviceGetMPSComputeRunningProcesses_v3, d, &n, p);
	list(g, "nvmlDeviceGetMPSComputeRunningProcesses_v3", code, p, n);
}

static void events(int g, nvmlDevice_t d) {
	nvmlEventSet_t set;
	nvmlEventData_t data;
	unsigned long long supported = 0;
	ASK(g, "", nvmlDeviceGetSupportedEventTypes, CALL(nvmlDeviceGetSupportedEventTypes, d, &supported), printf("%llu", supported));
	nvmlReturn_t code = CALL(nvmlEventSetCreate, &set);
	begin(g, "nvmlEventSetCreate", "", code);
	end();
	if (code != NVML_SUCCESS)
		return;
	ASK(g, "supported", nvmlDeviceRegisterEvents, CALL(nvmlDeviceRegisterEvents, d, supported, set), printf("%llu", supported));
	ASK(g, "0 ms", nvmlEventSetWait_v2, CALL(nvmlEventSetWait_v2, set, &data, 0), printf("%llu", data.eventType));
	begin(g, "nvmlEventSetFree", "", CALL(nvmlEventSetFree, set));
	end();
}

int main(int argc, char **argv) {
	char s[256], nothing[] = "/sys/fs/cgroup";
	int cuda;
	unsigned int count = 0;
	if (argc < 2) {
		fprintf(stderr, "usage: nvml-probe LIBRARY [CGROUP]\n");
		return 2;
	}
	if (!(library = dlopen(argv[1], RTLD_LAZY | RTLD_LOCAL))) {
		fprintf(stderr, "nvml-probe: %s\n", dlerror());
		return 3;
	}
	nvmlReturn_t code = CALL(nvmlInit_v2);
	begin(-1, "nvmlInit_v2", "", code);
	end();
	if (code != NVML_SUCCESS)
		return 0;
	ASK(-1, "", nvmlSystemGetDriverVersion, CALL(nvmlSystemGetDriverVersion, s, sizeof s), text(s));
	ASK(-1, "", nvmlSystemGetNVMLVersion, CALL(nvmlSystemGetNVMLVersion, s, sizeof s), text(s));
	ASK(-1, "", nvmlSystemGetCudaDriverVersion_v2, CALL(nvmlSystemGetCudaDriverVersion_v2, &cuda), printf("%d", cuda));
	ASK(-1, "", nvmlDeviceGetCount_v2, CALL(nvmlDeviceGetCount_v2, &count), printf("%u", count));
	for (int g = 0; g < (int)count; g++) {
		nvmlDevice_t d;
		code = CALL(nvmlDeviceGetHandleByIndex_v2, (unsigned int)g, &d);
		begin(g, "nvmlDeviceGetHandleByIndex_v2", "", code);
		end();
		if (code != NVML_SUCCESS)
			continue;
		identity(g, d);
		memory(g, d, argc > 2 ? argv[2] : nothing);
		modes(g, d);
		partitions(g, d);
		links(g, d);
		fabric(g, d);
		fields(g, d);
		processes(g, d);
		events(g, d);
	}
	begin(-1, "nvmlShutdown", "", CALL(nvmlShutdown));
	end();
	return 0;
}
