/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Maps of the marker with their keys and values; src/maps.rs encodes the same layouts as bytes. */
#ifndef PENSTOCK_MARKER_MAPS_H
#define PENSTOCK_MARKER_MAPS_H

#include "../../hooks/bpf/kernel.h"

#define SHAPES_MAX 32
#define LABELS_MAX 4096

/* Flow cache of 1024 entries per CPU, in pages that fit the kernel's per-CPU allocator. */
#define KNOWN_PAGES 16
#define KNOWN_PER_PAGE 64
#define FLOW_WORDS 5

/* Methods of an action, and of a counter. */
#define BY_LABEL 1
#define BY_DESTINATION 2

enum reason {
    IS_IPV4,
    IS_OTHER,
    UNMATCHED,
    NO_ROOM,
    TOO_BIG,
    UNSUPPORTED,
    REFUSED,
    MALFORMED,
    UNCOUNTED,
    EXCLUDED,
    REASONS,
};

struct action {
    u32 label; /* without entropy */
    u8 owner[2];
    u8 activity;
    u8 method;
};

/* Tag of a socket: an explicit action if its method is not 0; name and cgroup of the process that created it,
 * if there is a rule for them. */
struct tag {
    struct action action;
    u8 program[16];
    u64 cgroup;
};

struct shape {
    u64 source[2]; /* masks */
    u64 destination[2];
    u16 source_port;
    u16 destination_port;
    u8 protocol;
    u8 used;
    u8 pad[2];
};

struct shapes {
    struct shape shape[SHAPES_MAX];
};

struct rule {
    u64 source[2];
    u64 destination[2];
    u16 source_port; /* network order */
    u16 destination_port;
    u8 protocol;
    u8 shape;
    u8 generation;
    u8 pad;
};

/* Value of an address rule. Only user space uses the fields after the action. */
struct kept {
    struct action action;
    u8 origin;
    u8 pad[3];
    u32 until_s;
};

struct settings {
    u32 epoch;         /* another one after each change of address rules; the lowest bit is their generation */
    u32 cgroup_levels; /* a bit for each level that has rules */
    u32 programs;      /* whether there are rules by program */
    u32 destination;   /* whether any rule or socket may ask for destination options */
};

struct counted {
    u8 owner[2];
    u8 activity;
    u8 method;
};

struct count {
    u64 packets;
    u64 bytes;
};

struct {
    __uint(type, MAP_SK_STORAGE);
    __uint(map_flags, F_NO_PREALLOC | F_CLONE);
    __type(key, int);
    __type(value, struct tag);
} sockets SEC(".maps");

struct {
    __uint(type, MAP_ARRAY);
    __uint(max_entries, 1);
    __type(key, u32);
    __type(value, struct settings);
} settings SEC(".maps");

struct {
    __uint(type, MAP_ARRAY);
    __uint(max_entries, 2);
    __type(key, u32);
    __type(value, struct shapes);
} shapes SEC(".maps");

struct {
    __uint(type, MAP_HASH);
    __uint(map_flags, F_NO_PREALLOC);
    __uint(max_entries, 262144);
    __type(key, struct rule);
    __type(value, struct kept);
} rules SEC(".maps");

struct {
    __uint(type, MAP_HASH);
    __uint(map_flags, F_NO_PREALLOC);
    __uint(max_entries, 4096);
    __type(key, u64);
    __type(value, struct action);
} cgroups SEC(".maps");

struct {
    __uint(type, MAP_HASH);
    __uint(map_flags, F_NO_PREALLOC);
    __uint(max_entries, 1024);
    __type(key, u8[16]);
    __type(value, struct action);
} programs SEC(".maps");

/* Actions of closing connections: their last packets are sent after the socket was destroyed. */
struct {
    __uint(type, MAP_LRU_HASH);
    __uint(max_entries, 16384);
    __type(key, struct rule);
    __type(value, struct action);
} leaving SEC(".maps");

/* Destinations with a path MTU below 1288, as a router named it: packets of the lowest MTU have no room for the option. */
struct {
    __uint(type, MAP_LRU_HASH);
    __uint(max_entries, 4096);
    __type(key, u64[2]);
    __type(value, u32);
} narrow SEC(".maps");

/* Index of each tag's counter in `labelled`. */
struct {
    __uint(type, MAP_HASH);
    __uint(map_flags, F_NO_PREALLOC);
    __uint(max_entries, LABELS_MAX);
    __type(key, struct counted);
    __type(value, u32);
} slots SEC(".maps");

/* Number of counters in use in `labelled`. */
struct {
    __uint(type, MAP_ARRAY);
    __uint(max_entries, 1);
    __type(key, u32);
    __type(value, u32);
} slots_taken SEC(".maps");

struct {
    __uint(type, MAP_PERCPU_ARRAY);
    __uint(max_entries, LABELS_MAX);
    __type(key, u32);
    __type(value, struct count);
} labelled SEC(".maps");

/* Cache entry of a flow on this CPU, one cache line. Another flow with the same index replaces it. */
struct known {
    u64 flow[FLOW_WORDS];
    u32 epoch;
    u32 slot; /* of what was counted last */
    struct counted counted;
    u8 pad[4];
    struct action action; /* by address; its method is 0 where no rule matches */
};

struct known_page {
    struct known known[KNOWN_PER_PAGE];
};

struct {
    __uint(type, MAP_PERCPU_ARRAY);
    __uint(max_entries, KNOWN_PAGES);
    __type(key, u32);
    __type(value, struct known_page);
} flows SEC(".maps");

struct {
    __uint(type, MAP_PERCPU_ARRAY);
    __uint(max_entries, REASONS);
    __type(key, u32);
    __type(value, struct count);
} passed SEC(".maps");

#endif
