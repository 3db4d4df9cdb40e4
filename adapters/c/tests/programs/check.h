/* A check that also stands in programs without assertions. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gcodec.h"

#define CHECK(condition)                                                                     \
    do {                                                                                     \
        if (!(condition)) {                                                                  \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                  \
            exit(1);                                                                         \
        }                                                                                    \
    } while (0)

/* Checks that a call succeeds, and prints its error otherwise. `error` is a variable of the caller. */
#define OK(call)                                                                             \
    do {                                                                                     \
        if ((call) != GCODEC_STATUS_OK) {                                                    \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, error.message);               \
            exit(1);                                                                         \
        }                                                                                    \
    } while (0)

/* Checks that a call fails with this status, and says so in its error. */
#define FAILS(code, call)                                                                    \
    do {                                                                                     \
        memset(&error, 0, sizeof error);                                                     \
        const gcodec_status found = (call);                                                  \
        if (found != (code) || error.status != (code) || error.message[0] == 0) {            \
            fprintf(stderr, "%s:%d: status %d: %s\n", __FILE__, __LINE__, (int)found,        \
                    error.message);                                                          \
            exit(1);                                                                         \
        }                                                                                    \
    } while (0)

#define REFUSED(call) FAILS(GCODEC_STATUS_INPUT, call)

#endif
