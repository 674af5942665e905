/* Stands for what tools put into a process: writes the ranges that it is given, one a line, to $RANGES_LOG. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <pthread.h>

static int wrote(const char *what, const char *name) {
    FILE *log = fopen(getenv("RANGES_LOG"), "a");
    if (log) { fprintf(log, "%s %s\n", what, name); fclose(log); }
    return 0;
}

/* NVTX 2 and rocTX. */
int nvtxRangePushA(const char *name) { return wrote("push", name); }
int nvtxRangePop(void) { return wrote("pop", ""); }
int roctxRangePushA(const char *name) { return wrote("push", name); }
int roctxRangePop(void) { return wrote("pop", ""); }

/* ITT: the application calls through pointers, which a collector replaces (ittnotify_config.h of Intel's ittapi 3). */
typedef struct { const char *name; void **function; void *init, *null; int group; } Function;
typedef struct {
    unsigned char magic[8];
    unsigned long version[3];
    volatile long initialized, mutex_initialized, atomic_counter;
    pthread_mutex_t mutex;
    void *library, *error_handler;
    const char **library_path;
    Function *functions;
} Global;
typedef struct { const char *text; } Handle;

typedef struct { unsigned long long d[3]; } Id;
static void begin(const void *domain, Id task, Id parent, Handle *name) {
    (void)domain; (void)task; (void)parent;
    wrote("push", name->text);
}
static void *handle(const char *text) {
    Handle *made = calloc(1, 64); /* as large as ittnotify.h has it, or larger */
    made->text = strdup(text);
    return made;
}
static void end(const void *domain) { (void)domain; wrote("pop", ""); }

void __itt_api_init(void *state, int groups) {
    Function *each = ((Global *)state)->functions;
    (void)groups;
    for (; each->name; each++) {
        if (!strcmp(each->name, "__itt_string_handle_create")) *each->function = (void *)handle;
        if (!strcmp(each->name, "__itt_task_begin")) *each->function = (void *)begin;
        if (!strcmp(each->name, "__itt_task_end")) *each->function = (void *)end;
    }
}
