/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Clears the receive timestamp of packets (SO_TIMESTAMP), which the kernel sets when the device receives a packet: before
 * the link's emulated delay. The kernel then sets it again when the socket gets the packet: after the delay.
 */
#include "../../hooks/bpf/kernel.h"

char LICENSE[] SEC("license") = "GPL";

SEC("classifier") int forget(struct __sk_buff *skb)
{
    skb->tstamp = 0;
    return TC_ACT_UNSPEC;
}
