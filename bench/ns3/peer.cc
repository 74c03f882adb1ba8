// Reference cases in ns-3 3.37 for penstock-fabric: `peer udp PACKETS` and `peer tcp SEGMENTS QUEUE_PACKETS`.
// Prints one JSON object. Built by core/fabric/tests/ns3.rs and cargo xtask bench fabric.

#include <sys/resource.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "ns3/applications-module.h"
#include "ns3/core-module.h"
#include "ns3/internet-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"
#include "ns3/traffic-control-module.h"

using namespace ns3;

static uint64_t g_hops = 0;
static uint64_t g_received = 0;
static Time g_first;
static Time g_last;

static void Hop(Ptr<const Packet>) { g_hops++; }

static double ProcessorSeconds() {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_utime.tv_sec + usage.ru_utime.tv_usec * 1e-6 + usage.ru_stime.tv_sec +
         usage.ru_stime.tv_usec * 1e-6;
}

// Three nodes in a row, without a traffic-control layer between IP and the devices.
struct Row {
  NodeContainer nodes;
  Ipv4Address far;

  Row(const char* rate, const char* slower, const char* delay, const char* queue) {
    nodes.Create(3);
    PointToPointHelper link;
    link.SetChannelAttribute("Delay", StringValue(delay));
    link.SetDeviceAttribute("DataRate", StringValue(rate));
    link.SetQueue("ns3::DropTailQueue<Packet>", "MaxSize", StringValue("1000000p"));
    NetDeviceContainer near_devices = link.Install(nodes.Get(0), nodes.Get(1));
    link.SetDeviceAttribute("DataRate", StringValue(slower));
    link.SetQueue("ns3::DropTailQueue<Packet>", "MaxSize", StringValue(queue));
    NetDeviceContainer far_devices = link.Install(nodes.Get(1), nodes.Get(2));
    InternetStackHelper().Install(nodes);
    Ipv4AddressHelper address;
    address.SetBase("10.0.0.0", "255.255.255.0");
    address.Assign(near_devices);
    address.SetBase("10.0.1.0", "255.255.255.0");
    far = address.Assign(far_devices).GetAddress(1);
    TrafficControlHelper control;
    control.Uninstall(near_devices);
    control.Uninstall(far_devices);
    Ipv4GlobalRoutingHelper::PopulateRoutingTables();
    for (auto devices : {near_devices, far_devices}) {
      for (uint32_t at = 0; at < devices.GetN(); at++) {
        devices.Get(at)->TraceConnectWithoutContext("MacRx", MakeCallback(&Hop));
      }
    }
  }
};

static void Receive(Ptr<Socket> socket) {
  while (Ptr<Packet> packet = socket->Recv()) {
    g_received++;
    g_last = Simulator::Now();
  }
}

// Sends packets back to back at the rate of the link.
static void Send(Ptr<Socket> socket, uint32_t bytes, uint64_t left, Time gap) {
  socket->Send(Create<Packet>(bytes));
  if (left > 1) {
    Simulator::Schedule(gap, &Send, socket, bytes, left - 1, gap);
  }
}

// Frames of 1000 bytes at 100 Gb/s over two links of 1 us: 80 ns each.
static void Udp(uint64_t packets) {
  Row row("100Gbps", "100Gbps", "1us", "1000000p");
  Ptr<Socket> to = Socket::CreateSocket(row.nodes.Get(2), UdpSocketFactory::GetTypeId());
  to->Bind(InetSocketAddress(Ipv4Address::GetAny(), 9));
  to->SetRecvCallback(MakeCallback(&Receive));
  Ptr<Socket> from = Socket::CreateSocket(row.nodes.Get(0), UdpSocketFactory::GetTypeId());
  from->Connect(InetSocketAddress(row.far, 9));
  Simulator::Schedule(Time(0), &Send, from, 1000u - 2 - 20 - 8, packets, PicoSeconds(80000));
  Simulator::Run();
}

static void Taken(Ptr<const Packet> packet, const Address&) {
  g_received += packet->GetSize();
  g_last = Simulator::Now();
}

static void Sent(Ptr<const Packet> packet, const TcpHeader&, Ptr<const TcpSocketBase>) {
  if (packet->GetSize() > 0 && g_first.IsZero()) {
    g_first = Simulator::Now();
  }
}

static void WatchSender(Ptr<Node> node) {
  Config::ConnectWithoutContext(
      "/NodeList/" + std::to_string(node->GetId()) + "/$ns3::TcpL4Protocol/SocketList/0/Tx",
      MakeCallback(&Sent));
}

// CUBIC from 1 Gb/s into 100 Mb/s over two links of 5 ms, without HyStart and delayed acknowledgements.
static void Tcp(uint64_t segments, const std::string& queue) {
  // 1538 bytes on the link: 1484 of payload with 54 of headers here, 1448 with 90 in penstock-fabric.
  const uint32_t segment = 1484;
  Config::SetDefault("ns3::TcpL4Protocol::SocketType", TypeIdValue(TcpCubic::GetTypeId()));
  Config::SetDefault("ns3::TcpCubic::HyStart", BooleanValue(false));
  Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(segment));
  Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(10));
  Config::SetDefault("ns3::TcpSocket::DelAckCount", UintegerValue(1));
  Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(1 << 30));
  Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(1 << 30));
  Config::SetDefault("ns3::TcpSocketBase::MinRto", TimeValue(MilliSeconds(200)));
  // One packet per segment: an MTU of 1500 would split each into two.
  Config::SetDefault("ns3::PointToPointNetDevice::Mtu", UintegerValue(1536));
  Row row("1Gbps", "100Mbps", "5ms", (queue + "p").c_str());
  PacketSinkHelper sink("ns3::TcpSocketFactory", InetSocketAddress(Ipv4Address::GetAny(), 9));
  ApplicationContainer sinks = sink.Install(row.nodes.Get(2));
  sinks.Get(0)->TraceConnectWithoutContext("Rx", MakeCallback(&Taken));
  BulkSendHelper bulk("ns3::TcpSocketFactory", InetSocketAddress(row.far, 9));
  bulk.SetAttribute("MaxBytes", UintegerValue(segments * segment));
  bulk.SetAttribute("SendSize", UintegerValue(segment));
  bulk.Install(row.nodes.Get(0));
  Simulator::Schedule(NanoSeconds(1), &WatchSender, row.nodes.Get(0));
  Simulator::Stop(Seconds(600));
  Simulator::Run();
}

int main(int count, char** words) {
  Time::SetResolution(Time::PS);
  if (count == 3 && strcmp(words[1], "udp") == 0) {
    Udp(strtoull(words[2], nullptr, 10));
  } else if (count == 4 && strcmp(words[1], "tcp") == 0) {
    Tcp(strtoull(words[2], nullptr, 10), words[3]);
  } else {
    fprintf(stderr, "usage: peer udp PACKETS | peer tcp SEGMENTS QUEUE_PACKETS\n");
    return 2;
  }
  printf("{\"received\":%" PRIu64 ",\"hops\":%" PRIu64
         ",\"first_ps\":%" PRId64 ",\"last_ps\":%" PRId64 ",\"processor_seconds\":%.6f}\n",
         g_received, g_hops, g_first.GetPicoSeconds(), g_last.GetPicoSeconds(),
         ProcessorSeconds());
  Simulator::Destroy();
  return 0;
}
