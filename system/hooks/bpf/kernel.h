/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The part of the kernel's stable interface that Penstock's eBPF programs use: structures, helpers, constants.
 *
 * Layouts and numbers are those of linux/bpf.h, a stable ABI. They are copied here so that the compiled object
 * does not depend on the installed kernel headers.
 */
#ifndef PENSTOCK_HOOKS_KERNEL_H
#define PENSTOCK_HOOKS_KERNEL_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define SEC(name) __attribute__((section(name), used))
#define ALWAYS_INLINE inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))

#define LOOP _Pragma("clang loop unroll(disable)")

#define __uint(name, value) int(*name)[value]
#define __type(name, value) typeof(value) *name

enum map_type {
    MAP_HASH = 1,
    MAP_ARRAY = 2,
    MAP_PERCPU_HASH = 5,
    MAP_PERCPU_ARRAY = 6,
    MAP_LRU_HASH = 9,
    MAP_SK_STORAGE = 24,
    MAP_RINGBUF = 27,
};

#define F_NO_PREALLOC (1U << 0)
#define F_CLONE (1U << 9)

#define MAP_ANY 0
#define MAP_NOEXIST 1

#define TC_ACT_UNSPEC (-1) /* TCX_NEXT has the same value */

#define ADJ_ROOM_NET 0
#define ADJ_ROOM_FIXED_GSO (1ULL << 0)
#define SK_STORAGE_GET_CREATE (1ULL << 0)
#define CURRENT_NETNS (-1LL)
#define RB_NO_WAKEUP (1ULL << 0)
#define RB_FORCE_WAKEUP (1ULL << 1)
#define RB_AVAIL_DATA 0
#define RB_RING_SIZE 1

struct bpf_sock;

struct __sk_buff {
    u32 len;
    u32 pkt_type;
    u32 mark;
    u32 queue_mapping;
    u32 protocol;
    u32 vlan_present;
    u32 vlan_tci;
    u32 vlan_proto;
    u32 priority;
    u32 ingress_ifindex;
    u32 ifindex;
    u32 tc_index;
    u32 cb[5];
    u32 hash;
    u32 tc_classid;
    u32 data;
    u32 data_end;
    u32 napi_id;
    u32 family;
    u32 remote_ip4;
    u32 local_ip4;
    u32 remote_ip6[4];
    u32 local_ip6[4];
    u32 remote_port;
    u32 local_port;
    u32 data_meta;
    u64 flow_keys;
    u64 tstamp;
    u32 wire_len;
    u32 gso_segs;
    struct bpf_sock *sk __attribute__((aligned(8)));
    u32 gso_size;
    u8 tstamp_type;
    u32 : 24;
    u64 hwtstamp;
};

struct bpf_sock_tuple6 {
    u8 saddr[16];
    u8 daddr[16];
    u16 sport;
    u16 dport;
};

static void *(*map_lookup)(void *map, const void *key) = (void *)1;
static long (*map_update)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static u32 (*get_prandom_u32)(void) = (void *)7;
static u32 (*get_smp_processor_id)(void) = (void *)8;
static long (*store_bytes)(struct __sk_buff *, u32 offset, const void *from, u32 length, u64 flags) = (void *)9;
static long (*l4_csum_replace)(struct __sk_buff *, u32 offset, u64 from, u64 to, u64 flags) = (void *)11;
static long (*get_current_comm)(void *to, u32 size) = (void *)16;
static long (*vlan_push)(struct __sk_buff *, u16 protocol, u16 tci) = (void *)18;
static long (*vlan_pop)(struct __sk_buff *) = (void *)19;
static long (*load_bytes)(const void *, u32 offset, void *to, u32 length) = (void *)26;
static long (*pull_data)(struct __sk_buff *, u32 length) = (void *)39;
static long (*adjust_room)(struct __sk_buff *, int difference, u32 mode, u64 flags) = (void *)50;
static u64 (*skb_ancestor_cgroup_id)(struct __sk_buff *, int level) = (void *)83;
static struct bpf_sock *(*sk_lookup_tcp)(void *context, void *tuple, u32 size, u64 netns, u64 flags) = (void *)84;
static long (*sk_release)(void *sock) = (void *)86;
static struct bpf_sock *(*sk_fullsock)(struct bpf_sock *) = (void *)95;
static struct bpf_sock *(*get_listener_sock)(struct bpf_sock *) = (void *)98;
static void *(*sk_storage_get)(void *map, void *sock, void *value, u64 flags) = (void *)107;
static u64 (*get_current_ancestor_cgroup_id)(int level) = (void *)123;
static void *(*ringbuf_reserve)(void *ring, u64 size, u64 flags) = (void *)131;
static void (*ringbuf_submit)(void *data, u64 flags) = (void *)132;
static void (*ringbuf_discard)(void *data, u64 flags) = (void *)133;
static u64 (*ringbuf_query)(void *ring, u64 what) = (void *)134;
static long (*check_mtu)(void *context, u32 ifindex, u32 *mtu, int difference, u64 flags) = (void *)163;

#define htons(x) __builtin_bswap16(x)
#define ntohs(x) __builtin_bswap16(x)
#define htonl(x) __builtin_bswap32(x)
#define ntohl(x) __builtin_bswap32(x)

#endif
