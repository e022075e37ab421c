// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package edge is a machine's end of the network. QEMU hands it each Ethernet frame of the guest, and it ends what they
// carry: it leases the guest its address (dhcp.go), answers for names (dns.go), and carries on TCP and UDP by sockets
// of its own (outward.go, inward.go), as far as a policy allows (policy.go). So no frame of a guest ever reaches the
// host's network, and one guest cannot stall or reach another but through both their edges.
//
// Start with Edge in edge.go. link.go has what is done with frames before gVisor's network stack gets them.
package edge
