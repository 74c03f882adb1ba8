//! Structures, constants and function types of libibverbs (verbs.h of rdma-core) on 64-bit Linux.
//!
//! Only the fields that are used have names of their own; the rest is padding of the right size, which the test at the
//! end compares with the offsets of the C compiler.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// `union ibv_gid`: 16 bytes in network order, aligned as its 64-bit member.
#[repr(C, align(8))]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct IbvGid(pub(super) [u8; 16]);

#[repr(C)]
pub(super) struct IbvContextOps {
    before_poll: [*const c_void; 11],
    pub(super) poll_cq: Option<unsafe extern "C" fn(*mut IbvCq, c_int, *mut IbvWc) -> c_int>,
    pub(super) req_notify_cq: Option<unsafe extern "C" fn(*mut IbvCq, c_int) -> c_int>,
    before_post: [*const c_void; 12],
    pub(super) post_send: Option<PostSend>,
    pub(super) post_recv: Option<PostReceive>,
    after_post: [*const c_void; 5],
}

pub(super) type PostSend =
    unsafe extern "C" fn(*mut IbvQp, *mut IbvSendWr, *mut *mut IbvSendWr) -> c_int;
pub(super) type PostReceive =
    unsafe extern "C" fn(*mut IbvQp, *mut IbvRecvWr, *mut *mut IbvRecvWr) -> c_int;

/// Beginning of `struct ibv_context`, which the library allocates.
#[repr(C)]
pub(super) struct IbvContext {
    device: *mut c_void,
    pub(super) ops: IbvContextOps,
    pub(super) cmd_fd: c_int,
    pub(super) async_fd: c_int,
    pub(super) num_comp_vectors: c_int,
}

/// Beginning of `struct ibv_comp_channel`.
#[repr(C)]
pub(super) struct IbvCompChannel {
    context: *mut IbvContext,
    pub(super) fd: c_int,
}

/// Beginning of `struct ibv_cq`.
#[repr(C)]
pub(super) struct IbvCq {
    pub(super) context: *mut IbvContext,
}

/// Beginning of `struct ibv_qp`.
#[repr(C)]
pub(super) struct IbvQp {
    pub(super) context: *mut IbvContext,
    other: [*mut c_void; 5],
    handle: u32,
    pub(super) qp_num: u32,
}

/// Beginning of `struct ibv_mr`.
#[repr(C)]
pub(super) struct IbvMr {
    context: *mut IbvContext,
    pd: *mut IbvPd,
    addr: *mut c_void,
    length: usize,
    handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

/// `struct ibv_pd`, passed by pointer alone.
#[repr(C)]
pub(super) struct IbvPd {
    private: [u8; 0],
}

/// `struct ibv_device`, passed by pointer alone.
#[repr(C)]
pub(super) struct IbvDevice {
    private: [u8; 0],
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct IbvSge {
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

#[repr(C)]
#[derive(Debug)]
pub(super) struct IbvSendWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut Self,
    pub(super) sg_list: *mut IbvSge,
    pub(super) num_sge: c_int,
    pub(super) opcode: c_uint,
    pub(super) send_flags: c_uint,
    /// Immediate value in network order.
    pub(super) imm_data: u32,
    pub(super) remote_addr: u64,
    pub(super) rkey: u32,
    pub(super) other: [u32; 19],
}

#[repr(C)]
#[derive(Debug)]
pub(super) struct IbvRecvWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut Self,
    pub(super) sg_list: *mut IbvSge,
    pub(super) num_sge: c_int,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct IbvWc {
    pub(super) wr_id: u64,
    pub(super) status: c_uint,
    pub(super) opcode: c_uint,
    pub(super) vendor_err: u32,
    pub(super) byte_len: u32,
    /// Immediate value in network order.
    pub(super) imm_data: u32,
    pub(super) qp_num: u32,
    src_qp: u32,
    pub(super) wc_flags: c_uint,
    pkey_index: u16,
    slid: u16,
    sl: u8,
    dlid_path_bits: u8,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct IbvQpCap {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

#[repr(C)]
#[derive(Debug)]
pub(super) struct IbvQpInitAttr {
    pub(super) qp_context: *mut c_void,
    pub(super) send_cq: *mut IbvCq,
    pub(super) recv_cq: *mut IbvCq,
    pub(super) srq: *mut c_void,
    pub(super) cap: IbvQpCap,
    pub(super) qp_type: c_uint,
    pub(super) sq_sig_all: c_int,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct IbvGlobalRoute {
    pub(super) dgid: IbvGid,
    pub(super) flow_label: u32,
    pub(super) sgid_index: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct IbvAhAttr {
    pub(super) grh: IbvGlobalRoute,
    pub(super) dlid: u16,
    pub(super) sl: u8,
    pub(super) src_path_bits: u8,
    pub(super) static_rate: u8,
    pub(super) is_global: u8,
    pub(super) port_num: u8,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct IbvQpAttr {
    pub(super) qp_state: c_uint,
    pub(super) cur_qp_state: c_uint,
    pub(super) path_mtu: c_uint,
    pub(super) path_mig_state: c_uint,
    pub(super) qkey: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) dest_qp_num: u32,
    pub(super) qp_access_flags: c_uint,
    pub(super) cap: IbvQpCap,
    pub(super) ah_attr: IbvAhAttr,
    pub(super) alt_ah_attr: IbvAhAttr,
    pub(super) pkey_index: u16,
    pub(super) alt_pkey_index: u16,
    pub(super) en_sqd_async_notify: u8,
    pub(super) sq_draining: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) port_num: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) alt_port_num: u8,
    pub(super) alt_timeout: u8,
    pub(super) rate_limit: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct IbvGidEntry {
    pub(super) gid: IbvGid,
    pub(super) gid_index: u32,
    pub(super) port_num: u32,
    pub(super) gid_type: u32,
    pub(super) ndev_ifindex: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct IbvPortAttr {
    pub(super) state: c_uint,
    max_mtu: c_uint,
    pub(super) active_mtu: c_uint,
    pub(super) gid_tbl_len: c_int,
    port_cap_flags: u32,
    max_msg_sz: u32,
    counters: [u32; 2],
    pkey_tbl_len: u16,
    lid: u16,
    sm_lid: u16,
    small: [u8; 8],
    pub(super) link_layer: u8,
    flags: u8,
    port_cap_flags2: u16,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct IbvDeviceAttr {
    before_limits: [u64; 13],
    hw_ver: u32,
    pub(super) max_qp: c_int,
    pub(super) max_qp_wr: c_int,
    device_cap_flags: c_uint,
    max_sge: c_int,
    max_sge_rd: c_int,
    max_cq: c_int,
    pub(super) max_cqe: c_int,
    max_mr: c_int,
    max_pd: c_int,
    pub(super) max_qp_rd_atom: c_int,
    max_ee_rd_atom: c_int,
    max_res_rd_atom: c_int,
    pub(super) max_qp_init_rd_atom: c_int,
    rest: [u32; 18],
}

impl IbvDeviceAttr {
    /// Attributes for the library to fill in.
    pub(super) const fn zeroed() -> Self {
        Self {
            before_limits: [0; 13],
            hw_ver: 0,
            max_qp: 0,
            max_qp_wr: 0,
            device_cap_flags: 0,
            max_sge: 0,
            max_sge_rd: 0,
            max_cq: 0,
            max_cqe: 0,
            max_mr: 0,
            max_pd: 0,
            max_qp_rd_atom: 0,
            max_ee_rd_atom: 0,
            max_res_rd_atom: 0,
            max_qp_init_rd_atom: 0,
            rest: [0; 18],
        }
    }
}

pub(super) const IBV_QPT_RC: c_uint = 2;
pub(super) const IBV_QPS_INIT: c_uint = 1;
pub(super) const IBV_QPS_RTR: c_uint = 2;
pub(super) const IBV_QPS_RTS: c_uint = 3;
pub(super) const IBV_QPS_ERR: c_uint = 6;
pub(super) const IBV_QP_STATE: c_int = 1;
pub(super) const IBV_QP_ACCESS_FLAGS: c_int = 1 << 3;
pub(super) const IBV_QP_PKEY_INDEX: c_int = 1 << 4;
pub(super) const IBV_QP_PORT: c_int = 1 << 5;
pub(super) const IBV_QP_AV: c_int = 1 << 7;
pub(super) const IBV_QP_PATH_MTU: c_int = 1 << 8;
pub(super) const IBV_QP_TIMEOUT: c_int = 1 << 9;
pub(super) const IBV_QP_RETRY_CNT: c_int = 1 << 10;
pub(super) const IBV_QP_RNR_RETRY: c_int = 1 << 11;
pub(super) const IBV_QP_RQ_PSN: c_int = 1 << 12;
pub(super) const IBV_QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
pub(super) const IBV_QP_MIN_RNR_TIMER: c_int = 1 << 15;
pub(super) const IBV_QP_SQ_PSN: c_int = 1 << 16;
pub(super) const IBV_QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
pub(super) const IBV_QP_DEST_QPN: c_int = 1 << 20;

pub(super) const IBV_WR_RDMA_WRITE: c_uint = 0;
pub(super) const IBV_WR_RDMA_WRITE_WITH_IMM: c_uint = 1;
pub(super) const IBV_WR_SEND_WITH_IMM: c_uint = 3;
pub(super) const IBV_WR_RDMA_READ: c_uint = 4;
pub(super) const IBV_SEND_SIGNALED: c_uint = 1 << 1;

pub(super) const IBV_WC_SUCCESS: c_uint = 0;
pub(super) const IBV_WC_WR_FLUSH_ERR: c_uint = 5;
pub(super) const IBV_WC_RETRY_EXC_ERR: c_uint = 12;
pub(super) const IBV_WC_RNR_RETRY_EXC_ERR: c_uint = 13;
pub(super) const IBV_WC_RECV: c_uint = 128;
pub(super) const IBV_WC_RECV_RDMA_WITH_IMM: c_uint = 129;

pub(super) const IBV_ACCESS_LOCAL_WRITE: c_int = 1;
pub(super) const IBV_ACCESS_REMOTE_WRITE: c_int = 1 << 1;
pub(super) const IBV_ACCESS_REMOTE_READ: c_int = 1 << 2;

pub(super) const IBV_PORT_ACTIVE: c_uint = 4;
pub(super) const IBV_GID_TYPE_ROCE_V1: u32 = 1;
pub(super) const IBV_GID_TYPE_ROCE_V2: u32 = 2;

/// Functions of the library that are symbols. Polling and posting go through [`IbvContextOps`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Functions {
    pub(super) get_device_list: unsafe extern "C" fn(*mut c_int) -> *mut *mut IbvDevice,
    pub(super) free_device_list: unsafe extern "C" fn(*mut *mut IbvDevice),
    pub(super) get_device_name: unsafe extern "C" fn(*mut IbvDevice) -> *const c_char,
    pub(super) open_device: unsafe extern "C" fn(*mut IbvDevice) -> *mut IbvContext,
    pub(super) close_device: unsafe extern "C" fn(*mut IbvContext) -> c_int,
    pub(super) query_device: unsafe extern "C" fn(*mut IbvContext, *mut IbvDeviceAttr) -> c_int,
    pub(super) query_port: unsafe extern "C" fn(*mut IbvContext, u8, *mut IbvPortAttr) -> c_int,
    pub(super) query_gid_table:
        unsafe extern "C" fn(*mut IbvContext, *mut IbvGidEntry, usize, u32, usize) -> isize,
    pub(super) alloc_pd: unsafe extern "C" fn(*mut IbvContext) -> *mut IbvPd,
    pub(super) dealloc_pd: unsafe extern "C" fn(*mut IbvPd) -> c_int,
    pub(super) reg_mr: unsafe extern "C" fn(*mut IbvPd, *mut c_void, usize, c_int) -> *mut IbvMr,
    pub(super) dereg_mr: unsafe extern "C" fn(*mut IbvMr) -> c_int,
    pub(super) create_comp_channel: unsafe extern "C" fn(*mut IbvContext) -> *mut IbvCompChannel,
    pub(super) destroy_comp_channel: unsafe extern "C" fn(*mut IbvCompChannel) -> c_int,
    pub(super) create_cq: unsafe extern "C" fn(
        *mut IbvContext,
        c_int,
        *mut c_void,
        *mut IbvCompChannel,
        c_int,
    ) -> *mut IbvCq,
    pub(super) destroy_cq: unsafe extern "C" fn(*mut IbvCq) -> c_int,
    pub(super) get_cq_event:
        unsafe extern "C" fn(*mut IbvCompChannel, *mut *mut IbvCq, *mut *mut c_void) -> c_int,
    pub(super) ack_cq_events: unsafe extern "C" fn(*mut IbvCq, c_uint),
    pub(super) create_qp: unsafe extern "C" fn(*mut IbvPd, *mut IbvQpInitAttr) -> *mut IbvQp,
    pub(super) modify_qp: unsafe extern "C" fn(*mut IbvQp, *mut IbvQpAttr, c_int) -> c_int,
    pub(super) destroy_qp: unsafe extern "C" fn(*mut IbvQp) -> c_int,
    pub(super) wc_status_str: unsafe extern "C" fn(c_uint) -> *const c_char,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    #[test]
    fn contexts_have_offsets_of_c() {
        assert_eq!(offset_of!(IbvContext, ops), 8);
        assert_eq!(size_of::<IbvContextOps>(), 256);
        assert_eq!(offset_of!(IbvContextOps, poll_cq), 88);
        assert_eq!(offset_of!(IbvContextOps, req_notify_cq), 96);
        assert_eq!(offset_of!(IbvContextOps, post_send), 200);
        assert_eq!(offset_of!(IbvContextOps, post_recv), 208);
        assert_eq!(offset_of!(IbvContext, cmd_fd), 264);
        assert_eq!(offset_of!(IbvContext, async_fd), 268);
        assert_eq!(offset_of!(IbvContext, num_comp_vectors), 272);
        assert_eq!(offset_of!(IbvQp, context), 0);
        assert_eq!(offset_of!(IbvQp, qp_num), 52);
        assert_eq!(offset_of!(IbvCq, context), 0);
        assert_eq!(offset_of!(IbvMr, lkey), 36);
        assert_eq!(offset_of!(IbvMr, rkey), 40);
    }

    #[test]
    fn work_requests_have_offsets_of_c() {
        assert_eq!(size_of::<IbvSge>(), 16);
        assert_eq!(size_of::<IbvSendWr>(), 128);
        assert_eq!(offset_of!(IbvSendWr, next), 8);
        assert_eq!(offset_of!(IbvSendWr, sg_list), 16);
        assert_eq!(offset_of!(IbvSendWr, num_sge), 24);
        assert_eq!(offset_of!(IbvSendWr, opcode), 28);
        assert_eq!(offset_of!(IbvSendWr, send_flags), 32);
        assert_eq!(offset_of!(IbvSendWr, imm_data), 36);
        assert_eq!(offset_of!(IbvSendWr, remote_addr), 40);
        assert_eq!(offset_of!(IbvSendWr, rkey), 48);
        assert_eq!(size_of::<IbvRecvWr>(), 32);
        assert_eq!(size_of::<IbvWc>(), 48);
        assert_eq!(offset_of!(IbvWc, status), 8);
        assert_eq!(offset_of!(IbvWc, opcode), 12);
        assert_eq!(offset_of!(IbvWc, vendor_err), 16);
        assert_eq!(offset_of!(IbvWc, byte_len), 20);
        assert_eq!(offset_of!(IbvWc, imm_data), 24);
        assert_eq!(offset_of!(IbvWc, qp_num), 28);
    }

    #[test]
    fn attributes_have_offsets_of_c() {
        assert_eq!(size_of::<IbvQpInitAttr>(), 64);
        assert_eq!(offset_of!(IbvQpInitAttr, cap), 32);
        assert_eq!(offset_of!(IbvQpInitAttr, qp_type), 52);
        assert_eq!(offset_of!(IbvQpInitAttr, sq_sig_all), 56);
        assert_eq!(size_of::<IbvQpAttr>(), 144);
        assert_eq!(offset_of!(IbvQpAttr, path_mtu), 8);
        assert_eq!(offset_of!(IbvQpAttr, dest_qp_num), 28);
        assert_eq!(offset_of!(IbvQpAttr, qp_access_flags), 32);
        assert_eq!(offset_of!(IbvQpAttr, cap), 36);
        assert_eq!(offset_of!(IbvQpAttr, ah_attr), 56);
        assert_eq!(offset_of!(IbvQpAttr, pkey_index), 120);
        assert_eq!(offset_of!(IbvQpAttr, max_rd_atomic), 126);
        assert_eq!(offset_of!(IbvQpAttr, port_num), 129);
        assert_eq!(offset_of!(IbvQpAttr, timeout), 130);
        assert_eq!(offset_of!(IbvQpAttr, retry_cnt), 131);
        assert_eq!(offset_of!(IbvQpAttr, rnr_retry), 132);
        assert_eq!(offset_of!(IbvQpAttr, rate_limit), 136);
        assert_eq!(size_of::<IbvAhAttr>(), 32);
        assert_eq!(offset_of!(IbvGlobalRoute, flow_label), 16);
        assert_eq!(offset_of!(IbvGlobalRoute, sgid_index), 20);
        assert_eq!(offset_of!(IbvGlobalRoute, hop_limit), 21);
        assert_eq!(offset_of!(IbvGlobalRoute, traffic_class), 22);
        assert_eq!(offset_of!(IbvAhAttr, is_global), 29);
        assert_eq!(offset_of!(IbvAhAttr, port_num), 30);
        assert_eq!(size_of::<IbvGidEntry>(), 32);
        assert_eq!(size_of::<IbvPortAttr>(), 52);
        assert_eq!(offset_of!(IbvPortAttr, active_mtu), 8);
        assert_eq!(offset_of!(IbvPortAttr, gid_tbl_len), 12);
        assert_eq!(offset_of!(IbvPortAttr, link_layer), 46);
        assert_eq!(size_of::<IbvDeviceAttr>(), 232);
        assert_eq!(offset_of!(IbvDeviceAttr, max_qp_wr), 112);
        assert_eq!(offset_of!(IbvDeviceAttr, max_cqe), 132);
        assert_eq!(offset_of!(IbvDeviceAttr, max_qp_rd_atom), 144);
        assert_eq!(offset_of!(IbvDeviceAttr, max_qp_init_rd_atom), 156);
    }
}
