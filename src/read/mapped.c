/* SPDX-License-Identifier: MIT */
/*
 * Bytes of mappings: the guard around whoever touches them, and copies out of them.
 *
 * A mapping may fault (SIGBUS) when its file shrinks or its disk fails. mapped_guard() declares the bytes that a call may
 * touch; the process-wide handler jumps out of that call only where the fault's address lies among them, and otherwise
 * hands the signal to what was there before, which as a rule ends the process. A file that shrinks inside its last page
 * faults not at all: zeros appear. Therefore sizes and times are compared again when the bytes are given back.
 *
 * Never writes to a mapping. Threading: the reader's thread; the handler is installed once for the process.
 */
#include <assert.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <ucontext.h>

#include "base/copy.h"
#include "read/engine.h"

#define HANDLER_STACK (64u << 10)

struct guard {
    uintptr_t begin, end;
    sigjmp_buf jump;
};

static _Thread_local struct guard *active_guard;
static struct sigaction previous_action;
static pthread_once_t handler_once = PTHREAD_ONCE_INIT;

static void on_bus_error(int number, siginfo_t *info, void *context) {
    const ucontext_t *before = context;
    struct guard *guard = active_guard;
    uintptr_t address = (uintptr_t)info->si_addr;
    if (guard && info->si_code > 0 && address >= guard->begin && address < guard->end) {
        pthread_sigmask(SIG_SETMASK, &before->uc_sigmask, NULL); /* sigsetjmp() did not save it: a system call less */
        siglongjmp(guard->jump, 1);
    }
    sigaction(SIGBUS, &previous_action, NULL);
    if (info->si_code <= 0)
        raise(number); /* somebody sent it; a real fault comes again by itself */
}

static void install_handler(void) {
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, &previous_action);
}

int mapped_prepare(struct reader *reader, struct diag *diag) {
    stack_t stack;
    pthread_once(&handler_once, install_handler);
    if (sigaltstack(NULL, &stack) < 0 || !(stack.ss_flags & SS_DISABLE))
        return 0; /* the thread has one */
    reader->fault_stack = malloc(HANDLER_STACK);
    stack = (stack_t){.ss_sp = reader->fault_stack, .ss_size = HANDLER_STACK};
    if (!reader->fault_stack || sigaltstack(&stack, NULL) < 0)
        return diag_set(diag, reader->fault_stack ? -errno : -ENOMEM,
                        "cannot give the SIGBUS handler a stack of its own");
    return 0;
}

void mapped_leave(struct reader *reader) {
    stack_t stack;
    if (reader->fault_stack && sigaltstack(NULL, &stack) == 0 && stack.ss_sp == reader->fault_stack) {
        stack = (stack_t){.ss_flags = SS_DISABLE};
        sigaltstack(&stack, NULL);
    }
    free(reader->fault_stack);
    reader->fault_stack = NULL;
}

int mapped_guard_bytes(const uint8_t *bytes, uint64_t length, int (*f)(void *arg), void *arg) {
    struct guard guard = {(uintptr_t)bytes, (uintptr_t)bytes + length, {{{0}, 0, {{0}}}}};
    assert(!active_guard);
    if (sigsetjmp(guard.jump, 0)) {
        active_guard = NULL;
        return -EFAULT;
    }
    active_guard = &guard;
    int r = f(arg);
    active_guard = NULL;
    return r;
}

int mapped_guard(struct slot *slot, int (*f)(void *arg), void *arg) {
    int r = mapped_guard_bytes(slot->bytes, slot->wanted, f, arg);
    slot->faulted |= r == -EFAULT;
    return r;
}

int reader_guard_bytes(struct reader *reader, const void *bytes, size_t length, int (*f)(void *arg), void *arg) {
    if (!reader->guards && mapped_prepare(reader, NULL) < 0)
        return -EFAULT;
    reader->guards = true;
    return mapped_guard_bytes(bytes, length, f, arg);
}

struct copy {
    void *to;
    const void *from;
    size_t bytes;
    enum copy_stores stores;
};

static int copy_bytes(void *arg) {
    const struct copy *copy = arg;
    copy_piece(copy->to, copy->from, copy->bytes, copy->stores);
    return 0;
}

/* Copies a mapped extent into the caller's memory. False: it faulted, and the request has failed. */
static bool copy_mapped(struct reader *reader, struct slot *slot) {
    struct copy copy = {slot->request.into, slot->bytes, slot->wanted, slot->request.stores};
    uint64_t begun = now_ns();
    int r = mapped_guard(slot, copy_bytes, &copy);
    reader->counters.copy_ns += now_ns() - begun;
    if (r == 0)
        return true;
    slot->error = slot_check_identity(slot, &slot->diag);
    if (slot->error)
        slot_finish(reader, slot);
    else
        slot_fail(reader, slot, -EIO, "a mapped page could not be read");
    return false;
}

enum step mapped_finish(struct reader *reader, struct slot *slot, const uint8_t *bytes) {
    slot->bytes = bytes;
    if (slot->request.into) {
        if (!copy_mapped(reader, slot))
            return STEP_OVER;
        slot->bytes = NULL;
    }
    slot->mapped = !slot->request.into;
    enum step step = STEP_READ;
    while (step == STEP_READ) {
        step = slot_after_read(reader, slot, (int64_t)slot_piece(reader, slot));
        if (step == STEP_READ)
            read_sleep(slot->delay_ns);
    }
    if (step == STEP_OPEN) { /* the mapping is of a file that its server forgot */
        slot->mapped = false;
        slot->bytes = NULL;
    }
    return step;
}
