/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The time of arrival that the kernel notes as a device receives a packet (SO_TIMESTAMP): before the packet waits for its
 * link's delay. Forgotten, the kernel notes it as the packet is given to its socket: after the delay.
 */
#include "../../hooks/bpf/kernel.h"

char LICENSE[] SEC("license") = "GPL";

SEC("classifier") int forget(struct __sk_buff *skb)
{
    skb->tstamp = 0;
    return TC_ACT_UNSPEC;
}
