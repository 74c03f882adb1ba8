/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Labels IPv6 packets of other programs with a scitag, and counts labelled and unlabelled packets.
 *
 * `mark_frame` and `mark_packet` run at tc egress of devices with and without Ethernet header,
 * `make_room_frame` and `make_room_packet` at tc ingress, `name_socket` when a process creates a socket. User space
 * writes the labelling rules to the maps; maps.h has their layouts.
 *
 * Cache misses dominate the cost of a packet, so each CPU caches the address rule of a flow (`flows`): address rules
 * are looked up once per flow and change of rules, socket tags with every packet.
 *
 * On an error the packet passes unchanged and the reason is counted. The only verdict is TC_ACT_UNSPEC.
 * Labelling changes the 20 bits of the flow label only: traffic class (DSCP, ECN) and other fields stay.
 */
#include "maps.h"

char LICENSE[] SEC("license") = "GPL";

#define ETHERTYPE_IPV4 0x0800
#define ETHERTYPE_IPV6 0x86DD
#define ETHERTYPE_VLAN 0x8100
#define ETHERTYPE_QINQ 0x88A8

#define NEXT_HOP_BY_HOP 0
#define NEXT_TCP 6
#define NEXT_UDP 17
#define NEXT_ROUTING 43
#define NEXT_FRAGMENT 44
#define NEXT_ICMPV6 58
#define NEXT_DESTINATION 60
#define NEXT_SCTP 132

#define IPV6_HEADER 40
#define IPV6_MTU_MIN 1280
#define TCP_HEADER 20
#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define MSS_OPTION 2
/* Smallest MSS that is lowered: the default of 536 (RFC 9293 section 3.7.1) plus the option's 8 bytes. */
#define MSS_MIN 544
#define TCP_OPTIONS_MAX 40

#define EXTENSION_HEADERS_MAX 8
#define CGROUP_LEVELS_MAX 16

/* Header of destination options with one option: its type, three bytes of data, and padding. */
#define OPTION_BYTES 8
#define OPTION_TYPE 0x1E
#define OPTION_DATA_BYTES 3

#define ICMPV6_PACKET_TOO_BIG 2

struct flow {
    /* The first 40 bytes identify the flow. */
    u64 source[2];
    u64 destination[2];
    u16 source_port;
    u16 destination_port;
    u8 protocol;
    u8 zero[3];

    u8 plain;    /* the transport header follows the IPv6 header */
    u8 fragment; /* is one: only the first has ports */
    u8 jumbo;    /* has the temporary header of BIG TCP */
    u8 tcp_flags;
    u8 tcp_words;
    u8 traffic_class_low; /* the nibble that shares a byte with the label */
    u8 hops;              /* hop limit */
    u16 payload;          /* length field of the IPv6 header */
    u32 l3;      /* offsets in the packet */
    u32 l4;
};

static ALWAYS_INLINE void add(struct count *count, u64 packets, u64 bytes)
{
    count->packets += packets;
    count->bytes += bytes;
}

static ALWAYS_INLINE void pass(u32 reason, u64 packets, u64 bytes)
{
    struct count *count = map_lookup(&passed, &reason);
    if (count)
        add(count, packets, bytes);
}

/* Index of a tag's counter in `labelled`, allocated on first use; LABELS_MAX if all are in use. */
static NOINLINE u32 slot_of(const struct counted *tag)
{
    u32 *slot = map_lookup(&slots, tag);
    if (slot)
        return *slot;
    u32 zero = 0;
    u32 *taken = map_lookup(&slots_taken, &zero);
    if (!taken || *taken >= LABELS_MAX)
        return LABELS_MAX;
    u32 next = __sync_fetch_and_add(taken, 1);
    map_update(&slots, tag, &next, MAP_NOEXIST);
    /* Another CPU may have inserted the tag first. */
    slot = map_lookup(&slots, tag);
    return slot ? *slot : LABELS_MAX;
}

static ALWAYS_INLINE void count_label(
    struct known *known, const struct action *action, u8 method, u64 packets, u64 bytes)
{
    struct counted tag = {{action->owner[0], action->owner[1]}, action->activity, method};
    if (__builtin_memcmp(&known->counted, &tag, sizeof(tag))) {
        known->slot = slot_of(&tag);
        known->counted = tag;
    }
    u32 slot = known->slot;
    struct count *count = map_lookup(&labelled, &slot);
    if (count)
        add(count, packets, bytes);
    else
        pass(UNCOUNTED, packets, bytes);
}

/* Ethertype and offset of the payload, behind at most two VLAN tags; 0 for a truncated frame. */
static ALWAYS_INLINE u16 ethertype(struct __sk_buff *skb, u32 *offset)
{
    u16 type = skb->protocol;
    u32 at = 12;
    if (type == htons(ETHERTYPE_IPV6) || type == htons(ETHERTYPE_IPV4)) {
        *offset = 14;
        return type;
    }
    if (load_bytes(skb, at, &type, 2))
        return 0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (type != htons(ETHERTYPE_VLAN) && type != htons(ETHERTYPE_QINQ))
            break;
        at += 4;
        if (load_bytes(skb, at, &type, 2))
            return 0;
    }
    *offset = at + 2;
    return type;
}

/* Parses the extension headers up to the transport header. Returns false for a truncated packet. */
static ALWAYS_INLINE int walk(struct __sk_buff *skb, struct flow *flow, u8 next)
{
    u32 at = flow->l3 + IPV6_HEADER;
    flow->plain = 1;
    LOOP for (int i = 0; i < EXTENSION_HEADERS_MAX; i++) {
        u8 head[4];
        if (next != NEXT_HOP_BY_HOP && next != NEXT_ROUTING && next != NEXT_FRAGMENT
            && next != NEXT_DESTINATION)
            break;
        flow->plain = 0;
        if (load_bytes(skb, at, head, 4))
            return 0;
        if (next == NEXT_FRAGMENT) {
            u16 offset = (u16)head[2] << 8 | head[3];
            flow->fragment = 1;
            at += 8;
            if (offset & ~7) {
                flow->protocol = head[0];
                flow->l4 = 0;
                return 1;
            }
        } else {
            /* RFC 2675: jumbo payload option, which BIG TCP packets have between TCP and the driver. */
            if (next == NEXT_HOP_BY_HOP && head[1] == 0 && head[2] == 0xC2 && head[3] == 4)
                flow->jumbo = 1;
            at += ((u32)head[1] + 1) * 8;
        }
        next = head[0];
    }
    flow->protocol = next;
    flow->l4 = at;
    if (next == NEXT_TCP) {
        u8 tcp[14];
        if (load_bytes(skb, at, tcp, sizeof(tcp)))
            return 0;
        __builtin_memcpy(&flow->source_port, tcp, 2);
        __builtin_memcpy(&flow->destination_port, tcp + 2, 2);
        flow->tcp_words = tcp[12] >> 4;
        flow->tcp_flags = tcp[13];
    } else if (next == NEXT_UDP || next == NEXT_SCTP) {
        u16 ports[2];
        if (load_bytes(skb, at, ports, sizeof(ports)))
            return 0;
        flow->source_port = ports[0];
        flow->destination_port = ports[1];
    }
    return 1;
}

/* An IPv6 header followed by a TCP header. */
struct start {
    u8 version, class_low, label[2];
    u16 payload;
    u8 next, hops;
    u64 source[2], destination[2];
    u16 source_port, destination_port;
    u8 sequence[8];
    u8 words, flags;
    u8 pad[2];
};

/* Bytes 4 to 48 of a packet with the option. */
struct option_write {
    u16 payload;
    u8 next, hops;
    u64 source[2], destination[2];
    u8 option[OPTION_BYTES];
} __attribute__((packed, aligned(4)));

static ALWAYS_INLINE void read_header(const struct start *header, struct flow *flow)
{
    flow->source[0] = header->source[0];
    flow->source[1] = header->source[1];
    flow->destination[0] = header->destination[0];
    flow->destination[1] = header->destination[1];
    flow->traffic_class_low = header->class_low & 0xF0;
    flow->payload = ntohs(header->payload);
    flow->hops = header->hops;
}

/* Slow path of read_flow: any IPv6 packet, also in non-linear memory. */
static NOINLINE int read_any(struct __sk_buff *skb, struct flow *flow)
{
    struct start header;
    if (load_bytes(skb, flow->l3, &header, IPV6_HEADER) || header.version >> 4 != 6)
        return 0;
    read_header(&header, flow);
    return walk(skb, flow, header.next);
}

static ALWAYS_INLINE int read_flow(struct __sk_buff *skb, u32 l3, struct flow *flow)
{
    flow->l3 = l3;
    const struct start *header = (void *)(u64)skb->data + l3;
    if ((void *)(header + 1) > (void *)(u64)skb->data_end || header->version >> 4 != 6
        || header->next != NEXT_TCP)
        return read_any(skb, flow);
    /* Fast path: linear memory, TCP directly behind IPv6. */
    read_header(header, flow);
    flow->plain = 1;
    flow->protocol = NEXT_TCP;
    flow->l4 = l3 + IPV6_HEADER;
    flow->source_port = header->source_port;
    flow->destination_port = header->destination_port;
    flow->tcp_words = header->words >> 4;
    flow->tcp_flags = header->flags;
    return 1;
}

/* Longest match: one masked look-up per shape, most specific first. */
static ALWAYS_INLINE struct action *by_address(const struct flow *flow, u32 epoch)
{
    u32 index = epoch & 1;
    struct shapes *all = map_lookup(&shapes, &index);
    if (!all)
        return 0;
    LOOP for (u32 i = 0; i < SHAPES_MAX; i++) {
        struct shape *shape = &all->shape[i];
        if (!shape->used)
            return 0;
        struct rule key;
        key.source[0] = flow->source[0] & shape->source[0];
        key.source[1] = flow->source[1] & shape->source[1];
        key.destination[0] = flow->destination[0] & shape->destination[0];
        key.destination[1] = flow->destination[1] & shape->destination[1];
        key.source_port = flow->source_port & shape->source_port;
        key.destination_port = flow->destination_port & shape->destination_port;
        key.protocol = flow->protocol & shape->protocol;
        key.shape = i;
        key.generation = index;
        key.pad = 0;
        struct kept *kept = map_lookup(&rules, &key);
        if (kept)
            return &kept->action;
    }
    return 0;
}

/* Hash of addresses, ports and protocol; constant for the lifetime of a flow. */
static ALWAYS_INLINE u64 hash(const struct flow *flow)
{
    u64 ports = flow->fragment ? 0 : (u64)flow->source_port << 16 | flow->destination_port;
    u64 mixed = flow->source[0] ^ flow->source[1] * 0x9E3779B97F4A7C15ULL;
    mixed ^= flow->destination[0] * 0xBF58476D1CE4E5B9ULL ^ flow->destination[1] * 0x94D049BB133111EBULL;
    mixed ^= ports * 0xD6E8FEB86659FD93ULL ^ flow->protocol;
    mixed ^= mixed >> 32;
    return mixed * 0xD6E8FEB86659FD93ULL;
}

/* Returns the cache entry of a flow; looks up its address rule if the flow is new or the rules have changed.
 * The entry has one user at a time: egress runs with bottom halves disabled. */
static ALWAYS_INLINE struct known *know(const struct flow *flow, u64 hash, u32 epoch)
{
    u32 index = hash >> 32 & (KNOWN_PAGES - 1);
    struct known_page *page = map_lookup(&flows, &index);
    if (!page)
        return 0;
    struct known *known = &page->known[hash >> 40 & (KNOWN_PER_PAGE - 1)];
    const u64 *this = (const u64 *)flow;
    u64 other = 0;
#pragma unroll
    for (int i = 0; i < FLOW_WORDS; i++)
        other |= known->flow[i] ^ this[i];
    if (!other && known->epoch == epoch)
        return known;
    struct action none = {};
    struct action *action = by_address(flow, epoch);
#pragma unroll
    for (int i = 0; i < FLOW_WORDS; i++)
        known->flow[i] = this[i];
    known->action = action ? *action : none;
    known->epoch = epoch;
    return known;
}

static ALWAYS_INLINE void exact(const struct flow *flow, struct rule *key)
{
    key->source[0] = flow->source[0];
    key->source[1] = flow->source[1];
    key->destination[0] = flow->destination[0];
    key->destination[1] = flow->destination[1];
    key->source_port = flow->source_port;
    key->destination_port = flow->destination_port;
    key->protocol = flow->protocol;
    key->shape = 0;
    key->generation = 0;
    key->pad = 0;
}

/* Rule of the deepest cgroup with one; `levels` has a bit for each level with rules. The verifier of Linux 6.1
 * accepts a loop only if its back edge is a single jump, which clang emits for a body without `continue`. */
static NOINLINE struct action *by_cgroup(struct __sk_buff *skb, u32 levels)
{
    LOOP for (u32 i = 1; i <= CGROUP_LEVELS_MAX; i++) {
        u32 level = CGROUP_LEVELS_MAX - i;
        if (levels >> level & 1) {
            u64 id = skb_ancestor_cgroup_id(skb, level);
            struct action *action = map_lookup(&cgroups, &id);
            if (action)
                return action;
        }
    }
    return 0;
}

static ALWAYS_INLINE struct action *find(
    struct __sk_buff *skb, const struct flow *flow, const struct settings *now, struct known *known)
{
    struct tag *tag = 0;
    struct action *action;
    struct bpf_sock *sock = skb->sk;
    if (sock) {
        tag = sk_storage_get(&sockets, sock, 0, 0);
        /* A SYN-ACK belongs to a request socket; the tag is on its listener. */
        if (!tag && flow->tcp_flags & TCP_SYN) {
            struct bpf_sock *listener = get_listener_sock(sock);
            if (listener)
                tag = sk_storage_get(&sockets, listener, 0, 0);
        }
    }
    if (tag && tag->action.method) {
        action = &tag->action;
        goto of_socket;
    }
    if (known->action.method)
        return &known->action;
    action = now->cgroup_levels ? by_cgroup(skb, now->cgroup_levels) : 0;
    if (action)
        goto of_socket;
    if (tag && tag->program[0]) {
        action = map_lookup(&programs, tag->program);
        if (action)
            goto of_socket;
    }
    if (flow->protocol == NEXT_TCP && !(sock && sk_fullsock(sock))) {
        struct rule key;
        exact(flow, &key);
        return map_lookup(&leaving, &key);
    }
    return 0;

of_socket:
    if (flow->protocol == NEXT_TCP && flow->tcp_flags & (TCP_FIN | TCP_RST)) {
        struct rule key;
        exact(flow, &key);
        map_update(&leaving, &key, action, MAP_ANY);
    }
    return action;
}

/* Five bits of the hash are the label's entropy. Uses store_bytes, because for a program that writes skb->data the
 * kernel makes the head of every packet writable before it runs, and drops the packet if that fails. */
static ALWAYS_INLINE int write_label(struct __sk_buff *skb, const struct flow *flow, u32 base, u64 hash)
{
    u32 bits = hash >> 59;
    u32 label = base | (bits & 0x18) << 15 | (bits & 4) << 6 | (bits & 3);
    u8 bytes[3] = {flow->traffic_class_low | (label >> 16 & 0x0F), label >> 8, label};
    return store_bytes(skb, flow->l3 + 1, bytes, sizeof(bytes), 0) == 0;
}

/* True if the packet, or each of its segments, fits the path MTU with 8 more bytes. The kernel's path MTU has room for
 * them (lower_path_mtu), but for the lowest that IPv6 allows. */
static ALWAYS_INLINE int has_room(struct __sk_buff *skb, const struct flow *flow)
{
    u32 length = skb->len - flow->l3;
    if (skb->gso_size)
        length = IPV6_HEADER + flow->tcp_words * 4 + skb->gso_size;
    length += OPTION_BYTES;
    /* Every link of IPv6 carries these (RFC 8200 section 5). */
    if (length <= IPV6_MTU_MIN)
        return 1;
    if (length <= IPV6_MTU_MIN + OPTION_BYTES && map_lookup(&narrow, flow->destination))
        return 0;
    u32 mtu = 0;
    check_mtu(skb, 0, &mtu, 0, 0);
    return length <= mtu;
}

/* Inserts the option. Returns 0, or the reason why the packet has none. */
static ALWAYS_INLINE int write_option(
    struct __sk_buff *skb, const struct flow *flow, const struct action *action)
{
    if (!flow->plain || flow->fragment || skb->protocol != htons(ETHERTYPE_IPV6))
        return UNSUPPORTED;
    if (flow->protocol != NEXT_TCP && flow->protocol != NEXT_UDP)
        return UNSUPPORTED;
    /* BIG TCP of later kernels: payload length 0 without a jumbo header. */
    if (skb->gso_size && (flow->protocol != NEXT_TCP || !flow->payload))
        return UNSUPPORTED;
    if (flow->payload > 0xFFFF - OPTION_BYTES)
        return TOO_BIG;
    if (!has_room(skb, flow))
        return NO_ROOM;
    /* One write from the payload length to the end of the option: a call costs more than the bytes between. */
    struct option_write write = {
        .payload = htons(flow->payload + OPTION_BYTES),
        .next = NEXT_DESTINATION,
        .hops = flow->hops,
        .source = {flow->source[0], flow->source[1]},
        .destination = {flow->destination[0], flow->destination[1]},
        .option = {flow->protocol, 0, OPTION_TYPE, OPTION_DATA_BYTES, action->owner[0], action->owner[1],
                   action->activity, 0},
    };
    if (adjust_room(skb, OPTION_BYTES, ADJ_ROOM_NET, ADJ_ROOM_FIXED_GSO))
        return REFUSED;
    if (store_bytes(skb, flow->l3 + 4, &write, sizeof(write), 0)) {
        adjust_room(skb, -OPTION_BYTES, ADJ_ROOM_NET, ADJ_ROOM_FIXED_GSO);
        return REFUSED;
    }
    return 0;
}

static ALWAYS_INLINE int mark(struct __sk_buff *skb, u16 type, u32 l3)
{
    u64 packets = skb->gso_segs ? skb->gso_segs : 1;
    u64 bytes = skb->wire_len;
    if (type != htons(ETHERTYPE_IPV6)) {
        pass(type == htons(ETHERTYPE_IPV4) ? IS_IPV4 : IS_OTHER, packets, bytes);
        return TC_ACT_UNSPEC;
    }
    struct flow flow = {};
    if (!read_flow(skb, l3, &flow)) {
        pass(MALFORMED, packets, bytes);
        return TC_ACT_UNSPEC;
    }
    /* The driver removes the jumbo header before transmission. */
    if (flow.jumbo && skb->gso_size)
        bytes -= 8 * packets;
    u32 zero = 0;
    struct settings *now = map_lookup(&settings, &zero);
    u64 hashed = hash(&flow);
    struct known *known = now ? know(&flow, hashed, now->epoch) : 0;
    struct action *found = known ? find(skb, &flow, now, known) : 0;
    if (!found) {
        pass(UNMATCHED, packets, bytes);
        return TC_ACT_UNSPEC;
    }
    struct action action = *found;
    u8 done = 0;
    if (!(action.method & (BY_LABEL | BY_DESTINATION))) {
        pass(EXCLUDED, packets, bytes);
        return TC_ACT_UNSPEC;
    }
    if (action.method & BY_LABEL) {
        if (write_label(skb, &flow, action.label, hashed))
            done |= BY_LABEL;
        else
            pass(REFUSED, packets, bytes);
    }
    if (action.method & BY_DESTINATION) {
        int reason = write_option(skb, &flow, &action);
        if (!reason) {
            done |= BY_DESTINATION;
            bytes += OPTION_BYTES * packets;
        } else {
            pass(reason, packets, bytes);
        }
    }
    if (done)
        count_label(known, &action, done, packets, bytes);
    return TC_ACT_UNSPEC;
}

SEC("classifier") int mark_frame(struct __sk_buff *skb)
{
    u32 l3 = 0;
    u16 type = ethertype(skb, &l3);
    return mark(skb, type, l3);
}

SEC("classifier") int mark_packet(struct __sk_buff *skb)
{
    return mark(skb, skb->protocol, 0);
}

/* True if packets that this host sends in the reverse direction get destination options. */
static ALWAYS_INLINE int answers_with_option(
    struct __sk_buff *skb, const struct flow *flow, const struct settings *now)
{
    struct flow back = {};
    back.source[0] = flow->destination[0];
    back.source[1] = flow->destination[1];
    back.destination[0] = flow->source[0];
    back.destination[1] = flow->source[1];
    back.source_port = flow->destination_port;
    back.destination_port = flow->source_port;
    back.protocol = flow->protocol;

    struct bpf_sock_tuple6 tuple;
    __builtin_memcpy(tuple.saddr, flow->source, 16);
    __builtin_memcpy(tuple.daddr, flow->destination, 16);
    tuple.sport = flow->source_port;
    tuple.dport = flow->destination_port;
    struct bpf_sock *sock = sk_lookup_tcp(skb, &tuple, sizeof(tuple), CURRENT_NETNS, 0);
    struct tag *tag = sock ? sk_storage_get(&sockets, sock, 0, 0) : 0;
    struct action *action = tag && tag->action.method ? &tag->action : by_address(&back, now->epoch);
    if (!action && tag && tag->cgroup)
        action = map_lookup(&cgroups, &tag->cgroup);
    if (!action && tag && tag->program[0])
        action = map_lookup(&programs, tag->program);
    int answer = action && action->method & BY_DESTINATION;
    if (sock)
        sk_release(sock);
    return answer;
}

/* Offset of the value of the MSS option, or 0. Not inlined, so that it is verified once on its own. */
__attribute__((noinline)) u32 mss_at(struct __sk_buff *skb, u32 l4, u32 words)
{
    u32 at = l4 + 20;
    u32 end = l4 + words * 4;
    LOOP for (int i = 0; i < TCP_OPTIONS_MAX; i++) {
        u8 option[2];
        if (at + 4 > end || load_bytes(skb, at, option, 2) || option[0] == 0)
            return 0;
        if (option[0] == MSS_OPTION && option[1] == 4)
            return at + 2;
        if (option[0] == 1)
            at += 1;
        else if (option[1] < 2)
            return 0;
        else
            at += option[1];
    }
    return 0;
}

/* Lowers the MSS in a received SYN or SYN-ACK, so that this host's segments have room for the option. */
static ALWAYS_INLINE void clamp(struct __sk_buff *skb, const struct flow *flow, const struct settings *now)
{
    if (!(flow->tcp_flags & TCP_SYN) || !answers_with_option(skb, flow, now))
        return;
    u32 at = mss_at(skb, flow->l4, flow->tcp_words);
    u16 old;
    if (!at || load_bytes(skb, at, &old, 2) || ntohs(old) < MSS_MIN)
        return;
    /* Segments are limited by the peer's MSS and by the MTU: reduce the lower of both. */
    u32 mtu = 0;
    check_mtu(skb, 0, &mtu, 0, 0);
    if (map_lookup(&narrow, flow->source))
        mtu = IPV6_MTU_MIN;
    u32 offered = ntohs(old);
    if (mtu >= IPV6_MTU_MIN && offered > mtu - IPV6_HEADER - TCP_HEADER)
        offered = mtu - IPV6_HEADER - TCP_HEADER;
    u16 mss = htons(offered - OPTION_BYTES);
    if (store_bytes(skb, at, &mss, 2, 0))
        return;
    /* RFC 1624 sums 16-bit words: at an odd offset the bytes of the value are swapped. */
    if ((at - flow->l4) & 1)
        l4_csum_replace(skb, flow->l4 + 16, __builtin_bswap16(old), __builtin_bswap16(mss), 2);
    else
        l4_csum_replace(skb, flow->l4 + 16, old, mss, 2);
}

/* ICMPv6 message that quotes a packet with the option (RFC 4443 section 3.2). */
struct too_big {
    u8 type, code;
    u16 checksum;
    u32 mtu;
    u8 version, class_low, label[2];
    u16 payload;
    u8 next, hops;
    u64 source[2], destination[2];
    u8 option[OPTION_BYTES];
};

/* Lowers the MTU in a "packet too big" message about a packet with the option by the option's size. The kernel compares
 * a path MTU with packets as it made them, without the option: it would ignore a message about a packet that fits, and
 * later packets would exceed the path MTU again. */
static NOINLINE void lower_path_mtu(struct __sk_buff *skb, u32 icmpv6)
{
    struct too_big message;
    if (load_bytes(skb, icmpv6, &message, sizeof(message)) || message.type != ICMPV6_PACKET_TOO_BIG
        || message.version >> 4 != 6 || message.next != NEXT_DESTINATION || message.option[1]
        || message.option[2] != OPTION_TYPE || message.option[3] != OPTION_DATA_BYTES)
        return;
    u32 mtu = ntohl(message.mtu);
    u32 lower = mtu - OPTION_BYTES;
    if (mtu < IPV6_MTU_MIN + OPTION_BYTES) {
        /* The kernel keeps no lower path MTU: packets of this size go without the option. */
        lower = IPV6_MTU_MIN;
        map_update(&narrow, message.destination, &mtu, MAP_ANY);
    }
    if (lower >= mtu)
        return;
    lower = htonl(lower);
    if (!store_bytes(skb, icmpv6 + 4, &lower, sizeof(lower), 0))
        l4_csum_replace(skb, icmpv6 + 2, message.mtu, lower, sizeof(lower));
}

static ALWAYS_INLINE int make_room(struct __sk_buff *skb, u16 type, u32 l3)
{
    u32 zero = 0;
    struct settings *now = map_lookup(&settings, &zero);
    if (!now || !now->destination || type != htons(ETHERTYPE_IPV6))
        return TC_ACT_UNSPEC;
    struct flow flow = {};
    if (!read_flow(skb, l3, &flow) || !flow.l4 || flow.fragment)
        return TC_ACT_UNSPEC;
    if (flow.protocol == NEXT_TCP)
        clamp(skb, &flow, now);
    else if (flow.protocol == NEXT_ICMPV6)
        lower_path_mtu(skb, flow.l4);
    return TC_ACT_UNSPEC;
}

SEC("classifier") int make_room_frame(struct __sk_buff *skb)
{
    u32 l3 = 0;
    u16 type = ethertype(skb, &l3);
    return make_room(skb, type, l3);
}

SEC("classifier") int make_room_packet(struct __sk_buff *skb)
{
    return make_room(skb, skb->protocol, 0);
}

/* Id of the deepest cgroup of this process that has a rule, or 0. */
static NOINLINE u64 own_cgroup(u32 levels)
{
    LOOP for (u32 i = 1; i <= CGROUP_LEVELS_MAX; i++) {
        u32 level = CGROUP_LEVELS_MAX - i;
        if (levels >> level & 1) {
            u64 id = get_current_ancestor_cgroup_id(level);
            if (map_lookup(&cgroups, &id))
                return id;
        }
    }
    return 0;
}

/* Records process name and cgroup of a new socket, if a rule needs them. Only make_room uses the cgroup: at
 * ingress the packet does not have it. */
SEC("cgroup/sock_create") int name_socket(struct bpf_sock *sock)
{
    u32 zero = 0;
    struct settings *now = map_lookup(&settings, &zero);
    if (!now)
        return 1;
    struct tag tag = {};
    if (now->programs
        && (get_current_comm(tag.program, sizeof(tag.program)) || !map_lookup(&programs, tag.program)))
        __builtin_memset(tag.program, 0, sizeof(tag.program));
    if (now->cgroup_levels && now->destination)
        tag.cgroup = own_cgroup(now->cgroup_levels);
    if (tag.program[0] || tag.cgroup)
        sk_storage_get(&sockets, sock, &tag, SK_STORAGE_GET_CREATE);
    return 1;
}
