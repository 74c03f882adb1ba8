/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* IEEE 802.1Q tag of a link: `put_on` pushes it at egress of both devices, `take_off` pops it at ingress.
 *
 * The network stacks at the ends see untagged packets; captures and samplers on the devices see the tag. Other tags
 * are not changed, so a VLAN device on top of a device of the link needs another VLAN id.
 */
#include "../../hooks/bpf/kernel.h"

char LICENSE[] SEC("license") = "GPL";

#define TPID 0x8100
#define VLAN_MASK 0xFFF

/* VLAN id, set by user space. */
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
