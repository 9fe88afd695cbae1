/* A fake libnvidia-ml.so.1. Its GPUs are described by the text file named in FAKE_NVML_STATE, read again at each
 * call, so that a test can change them while a process runs. Lines are "key value"; lines before the first "gpu UUID"
 * speak of the whole driver, those after a "gpu UUID" or "mig UUID" of that device; a "mig" belongs to the "gpu" above
 * it. A value that is left out answers NOT_SUPPORTED; "error FUNCTION CODE" makes a function fail; "lost handle" or
 * "lost reads" takes a GPU off the bus, before or after its handle is given out.
 *
 * Like the real library it lists the GPUs when it is opened: one added later is not seen, and one removed is lost,
 * until the last nvmlShutdown and a new nvmlInit. Types and codes are those of NVIDIA's nvml.h. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    GPU_IS_LOST = 15
};
enum { TIMEOUT = 10 };
enum { NO_GPUS_FLAG = 1, MOST = 64, UUID_SIZE = 96, MIG_SLOTS = 7 };
#define NOT_AVAILABLE (~0ULL)

typedef unsigned long long u64;
typedef struct { char uuid[UUID_SIZE]; } *Device;
typedef struct { u64 total, free, used; } Memory;
typedef struct { unsigned version; u64 total, reserved, free, used; } Memory_v2;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned version, sensor; int temperature; } Temperature;
typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    unsigned type;
    int code;
    union { unsigned number; u64 large; } value;
} Field;
typedef struct { Device device; u64 type, data; unsigned gpu_instance, compute_instance; } Event;
typedef struct { Device device; unsigned heard; } *EventSet;
typedef struct { unsigned pid; u64 memory; unsigned gpu_instance, compute_instance; } Process;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { char uuid[UUID_SIZE]; } handles[4 * MOST]; /* one per UUID ever seen: a handle stays valid */
static unsigned handle_count, opened, gpu_count;
static Device gpus[MOST]; /* as listed when the library was opened */
static _Thread_local char state[1 << 16];

/* The state file: reading and finding lines. */

static void reload(void) {
    const char *path = getenv("FAKE_NVML_STATE");
    FILE *file = path ? fopen(path, "r") : NULL;
    state[file ? fread(state, 1, sizeof state - 1, file) : 0] = 0;
    if (file) fclose(file);
}

static const char *next_line(const char *at) {
    at += strcspn(at, "\n");
    return *at ? at + 1 : at;
}

static int is(const char *line, const char *key) {
    size_t size = strlen(key);
    return !strncmp(line, key, size) && line[size] == ' ';
}

/* The value of the next `key` line of this section at or after `at`; NULL when the section ends first. */
static const char *find(const char *at, const char *key) {
    for (; *at && !is(at, "gpu") && !is(at, "mig"); at = next_line(at))
        if (is(at, key)) return at + strlen(key) + 1;
    return NULL;
}

static void copy(char *to, size_t size, const char *value) {
    snprintf(to, size, "%.*s", (int)strcspn(value, "\n"), value);
}

/* The first line inside the section of the device, or NULL when the file has no such device. */
static const char *section(const char *uuid) {
    char name[UUID_SIZE];
    for (const char *at = state; *at; at = next_line(at)) {
        if (!is(at, "gpu") && !is(at, "mig")) continue;
        copy(name, sizeof name, at + 4);
        if (!strcmp(name, uuid)) return next_line(at);
    }
    return NULL;
}

static Device handle_of(const char *value) {
    char uuid[UUID_SIZE];
    unsigned i = 0;
    copy(uuid, sizeof uuid, value);
    pthread_mutex_lock(&lock);
    while (i < handle_count && strcmp(handles[i].uuid, uuid)) i++;
    if (i == handle_count) memcpy(handles[handle_count++].uuid, uuid, sizeof uuid);
    pthread_mutex_unlock(&lock);
    return (Device)&handles[i];
}

/* What every call does first. */

static int failure(const char *at, const char *function) {
    char name[64];
    int code;
    for (const char *value = find(at, "error"); value; value = find(next_line(value), "error"))
        if (sscanf(value, "%63s %d", name, &code) == 2 && !strcmp(name, function)) return code;
    return SUCCESS;
}

static int enter(const char *function) {
    reload();
    return opened ? failure(state, function) : UNINITIALIZED;
}

/* As enter(), and points `found` at the device's lines. A GPU lost only for reads still tells who it is. */
static int enter_device(Device device, const char *function, const char **found, int identity) {
    int code = enter(function);
    if (code) return code;
    if (!device) return INVALID_ARGUMENT;
    *found = section(device->uuid);
    const char *lost = *found ? find(*found, "lost") : "handle";
    if (lost && !(identity && !strncmp(lost, "reads", 5))) return GPU_IS_LOST;
    return failure(*found, function);
}

static int number(const char *at, const char *key, double *out) {
    const char *value = find(at, key);
    return value && sscanf(value, "%lf", out) == 1 ? SUCCESS : NOT_SUPPORTED;
}

/* A number of a device as an unsigned, scaled. */
static int read_number(Device device, const char *function, const char *key, double scale, unsigned *out) {
    const char *at;
    double value;
    int code = enter_device(device, function, &at, 0);
    if (!code) code = number(at, key, &value);
    if (!code) *out = (unsigned)(value * scale);
    return code;
}

static int read_text(Device device, const char *function, const char *key, char *out, unsigned size) {
    const char *at;
    int code = enter_device(device, function, &at, 1);
    if (code) return code;
    const char *value = find(at, key);
    if (!value) return NOT_SUPPORTED;
    copy(out, size, value);
    return SUCCESS;
}

/* The library. */

static int open_library(unsigned flags, const char *function) {
    reload();
    int code = failure(state, function);
    if (code || opened++) return code;
    gpu_count = 0;
    for (const char *at = state; *at; at = next_line(at))
        if (is(at, "gpu") && gpu_count < MOST) gpus[gpu_count++] = handle_of(at + 4);
    if (!gpu_count && !(flags & NO_GPUS_FLAG)) opened = 0, code = NOT_FOUND;
    return code;
}

int nvmlInitWithFlags(unsigned flags) { return open_library(flags, __func__); }
int nvmlInit_v2(void) { return open_library(0, __func__); }

int nvmlShutdown(void) {
    int code = enter(__func__);
    if (!code) opened--;
    return code;
}

const char *nvmlErrorString(int code) {
    switch (code) {
        case SUCCESS: return "Success";
        case UNINITIALIZED: return "Uninitialized";
        case INVALID_ARGUMENT: return "Invalid Argument";
        case NOT_SUPPORTED: return "Not Supported";
        case NOT_FOUND: return "Not Found";
        case INSUFFICIENT_SIZE: return "Insufficient Size";
        case TIMEOUT: return "Timeout";
        case 9: return "Driver Not Loaded";
        case GPU_IS_LOST: return "GPU is lost";
        case 18: return "Driver/library version mismatch";
        default: return "Unknown Error";
    }
}

int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    int code = enter(__func__);
    if (code) return code;
    const char *version = find(state, "driver");
    if (!version) return NOT_SUPPORTED;
    copy(out, size, version);
    return SUCCESS;
}

/* Devices: finding them, and who they are. */

int nvmlDeviceGetCount_v2(unsigned *count) {
    int code = enter(__func__);
    if (!code) *count = gpu_count;
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device) {
    const char *at;
    int code = enter(__func__);
    if (!code && index >= gpu_count) code = INVALID_ARGUMENT;
    if (!code) code = enter_device(gpus[index], __func__, &at, 1);
    if (!code) *device = gpus[index];
    return code;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Device *device) {
    const char *at;
    int code = enter(__func__);
    if (!code && !section(uuid)) code = NOT_FOUND;
    if (!code) code = enter_device(handle_of(uuid), __func__, &at, 1);
    if (!code) *device = handle_of(uuid);
    return code;
}

int nvmlDeviceGetUUID(Device device, char *out, unsigned size) {
    const char *at;
    int code = enter_device(device, __func__, &at, 1);
    if (!code) copy(out, size, device->uuid);
    return code;
}

int nvmlDeviceGetName(Device device, char *out, unsigned size) {
    return read_text(device, __func__, "name", out, size);
}

int nvmlDeviceGetIndex(Device device, unsigned *index) {
    const char *at;
    int code = enter_device(device, __func__, &at, 1);
    if (code) return code;
    for (*index = 0; *index < gpu_count; ++*index)
        if (gpus[*index] == device) return SUCCESS;
    return NOT_FOUND;
}

int nvmlDeviceGetCudaComputeCapability(Device device, int *major, int *minor) {
    const char *at;
    int code = enter_device(device, __func__, &at, 0);
    if (code) return code;
    const char *value = find(at, "cc");
    return value && sscanf(value, "%d.%d", major, minor) == 2 ? SUCCESS : NOT_SUPPORTED;
}

/* Devices: how they are. */

static int read_memory(Device device, const char *function, Memory *memory) {
    const char *at;
    double total, used;
    int code = enter_device(device, function, &at, 0);
    if (code) return code;
    if (number(at, "memory_mb", &total) || number(at, "memory_used_mb", &used)) return NOT_SUPPORTED;
    memory->total = (u64)total << 20;
    memory->used = (u64)used << 20;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(Device device, Memory *memory) { return read_memory(device, __func__, memory); }

int nvmlDeviceGetMemoryInfo_v2(Device device, Memory_v2 *out) {
    Memory memory;
    int code = read_memory(device, __func__, &memory);
    if (!code) out->total = memory.total, out->reserved = 0, out->free = memory.free, out->used = memory.used;
    return code;
}

int nvmlDeviceGetTemperature(Device device, unsigned sensor, unsigned *celsius) {
    return sensor ? INVALID_ARGUMENT : read_number(device, __func__, "temperature", 1, celsius);
}

int nvmlDeviceGetTemperatureV(Device device, Temperature *out) {
    unsigned celsius;
    int code = out->sensor ? INVALID_ARGUMENT : read_number(device, __func__, "temperature", 1, &celsius);
    if (!code) out->temperature = (int)celsius;
    return code;
}

int nvmlDeviceGetUtilizationRates(Device device, Utilization *out) {
    out->memory = 0;
    return read_number(device, __func__, "utilization", 1, &out->gpu);
}

int nvmlDeviceGetPowerUsage(Device device, unsigned *milliwatts) {
    return read_number(device, __func__, "power_w", 1000, milliwatts);
}

/* A counter since the driver was loaded. */
int nvmlDeviceGetTotalEnergyConsumption(Device device, u64 *millijoules) {
    unsigned joules;
    int code = read_number(device, __func__, "energy_j", 1, &joules);
    if (!code) *millijoules = joules * 1000ULL;
    return code;
}

/* "slowed_by": the reasons why its clocks are low, as a number of bits. */
int nvmlDeviceGetCurrentClocksThrottleReasons(Device device, u64 *reasons) {
    unsigned bits;
    int code = read_number(device, __func__, "slowed_by", 1, &bits);
    if (!code) *reasons = bits;
    return code;
}

/* Lines "process PID MB", or "process PID" where the driver does not tell the memory. */
int nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *count, Process *out) {
    const char *at;
    unsigned found = 0, room = *count;
    int code = enter_device(device, __func__, &at, 0);
    if (code) return code;
    for (const char *value = find(at, "process"); value; value = find(next_line(value), "process"), found++) {
        char line[64];
        u64 mb;
        Process process = {0, NOT_AVAILABLE, ~0u, ~0u};
        copy(line, sizeof line, value);
        if (sscanf(line, "%u %llu", &process.pid, &mb) == 2) process.memory = mb << 20;
        if (found < room) out[found] = process;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

/* Health. `type` 1 counts uncorrected errors, 0 corrected ones; both counters (volatile, aggregate) are the same. */

int nvmlDeviceGetTotalEccErrors(Device device, unsigned type, unsigned counter, u64 *out) {
    unsigned errors;
    int code = read_number(device, __func__, type ? "ecc" : "ecc_corrected", 1, &errors);
    if (!code) *out = errors;
    (void)counter;
    return code;
}

/* A line "remapped_rows CORRECTABLE UNCORRECTABLE PENDING FAILED". */
int nvmlDeviceGetRemappedRows(Device device, unsigned *correctable, unsigned *uncorrectable, unsigned *pending,
                              unsigned *failed) {
    const char *at;
    int code = enter_device(device, __func__, &at, 0);
    if (code) return code;
    const char *value = find(at, "remapped_rows");
    int read = value ? sscanf(value, "%u %u %u %u", correctable, uncorrectable, pending, failed) : 0;
    return read == 4 ? SUCCESS : NOT_SUPPORTED;
}

/* Lines "slowdown DEGREES" and "recovery ACTION". */

int nvmlDeviceGetTemperatureThreshold(Device device, unsigned kind, unsigned *celsius) {
    return kind != 1 ? NOT_SUPPORTED : read_number(device, __func__, "slowdown", 1, celsius);
}

int nvmlDeviceGetFieldValues(Device device, int count, Field *fields) {
    const char *at;
    int code = enter_device(device, __func__, &at, 0);
    if (code) return code;
    for (int i = 0; i < count; i++) {
        double value;
        fields[i].code = fields[i].field == 230 ? number(at, "recovery", &value) : NOT_SUPPORTED;
        fields[i].type = 1;
        if (!fields[i].code) fields[i].value.number = (unsigned)value;
    }
    return SUCCESS;
}

/* Events: lines "xid CODE [INSTANCE]"; a set hears those that were added after the GPU was registered in it. */

static unsigned xids(const char *at, unsigned which, u64 *code, unsigned *instance) {
    unsigned count = 0;
    for (const char *value = find(at, "xid"); value; value = find(next_line(value), "xid"))
        if (count++ == which && sscanf(value, "%llu %u", code, instance) < 2) *instance = ~0u;
    return count;
}

int nvmlDeviceGetSupportedEventTypes(Device device, u64 *types) {
    const char *at;
    *types = 8;
    return enter_device(device, __func__, &at, 0);
}

int nvmlEventSetCreate(EventSet *set) {
    *set = calloc(1, sizeof **set);
    return enter(__func__);
}

int nvmlEventSetFree(EventSet set) {
    free(set);
    return SUCCESS;
}

/* So that a test can wait for it: one line "UUID PID" in the file beside the state file. */
static void tell_listener(Device device) {
    char path[4096];
    snprintf(path, sizeof path, "%s.listeners", getenv("FAKE_NVML_STATE"));
    FILE *file = fopen(path, "a");
    if (!file) return;
    fprintf(file, "%s %d\n", device->uuid, (int)getpid());
    fclose(file);
}

int nvmlDeviceRegisterEvents(Device device, u64 types, EventSet set) {
    const char *at;
    u64 ignored;
    unsigned instance;
    int code = enter_device(device, __func__, &at, 0);
    if (code) return code;
    set->device = device, set->heard = xids(at, ~0u, &ignored, &instance);
    tell_listener(device);
    return types == 8 ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlEventSetWait_v2(EventSet set, Event *event, unsigned timeout_ms) {
    struct timespec pause = {0, 10 * 1000 * 1000};
    for (unsigned waited = 0; waited <= timeout_ms; waited += 10) {
        const char *at;
        u64 xid = 0;
        unsigned instance = ~0u;
        int code = enter_device(set->device, __func__, &at, 0);
        if (code) return code;
        if (xids(at, set->heard, &xid, &instance) > set->heard) {
            Event found = {set->device, 8, xid, instance, ~0u};
            return set->heard++, *event = found, SUCCESS;
        }
        nanosleep(&pause, NULL);
    }
    return TIMEOUT;
}

/* The number of the device file: a line "minor N". */
int nvmlDeviceGetMinorNumber(Device device, unsigned *minor) {
    return read_number(device, __func__, "minor", 1, minor);
}

/* MIG: a line "mig_mode 1", and the "mig" sections under the GPU, each with lines "instance N", "compute_instance N". */

int nvmlDeviceGetGpuInstanceId(Device device, unsigned *id) {
    return read_number(device, __func__, "instance", 1, id);
}

int nvmlDeviceGetComputeInstanceId(Device device, unsigned *id) {
    return read_number(device, __func__, "compute_instance", 1, id);
}

int nvmlDeviceGetMigMode(Device device, unsigned *current, unsigned *pending) {
    int code = read_number(device, __func__, "mig_mode", 1, current);
    *pending = *current;
    return code;
}

int nvmlDeviceGetMaxMigDeviceCount(Device device, unsigned *count) {
    int code = read_number(device, __func__, "mig_mode", MIG_SLOTS, count);
    if (code == NOT_SUPPORTED) *count = 0, code = SUCCESS;
    return code;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device device, unsigned index, Device *out) {
    const char *at;
    int code = enter_device(device, __func__, &at, 0);
    if (code) return code;
    for (; *at && !is(at, "gpu"); at = next_line(at))
        if (is(at, "mig") && index-- == 0) return *out = handle_of(at + 4), SUCCESS;
    return NOT_FOUND;
}
