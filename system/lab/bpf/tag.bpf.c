/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The IEEE 802.1Q tag of a link: `put_on` at the egress of both its devices, `take_off` at their ingress.
 *
 * The network stacks at the ends see packets as they were; what watches the devices (captures, samplers) sees the tag.
 * Other tags are left alone, so a VLAN device made on a device of the link must have another number.
 */
#include "../../hooks/bpf/kernel.h"

char LICENSE[] SEC("license") = "GPL";

#define TPID 0x8100
#define VLAN_MASK 0xFFF

/* User space sets it. */
const volatile u16 vlan = 1;

SEC("classifier") int put_on(struct __sk_buff *skb)
{
    if (!skb->vlan_present)
        vlan_push(skb, htons(TPID), vlan);
    return TC_ACT_UNSPEC;
}

SEC("classifier") int take_off(struct __sk_buff *skb)
{
    if (skb->vlan_present && skb->vlan_proto == htons(TPID) && (skb->vlan_tci & VLAN_MASK) == vlan)
        vlan_pop(skb);
    return TC_ACT_UNSPEC;
}
