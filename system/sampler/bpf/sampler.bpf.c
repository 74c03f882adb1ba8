/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Samples one of N packets at random and passes its first bytes to user space.
 *
 * `sample_ingress` and `sample_egress` run at tc ingress and egress of a device. Every packet is sampled independently
 * with probability 1/N. Instead of a random number per packet, the program draws the gap to the next sample, which is
 * geometrically distributed with mean N, so most packets only decrement a counter. The distribution is memoryless, so
 * each CPU may start a gap at any time without bias.
 *
 * A super-packet (TSO, GRO, BIG TCP) counts as its segments, of which several may be sampled. One record reports all
 * sampled segments of a super-packet.
 *
 * Packets are not modified. The only verdict is TC_ACT_UNSPEC.
 */
#include "../../hooks/bpf/kernel.h"

char LICENSE[] SEC("license") = "GPL";

#define HEADER_BYTES 160
#define DEVICES_MAX 1024

/* Smallest headers (Ethernet, IPv4, TCP), to estimate the segments of a super-packet whose count the kernel does not
 * have (from a virtual machine). */
#define HEADERS_LEAST 54

/* About 20 samples, or four datagrams. */
#define WAKE_BYTES 4096

/* Most sampled segments of a super-packet: with N = 2, the lowest random rate, those of about 1000 segments. */
#define TAKEN_MAX 512

#define INGRESS 0
#define EGRESS 1

/* Sampling state of a device and direction on one CPU. User space sets the scale and reads the counters. */
struct source {
    u64 packets; /* seen */
    u64 samples; /* handed over */
    u64 drops;   /* not handed over: the ring was full, or the packet could not be read */
    u64 scale;   /* 2^32 / -log2(1 - 1/N); 0: every packet */
    u64 next;    /* which packet from here is taken next, the first being 1; 0 where that is not drawn yet */
};

struct key {
    u32 ifindex;
    u32 direction;
};

struct sample {
    u32 ifindex;
    u32 direction;
    u32 length;   /* of the packet as it is here, with its link header */
    u32 segments; /* that it is on the wire; 1 or more */
    u32 segment_bytes; /* payload of each but the last; 0 for a packet that is one */
    u32 taken;    /* segments that were sampled */
    u32 last;     /* whether the last, which may be shorter, is one of them */
    u32 header_bytes;
    u16 vlan_present;
    u16 vlan_tci;
    u16 vlan_protocol; /* network order */
    u16 protocol;      /* network order */
    u64 packets; /* that this CPU has seen here, this one included */
    u32 cpu;
    u32 pad;
    u8 header[HEADER_BYTES];
};

struct {
    __uint(type, MAP_PERCPU_HASH);
    __uint(max_entries, DEVICES_MAX);
    __type(key, struct key);
    __type(value, struct source);
} sources SEC(".maps");

/* User space sets the size. */
struct {
    __uint(type, MAP_RINGBUF);
    __uint(max_entries, 1 << 20);
} samples SEC(".maps");

/* 2^32 log2(1 + i/64) */
static const u64 LOGARITHMS[65] = {
    0x000000000, 0x005B9E5A1, 0x00B5D69BB, 0x010EB38A0, 0x01663F6FB, 0x01BC84241,
    0x02118B11A, 0x02655D3C5, 0x02B803474, 0x0309857A0, 0x0359EBC5B, 0x03A93DC98,
    0x03F782D72, 0x0444C1F6B, 0x049101EAC, 0x04DC4933B, 0x05269E12F, 0x0570068E8,
    0x05B888736, 0x06002958C, 0x0646EEA24, 0x068CDD82A, 0x06D1FAFDD, 0x07164BEB5,
    0x0759D4F81, 0x079C9AA88, 0x07DEA15A3, 0x081FED45D, 0x086082807, 0x08A064FD5,
    0x08DF988F5, 0x091E20EA1, 0x095C01A3A, 0x09993E356, 0x09D5D9FD5, 0x0A11D83F5,
    0x0A4D3C25E, 0x0A8808C38, 0x0AC241135, 0x0AFBE7FA1, 0x0B3500472, 0x0B6D8CB54,
    0x0BA58FEB2, 0x0BDD0C7CA, 0x0C1404EAE, 0x0C4A7BA58, 0x0C80730B0, 0x0CB5ED695,
    0x0CEAECFEB, 0x0D1F73F9C, 0x0D53847AC, 0x0D8720936, 0x0DBA4A47B, 0x0DED038E6,
    0x0E1F4E517, 0x0E512C6E5, 0x0E829FB69, 0x0EB3A9F02, 0x0EE44CD5A, 0x0F148A170,
    0x0F446359B, 0x0F73DA38E, 0x0FA2F045E, 0x0FD1A708C, 0x100000000,
};

/* -log2 of a uniform random number in (0, 1], times 2^32; at most 32 for a 32-bit number. */
static ALWAYS_INLINE u64 exponential(u32 random)
{
    u64 x = (u64)random + 1; /* 1 to 2^32 */
    u32 bits = 0;
    /* Position of the highest set bit, by binary search. */
#pragma unroll
    for (u32 step = 32; step; step >>= 1)
        if (x >> bits >> step)
            bits += step;
    /* The 32 bits below the highest one. */
    u64 fraction = (x << (32 - bits)) & 0xFFFFFFFFULL;
    u32 index = fraction >> 26 & 63;
    u64 low = LOGARITHMS[index];
    u64 high = LOGARITHMS[index + 1];
    u64 logarithm = low + ((high - low) * (fraction & 0x3FFFFFF) >> 26);
    return (32ULL << 32) - ((u64)bits << 32) - logarithm;
}

/* Draws the number of packets to skip before the next sample: geometrically distributed from 0, with mean N - 1. Not
 * static, so that the verifier checks it once and not at every call. */
NOINLINE u64 draw(u64 scale)
{
    if (!scale)
        return 0;
    /* Upper half of the product of factors up to 2^37 and 2^56, computed in parts. */
    u64 drawn = exponential(get_prandom_u32());
    u64 low = (drawn & 0xFFFFFFFFULL) * (scale & 0xFFFFFFFFULL) >> 32;
    u64 middle = (drawn >> 32) * (scale & 0xFFFFFFFFULL) + (drawn & 0xFFFFFFFFULL) * (scale >> 32) + low;
    return (middle >> 32) + (drawn >> 32) * (scale >> 32);
}

/* User space polls ten times a second. It is woken earlier when samples of a few datagrams are pending, so that
 * datagrams are not sent in bursts, which would overflow small receive buffers of collectors. */
static ALWAYS_INLINE u64 wakeup(void)
{
    u64 waiting = ringbuf_query(&samples, RB_AVAIL_DATA);
    u64 much = ringbuf_query(&samples, RB_RING_SIZE) / 4;
    if (much > WAKE_BYTES)
        much = WAKE_BYTES;
    return waiting >= much ? RB_FORCE_WAKEUP : RB_NO_WAKEUP;
}

static ALWAYS_INLINE int hand_over(
    struct __sk_buff *skb, const struct source *source, u32 direction, u32 segments, u32 taken, u32 last)
{
    struct sample *sample = ringbuf_reserve(&samples, sizeof(*sample), 0);
    if (!sample)
        return 0;
    u32 bytes = skb->len;
    /* Keeps clang from moving the comparison to a place where the verifier does not track it. */
    asm volatile("" : "+r"(bytes));
    if (bytes > HEADER_BYTES)
        bytes = HEADER_BYTES;
    if (bytes == 0 || load_bytes(skb, 0, sample->header, bytes)) {
        ringbuf_discard(sample, RB_NO_WAKEUP);
        return 0;
    }
    sample->ifindex = skb->ifindex;
    sample->direction = direction;
    sample->length = skb->len;
    sample->segments = segments;
    sample->segment_bytes = skb->gso_size;
    sample->taken = taken;
    sample->last = last;
    sample->header_bytes = bytes;
    sample->vlan_present = skb->vlan_present;
    sample->vlan_tci = skb->vlan_tci;
    sample->vlan_protocol = skb->vlan_proto;
    sample->protocol = skb->protocol;
    sample->packets = source->packets;
    sample->cpu = get_smp_processor_id();
    sample->pad = 0;
    ringbuf_submit(sample, wakeup());
    return 1;
}

/* Selects the sampled segments of a packet and draws the next gap. */
static NOINLINE void take(struct __sk_buff *skb, struct source *source, u32 direction, u32 segments)
{
    u32 taken = 0, last = 0;
    u64 next = source->next;
    u64 scale = source->scale;
    if (!scale) {
        taken = segments;
        last = 1;
        next = segments + 1;
    } else {
        if (!next)
            next = draw(scale) + 1;
        LOOP for (u32 i = 0; i < TAKEN_MAX; i++) {
            if (next > segments)
                break;
            taken++;
            last = next == segments;
            next += draw(scale) + 1;
        }
    }
    /* More than TAKEN_MAX: the further samples of this packet are lost, and a new gap starts. */
    if (next > segments)
        source->next = next - segments;
    else {
        source->next = draw(scale) + 1;
        source->drops++;
    }
    if (!taken)
        return;
    if (hand_over(skb, source, direction, segments, taken, last))
        source->samples += taken;
    else
        source->drops += taken;
}

static ALWAYS_INLINE int look(struct __sk_buff *skb, u32 direction)
{
    struct key key = {skb->ifindex, direction};
    struct source *source = map_lookup(&sources, &key);
    if (!source)
        return TC_ACT_UNSPEC;
    u32 segments = 1;
    if (skb->gso_size) {
        segments = skb->gso_segs;
        if (!segments)
            segments = (skb->len - HEADERS_LEAST + skb->gso_size - 1) / skb->gso_size;
    }
    source->packets += segments;
    if (source->next > segments)
        source->next -= segments;
    else
        take(skb, source, direction, segments);
    return TC_ACT_UNSPEC;
}

SEC("classifier/ingress") int sample_ingress(struct __sk_buff *skb)
{
    return look(skb, INGRESS);
}

SEC("classifier/egress") int sample_egress(struct __sk_buff *skb)
{
    return look(skb, EGRESS);
}
